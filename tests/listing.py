"""The list of JAX's public array names, and which of them Shardwise supports. `python -m tests.listing` writes it.

The names are those of the installed JAX. Each is looked up in the module of the same name here. A name that is not
supported needs a reason in `tests/missing_names.py`, or the script fails.
"""

import importlib
import warnings
from pathlib import Path
from types import ModuleType

from shardwise.base.unsupported import is_placeholder
from tests.missing_names import PRIMITIVE, REASONS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "names.md"
NAMESPACES = (
    *("numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random"),
    *("scipy.special", "scipy.linalg", "scipy.stats", "scipy.fft", "scipy.optimize", "scipy.sparse.linalg"),
    *(
        "scipy.signal",
        "scipy.ndimage",
        "scipy.interpolate",
        "scipy.integrate",
        "scipy.cluster.vq",
        "scipy.spatial.transform",
        "image",
    ),
    *("ops", "dtypes", "tree", "tree_util", "test_util", "experimental.sparse"),
)
# Modules of JAX that are not array namespaces; their names include those that JAX's modules import for themselves.
MODULES = (
    *("ad", "cloud_tpu_init", "export", "extend.backend", "extend.core", "extend.linear_util", "extend.mlir"),
    *("extend.random", "extend.sharding", "ffi", "memory", "tools.jax_to_ir"),
    *(
        f"experimental.{name}"
        for name in (
            *("buffer_callback", "checkify", "colocated_python", "compilation_cache.compilation_cache"),
            *("compute_on", "custom_partitioning", "fused"),
            *("hijax", "jet", "key_reuse", "layout", "mesh_utils", "mosaic", "mosaic.gpu", "multihost_utils", "ode"),
            "overlap",
            *("pallas", "pallas.fuser", "pallas.mosaic_gpu", "pallas.tpu", "pallas.tpu_sc", "pallas.triton", "pjit"),
            *("profiler", "random", "rnn", "roofline", "scheduling_groups", "serialize_executable", "shard_alike"),
            *("shard_map", "source_mapper", "sparse", "topologies", "transfer", "xla_metadata"),
        )
    ),
)


def public(module: ModuleType) -> list[str]:
    """Return the public names of a module, without its submodules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            name
            for name in dir(module)
            if not name.startswith("_") and not isinstance(getattr(module, name, None), ModuleType)
        ]


def has(module: ModuleType | None, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module is not None and hasattr(module, name)


def module_rows() -> list[str]:
    """Return a row for each of `MODULES`: its names, and the names whose use is an error, with what to use instead."""
    rows = []
    for path in MODULES:
        module = importlib.import_module(f"shardwise.{path}")
        members = {name: getattr(module, name) for name in module.__all__}
        unsupported = [
            name
            for name, member in members.items()
            if is_placeholder(member) or "UnsupportedError: always" in (member.__doc__ or "")
        ]
        names = " ".join(name for name in members if name not in unsupported)
        advice = next((f": {member.advice}" for member in members.values() if is_placeholder(member)), "")
        rows.append(f"| `{path}` | {names} | {' '.join(unsupported)}{advice} |")
    return rows


def listing() -> str:
    """Return the text of docs/names.md.

    Raises:
        AssertionError: if an unsupported name has no reason.
    """
    lines = [
        "# Names",
        "",
        "The public names of JAX's array namespaces, and whether Shardwise supports them. `python -m tests.listing` "
        "writes this page.",
    ]
    unexplained = []
    for space in NAMESPACES:
        theirs = importlib.import_module(f"jax.{space}")
        try:
            ours: ModuleType | None = importlib.import_module(f"shardwise.{space}")
        except ModuleNotFoundError:
            ours = None
        names = public(theirs)
        primitives = [name for name in names if name.endswith("_p") and not has(ours, name)]
        supported = [name for name in names if has(ours, name)]
        missing = [name for name in names if name not in supported and name not in primitives]
        count = f"{len(supported)} of {len(names) - len(primitives)}"
        lines += ["", f"## {space}", "", f"Supported ({count}): {' '.join(supported)}"]
        if missing:
            lines += ["", "| name | status |", "|---|---|"]
            for name in missing:
                reason = REASONS.get(f"{space}.{name}", "")
                if not reason:
                    unexplained.append(f"{space}.{name}")
                lines.append(f"| `{name}` | {reason} |")
        if primitives:
            lines += ["", f"Names that end in `_p` ({len(primitives)}): {PRIMITIVE}."]
    lines += ["", "## Other modules", "", "| module | names | only for imports |", "|---|---|---|", *module_rows()]
    if unexplained:
        raise AssertionError(f"not supported, and without a reason in tests/missing_names.py: {' '.join(unexplained)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(listing())

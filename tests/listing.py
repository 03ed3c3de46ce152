"""Every public name of JAX's array namespaces: here, or not here and why. `python -m tests.listing` writes the list.

The names are those of the JAX that is installed; what is here is looked up in this package. A name that is missing
needs a reason below: the script fails without one.
"""

import importlib
import warnings
from pathlib import Path
from types import ModuleType

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "names.md"
NAMESPACES = (
    *("numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random"),
    *("scipy.special", "scipy.linalg", "scipy.stats", "ops", "dtypes", "tree", "tree_util"),
)
PRIMITIVE = "a primitive of JAX's tracer: ops here are classes in `shardwise.compiler.ops`"
REASONS: dict[str, str] = {
    "lax.psend": "of manual parallelism, which is not here yet",
    "lax.precv": "of manual parallelism, which is not here yet",
    "lax.ragged_all_to_all": "of manual parallelism, which is not here yet",
}


def public(module: ModuleType) -> list[str]:
    """The names that a module offers, without its submodules."""
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


def listing() -> str:
    """The document; names that are missing without a reason are an error."""
    lines = [
        "# Names",
        "",
        "Every public name of JAX's array namespaces, and whether it is here. Made by `python -m tests.listing`.",
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
        here = [name for name in names if has(ours, name)]
        missing = [name for name in names if name not in here and name not in primitives]
        lines += ["", f"## {space}", "", f"Here ({len(here)} of {len(names) - len(primitives)}): {' '.join(here)}"]
        if missing:
            lines += ["", "| not here | why |", "|---|---|"]
            for name in missing:
                reason = REASONS.get(f"{space}.{name}", "")
                if not reason:
                    unexplained.append(f"{space}.{name}")
                lines.append(f"| `{name}` | {reason} |")
        if primitives:
            lines += ["", f"{len(primitives)} names that end in `_p`: {PRIMITIVE}."]
    here_after_all = [name for name in REASONS if f"| `{name.rsplit('.', 1)[1]}` | {REASONS[name]} |" not in lines]
    if here_after_all:
        raise AssertionError(f"here, but with a reason in tests/listing.py: {' '.join(here_after_all)}")
    if unexplained:
        raise AssertionError(f"not here, and no reason in tests/listing.py: {' '.join(unexplained)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(listing())

"""The package: what its import loads, and its public names."""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import shardwise as sw
from shardwise import ad_checkpoint

PACKAGE = Path(sw.__file__).parent


def test_importing_does_not_import_jax():
    code = "import sys, shardwise; print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"


_LISTS_CHANGES = """
import gc, os, signal, sys, threading

def state():
    return {
        "finders": list(sys.meta_path),
        "absent": [name for name, module in sys.modules.items() if module is None],
        "variables": sorted(os.environ),
        "collection": len(gc.callbacks),
        "other": (sys.path, sys.path_hooks, sys.excepthook, threading.active_count(), signal.getsignal(signal.SIGINT)),
    }

before = state()
import shardwise
after = state()
assert before["other"] == after["other"]
print([finder.__name__ for finder in after["finders"][: len(after["finders"]) - len(before["finders"])]])
print(after["absent"])
print(sorted({*after["variables"]} - {*before["variables"]}), after["collection"] - before["collection"])
"""


def test_import_changes_only_what_the_installation_page_lists():
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    run = subprocess.run(
        [sys.executable, "-c", _LISTS_CHANGES],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["['JaxBlocker']", "['jax._src.sharding_impls']", "['TF_CPP_MIN_LOG_LEVEL'] 1"]
    page = (PACKAGE.parent / "docs/installation.md").read_text()
    for name in ("sys.meta_path", "jax._src.sharding_impls", "TF_CPP_MIN_LOG_LEVEL", "gc.callbacks"):
        assert f"`{name}`" in page


_READS_ARRAYS = """
import sys
import numpy as np
import shardwise as sw

sw.config.update("num_cpu_devices", 8)
mesh = sw.make_mesh((8,), ("x",))
sharded = sw.device_put(np.arange(16.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
for x in (sharded, sharded.astype("bfloat16"), sw.device_put(sharded, sw.NamedSharding(mesh, sw.P()))):
    np.asarray(x), float(x[3]), x.addressable_shards[0].data.unsafe_buffer_pointer()
    repr(x), sw.device_put(x, sw.devices()[1]).copy(), x.tolist(), np.from_dlpack(sw.numpy.ones(3))
print("jax" in sys.modules)

import jax

print(jax.__version__, float(jax.numpy.arange(3.0).sum()), np.asarray(sharded).sum())
"""


@pytest.mark.jax
def test_arrays_are_read_without_importing_jax():
    """jaxlib looks for jax where it makes arrays of one device; a user can still import it."""
    run = subprocess.run([sys.executable, "-c", _READS_ARRAYS], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", version("jax"), "3.0", "120.0"]


def test_import_loads_the_compiler_but_no_rarely_used_modules():
    code = "import sys, shardwise, shardwise.numpy, shardwise.lax; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(run.stdout.split())
    assert {"numpy", "shardwise.compiler.pipeline", "shardwise.execute.executor", "shardwise.api.jit"} <= loaded
    for lazy in (
        "rich",
        "scipy",
        "opt_einsum",
        "hashlib",
        "shardwise.nn",
        "shardwise.random",
        "shardwise.explain.page",
    ):
        assert lazy not in loaded
    assert "shardwise.execute.exchange" not in loaded


# The hardest order: all submodules are loaded before a name is accessed, so that a submodule of the same name would
# hide it. The stubs are read with `ast`, not with the reader of the lazy loader. One stub lists no lazy names, but the
# methods of arrays: tests/numpy/test_array_methods.py compares them.
_CHECK_STUBS = """
import ast, importlib, importlib.util, pathlib, pkgutil, sys, shardwise
has_jax = importlib.util.find_spec("jax") is not None
has_torch = importlib.util.find_spec("torchax") is not None
for module in pkgutil.walk_packages(shardwise.__path__, "shardwise.", lambda name: None):
    needs_jax = module.name.startswith(("shardwise.inside_jax", "shardwise.launch.jax_commands"))
    needs_torch = module.name.startswith("shardwise.torch")
    if (has_jax or not needs_jax) and (has_torch or not needs_torch):
        importlib.import_module(module.name)
count = 0
for module in [module for name, module in sys.modules.items() if name.startswith("shardwise")]:
    stub = pathlib.Path(module.__file__).with_suffix(".pyi")
    if not stub.exists() or module.__name__ == "shardwise.compiler.arrays.namespace":
        continue
    values, public = {}, set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            home = importlib.import_module(node.module)
            for alias in node.names:
                values[alias.name] = getattr(home, alias.name)
                assert alias.asname in (None, alias.name), alias.asname
                public |= {alias.asname} - {None}
        else:
            assert isinstance(node, ast.Assign)
            (target,) = node.targets
            values[target.id] = values[node.value.id]
            public.add(target.id)
    assert set(module.__all__) == public, set(module.__all__) ^ public
    assert len(module.__all__) == len(public)
    for name in public:
        assert getattr(module, name) is values[name], (module.__name__, name)
        count += 1
print(count)
"""


def test_lazy_names_match_the_stubs():
    run = subprocess.run([sys.executable, "-c", _CHECK_STUBS], capture_output=True, text=True, timeout=120, check=False)
    assert not run.returncode, run.stderr
    assert int(run.stdout) > 700


def test_three_modules_import_dynamically():
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search("import_module|__import__", path.read_text())]
    assert sorted(users) == ["install.py", "lazy.py", "load_target.py"]  # two import what libraries and users name


def _public_modules(module=sw):
    """Yield a module and the public modules in it."""
    yield module
    for name in module.__all__:
        if isinstance(member := getattr(module, name), ModuleType):
            yield from _public_modules(member)


@pytest.mark.parametrize("module", [*_public_modules(), ad_checkpoint], ids=lambda module: module.__name__)
def test_dir_lists_public_names_only(module):
    """Neither imported modules and helpers, nor private submodules."""
    public = [name for name in module.__all__ if not name.startswith("__")]
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(public)
    for name in module.__all__:
        if isinstance(member := getattr(module, name), ModuleType):
            assert member.__name__.startswith("shardwise."), name
    with pytest.raises(AttributeError, match=f"{module.__name__} has no attribute 'nonexistent'"):
        _ = module.nonexistent


def test_public_errors_are_listed():
    public = {name: value for name, value in vars(sw.errors).items() if not name.startswith("_")}
    classes = {name for name, value in public.items() if isinstance(value, type)}
    assert classes == set(sw.errors.__all__)


def test_virtual_devices_need_no_environment_variable():
    code = "import shardwise as sw; sw.config.update('jax_num_cpu_devices', 3); print(len(sw.devices()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "3"


def test_public_names_exist():
    for module in (sw, sw.numpy, sw.lax, sw.sharding, sw.debug):
        key = None if Path(module.__file__).with_suffix(".pyi").exists() else _case_order
        assert list(module.__all__) == sorted(module.__all__, key=key)
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def _case_order(name):
    """Return the sort key of ruff's order: constants, classes, then the rest, each with numbers by value."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _imports(node, hidden):
    """Yield the line of each import, and whether it is neither at module level nor under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child.lineno, hidden
        elif not isinstance(child, ast.expr):
            for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from _imports(child, hidden or not for_types)


def test_no_import_is_inside_of_a_function():
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    assert sum(len(re.findall(r"^(?:import|from) ", source, re.MULTILINE)) for source in sources.values()) > 1000
    # An import below module level is indented, or follows a colon or a semicolon; other modules are not parsed.
    nested = re.compile(r"(?:^ |[:;]) *(?:import|from) ", re.MULTILINE)
    suspects = {path: source for path, source in sources.items() if nested.search(source)}
    imports = [
        (f"{path.name}:{line}", hidden)
        for path, source in suspects.items()
        for line, hidden in _imports(ast.parse(source), False)
    ]
    assert imports
    assert [place for place, hidden in imports if hidden] == []


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        (sw, "pmpa", " Did you mean 'pmap'?"),
        (sw, "vmao", " Did you mean 'vmap'?"),
        (sw.numpy, "busday_count", ""),
        (sw.lax, "tridiagonal", ""),
    ],
)
def test_missing_names_raise_with_a_hint(module, name, hint):
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    text = f"{module.__name__} has no attribute {name!r}: JAX has no such name, or it is not supported yet.{hint}"
    assert str(caught.value) == text

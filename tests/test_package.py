"""The package as a whole: what importing it brings, and what it says of itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardwise as sw

PACKAGE = Path(sw.__file__).parent


def test_importing_does_not_import_jax():
    code = "import sys, shardwise; print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"


def test_importing_loads_what_programs_use_and_no_more():
    code = "import sys, shardwise, shardwise.numpy, shardwise.lax; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(run.stdout.split())
    assert {"numpy", "shardwise.compiler.pipeline", "shardwise.numpy.elementwise"} <= loaded
    for later in ("rich", "scipy", "opt_einsum", "shardwise.nn", "shardwise.random", "shardwise.explain.page"):
        assert later not in loaded


# In the order that is hardest on them: all modules are there before a package is asked for what it loads later, so
# that one of the same name would stand in its place.
_LOADED_LATER = """
import ast, importlib, pkgutil, sys, shardwise
for found in pkgutil.walk_packages(shardwise.__path__, "shardwise."):
    importlib.import_module(found.name)
count = 0
for name in [name for name in sys.modules if name.startswith("shardwise")]:
    package = sys.modules[name]
    body = ast.parse(open(package.__file__).read()).body if "__getattr__" in vars(package) else []
    blocks = [node.body for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for given in sum(blocks, []):
        for alias in given.names:
            home = importlib.import_module(given.module)
            assert getattr(package, alias.name) is getattr(home, alias.name), (name, alias.name)
            count += 1
print(count)
"""


def test_what_is_loaded_later_is_what_type_checkers_see():
    run = subprocess.run(
        [sys.executable, "-c", _LOADED_LATER], capture_output=True, text=True, timeout=120, check=False
    )
    assert not run.returncode, run.stderr
    assert int(run.stdout) > 200


def test_what_is_loaded_later_is_listed():
    for module in (sw, sw.numpy, sw.lax, sw.debug):
        assert set(module.__all__) <= set(dir(module))


def test_virtual_devices_need_no_environment_variable():
    code = "import shardwise as sw; sw.config.update('jax_num_cpu_devices', 3); print(len(sw.devices()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "3"


def test_public_names_exist():
    for module in (sw, sw.numpy, sw.lax, sw.sharding, sw.debug):
        assert list(module.__all__) == sorted(module.__all__, key=_case_order)
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def _case_order(name):
    """ruff's order: constants, classes, then the rest, each with numbers by value."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _imports(node, hidden):
    """Whether each import below hides: all but those of the module itself, and those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child.lineno, hidden
        else:
            for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from _imports(child, hidden or not for_types)


def test_no_import_hides_in_a_function():
    found = [
        (f"{path.name}:{line}", hidden)
        for path in PACKAGE.rglob("*.py")
        for line, hidden in _imports(ast.parse(path.read_text()), False)
    ]
    assert len(found) > 1000
    assert [place for place, hidden in found if hidden] == []


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        (sw, "pmpa", " Did you mean 'pmap'?"),
        (sw, "vmao", " Did you mean 'vmap'?"),
        (sw.numpy, "busday_count", ""),
        (sw.lax, "tridiagonal", ""),
    ],
)
def test_a_name_that_is_not_here_says_so(module, name, hint):
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    text = f"{module.__name__} has no attribute {name!r}: JAX has no such name, or it is not supported yet.{hint}"
    assert str(caught.value) == text

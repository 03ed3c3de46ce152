"""The reader of JAX's source: the names of each module, and which of them are public."""

import pytest

from tests.jax_source import Name, Source, public_names, read_release

SOURCES = {
    "__init__": """
from jax._src.api import jit as jit, grad
from jax._src import api as api
from jax import lax as lax
import numpy as numpy
pi: float = 3.1
_private = 1
(one, two) = 1, 2
""",
    "lax/__init__": """
if TYPE_CHECKING:
  typed = 1
if flag:
  def abs(): pass
try:
  class Added: pass
  from jax._src.lib import kernels as fast_kernels
except ImportError:
  fast_kernels = kernels = None
finally: pass
with scope:
  scoped = 1
deleted = 1
del deleted
""",
    "lax/control": """
from jax._src.api import map_leading as map, _step as step, loop as _loop
from jax.sharding import PartitionSpec as P
from jax._src.lib import xla_client as xc
import jaxlib.mlir as mlir
""",
    "core": """
from jax._src.api import jit as _jit
map, unsafe_map = safe_map, map
_deprecations = {'gone': ('was removed', None), 'old': ('is deprecated', _jit), '_hidden': ('is deprecated', _jit)}
if _typing.TYPE_CHECKING:
  old = _jit
else:
  __getattr__ = deprecation_getattr(__name__, _deprecations)
""",
    "sharding": "class PartitionSpec: pass",
    "_src/api": "def jit(): pass\ndef grad(): pass\nmap = 1",
    "_src/lib": "xla_client = 1",
    "_src/internal_test_util/cases": "def case(): pass",
}


@pytest.fixture
def release(tmp_path):
    """Return the names of a small package with the structure of JAX."""
    for name, source in SOURCES.items():
        path = tmp_path / f"jax/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return read_release(tmp_path)


def test_public_names_are_definitions_exports_and_deprecated_names(release):
    assert [".".join(name) for name in public_names(release)] == [
        *("jax.jit", "jax.pi", "jax.one", "jax.two"),
        "jax.core.old",
        *("jax.lax.abs", "jax.lax.Added", "jax.lax.scoped"),
        "jax.sharding.PartitionSpec",
        *("jax.lax.control.map", "jax.lax.control.step"),
    ]


def test_private_modules_are_read_and_those_of_tests_are_not(release):
    assert "jax._src.internal_test_util.cases" not in release
    assert release["jax._src.api"]["jit"] == Source()
    assert release["jax"]["grad"] == Source(Name("jax._src.api", "grad"), is_exported=False)
    assert release["jax.lax.control"]["P"].imported == Name("jax.sharding", "PartitionSpec")

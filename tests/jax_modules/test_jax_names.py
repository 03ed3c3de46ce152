"""The list of JAX's names: how it is written from JAX's source, and read by release; and that it is JAX's."""

from importlib import import_module

import pytest

from shardwise.jax_modules.jax_names import PublicName, jax_names, read_names
from shardwise.jax_modules.version import __version__, __version_info__
from tests.jax_names import entries_of_release, text
from tests.jax_source import read_release

SOURCES = {
    "__init__": "from jax._src.api import jit as jit, helper\nfrom jax import lax as lax",
    "lax": "from jax._src.lax import add_any as add",
    "_src/__init__": "",
    "_src/api": """
import os
import jaxlib.xla_client as xc
import typing
from typing import Any
from jax._src import lax
from jax._src.lax import add_any as plus
try:
    fast = True
except ImportError:
    fast, slow, passing = False, True, 1
del passing
if typing.TYPE_CHECKING:
    Unseen = Any
def jit(): local = 1
def helper(): pass
class _Private: pass
""",
    "_src/lax": "def add_any(): pass\n_deprecations = {'gone': ('text', None), 'old': ('text', add_any)}",
    "_src/internal_test_util": "def check(): pass",
}


@pytest.fixture
def entries(tmp_path):
    """Return the entries of a small package with the structure of JAX."""
    for name, source in SOURCES.items():
        path = tmp_path / f"jax/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return entries_of_release(read_release(tmp_path))


def test_entries_of_a_package(entries):
    assert {module: sorted(names) for module, names in entries.items()} == {
        "jax": ["helper", "jit"],
        "jax._src": [],
        "jax._src.api": ["_Private", "fast", "helper", "jit=jax", "plus=jax.lax:add", "slow", "xc=jaxlib:xla_client"],
        "jax._src.lax": ["add_any=jax.lax:add", "old"],
        "jax.lax": ["add"],
    }


def test_names_by_release(entries):
    newer = {**entries, "jax.lax": ["add", "log2"], "jax._src.new": ["f"], "jax._src.lax": ["add_any"]}
    written = text({10: entries, 11: newer})
    assert written == text({10: entries, 11: {module: names[::-1] for module, names in newer.items()}})
    older, latest = read_names(written, 10), read_names(written, 11)
    assert {**older["jax.lax"]} == {"add": None} and latest["jax.lax"].keys() == {"add", "log2"}
    assert older["jax._src.lax"]["add_any"] == PublicName("jax.lax", "add") and latest["jax._src.lax"] == {
        "add_any": None
    }
    assert older["jax._src.api"]["jit"] == PublicName("jax", "jit")
    assert "jax._src.new" not in older and latest["jax._src.new"] == {"f": None}
    assert read_names(written, 15) == latest  # a release that is newer than the list


@pytest.mark.jax
def test_the_list_has_the_names_of_jax():
    """Every name of the list exists in JAX, and is what the list says."""
    jax = pytest.importorskip("jax")
    if jax.__version_info__[:2] != __version_info__[:2]:
        pytest.skip(f"the list is that of JAX {__version__}, and JAX {jax.__version__} is installed")
    for module in ("jax", "jax._src.core", "jax._src.pjit", "jax._src.lax.lax", "jax._src.numpy.lax_numpy"):
        theirs = import_module(module)
        for name, public in jax_names()[module].items():
            assert hasattr(theirs, name), f"{module}.{name}"
            if public is not None:
                assert getattr(import_module(public.module), public.name) is getattr(theirs, name), f"{module}.{name}"

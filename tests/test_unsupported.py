"""Names of JAX that exist for imports only: all of them exist, and using one says what to use instead."""

import importlib
import types

import pytest

from shardwise.base.unsupported import is_placeholder, used_placeholders
from shardwise.errors import UnsupportedError

MODULES = {
    "experimental.pallas": "docs/pallas.md",
    "experimental.pallas.tpu": "docs/pallas.md",
    "experimental.pallas.triton": "numpy",
    "experimental.pallas.fuser": "numpy",
    "experimental.pallas.tpu_sc": "numpy",
    "experimental.pallas.mosaic_gpu": "numpy",
    "experimental.mosaic": "numpy",
    "experimental.mosaic.gpu": "numpy",
    "experimental.fused": "XLA chooses",
    "experimental.buffer_callback": "pure_callback",
    "experimental.transfer": "device_put",
    "experimental.roofline": "explain",
    "experimental.source_mapper": "source lines",
    "tools.jax_to_ir": "as_text",
}
# JAX's modules import absl, which is not installed.
NEEDS_ABSL = {
    *("experimental.pallas.mosaic_gpu", "experimental.mosaic.gpu"),
    *("experimental.roofline", "experimental.source_mapper", "tools.jax_to_ir"),
}


# Names that JAX's modules import for themselves.
HELPERS = {
    "experimental.fused": {
        *("debug_info", "flatten_fun_nokwargs", "fused_p", "map", "safe_map", "safe_zip", "tree_flatten"),
        *("tree_unflatten", "typeof", "unsafe_map", "unsafe_zip", "unzip2", "weakref_lru_cache", "zip"),
    },
    "experimental.transfer": {"Any", "TYPE_CHECKING", "use_cpp_class", "use_cpp_method"},
}


@pytest.mark.parametrize("path", list(MODULES))
def test_use_is_an_error_with_an_alternative(path):
    module = importlib.import_module(f"shardwise.{path}")
    assert module.__all__ == sorted(module.__all__)
    for name in filter(lambda name: is_placeholder(getattr(module, name)), module.__all__):
        with pytest.raises(UnsupportedError, match=rf"jax\.{path}\.{name} is not supported yet\..*{MODULES[path]}"):
            getattr(module, name)(1, option=2)
        with pytest.raises(UnsupportedError, match=f"jax\\.{path}\\.{name}"):
            _ = getattr(module, name).attribute
        with pytest.raises(UnsupportedError, match=f"jax\\.{path}\\.{name}"):
            isinstance(1, getattr(module, name))
        with pytest.raises(UnsupportedError, match=f"jax\\.{path}\\.{name}"):
            issubclass(int, getattr(module, name))
        with pytest.raises(UnsupportedError, match=f"jax\\.{path}\\.{name}"):
            type("Derived", (getattr(module, name),), {})
        assert not hasattr(getattr(module, name), "__wrapped__")
        assert f"jax.{path}.{name}" in used_placeholders()
        assert is_placeholder(getattr(module, name)) and getattr(module, name) | None  # in annotations


@pytest.mark.jax
@pytest.mark.parametrize("path", [path for path in MODULES if path not in NEEDS_ABSL])
def test_all_names_of_jax_exist(path):
    pytest.importorskip("jax")
    theirs = importlib.import_module(f"jax.{path}")
    names = {
        name
        for name in dir(theirs)
        if not name.startswith("_") and not isinstance(getattr(theirs, name), types.ModuleType)
    }
    ours = set(importlib.import_module(f"shardwise.{path}").__all__)
    assert names - HELPERS.get(path, set()) == ours

"""Every public name of JAX exists in Shardwise, or the tables of `tests/missing_names.py` say why it is missing."""

import pytest

from tests.missing_names import (
    MODULES,
    REASONS,
    installed_jax,
    is_supported,
    missing,
    newer_names,
    public_names,
    reason_of_module,
)

NEW = ("get_mesh", "Inline", "sharding.UnreducedKind", "numpy.top_k", "lax.log2", "profiler.ProfileSession")


def test_names_of_newer_releases_exist_with_every_jaxlib():
    names = newer_names()
    assert names.issuperset(NEW) and all(map(is_supported, NEW))
    unlisted = {name for name in names if not name.endswith("_p") and not is_supported(name)} - REASONS.keys()
    assert unlisted == set()


@pytest.mark.jax
def test_every_missing_name_has_a_reason_and_every_reason_is_needed():
    pytest.importorskip("jax")
    assert missing() == REASONS.keys()


@pytest.mark.jax
def test_every_module_that_is_left_out_exists_in_jax():
    pytest.importorskip("jax")
    for module in MODULES:
        path = installed_jax().joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_modules_below_a_module_are_left_out_too():
    assert reason_of_module("experimental.pallas.tpu") == reason_of_module("experimental.pallas") != ""
    assert reason_of_module("experimental") == reason_of_module("experimental.sparse") == ""


def test_public_names_are_definitions_and_exports(tmp_path):
    exports = [
        "from jax._src.api import jit as jit, grad",
        "from jax._src import core as core",
        "import numpy as numpy",
    ]
    values = ["pi: float = 3.1", "_private = 1", "(one, two) = 1, 2"]
    blocks = ["if TYPE_CHECKING:", "  typed = 1", "if flag:", "  def abs(): pass", "try:", "  class Added: pass"]
    files = {
        "__init__.py": [*exports, *values],
        "lax/__init__.py": [*blocks, "finally: pass"],
        "_src/core.py": ["hidden = 1"],
        "experimental/pallas/tpu.py": ["left_out = 1"],
    }
    for name, lines in files.items():
        (tmp_path / "jax" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "jax" / name).write_text("\n".join(lines))
    assert public_names(tmp_path / "jax") == {"jit", "pi", "one", "two", "lax.abs", "lax.Added"}

"""Every public name of JAX exists in Shardwise, or the tables of `tests/missing_names.py` say why it is missing."""

import pytest

from tests.jax_names import NEWER_NAMES
from tests.missing_names import (
    MODULES,
    REASONS,
    installed_release,
    is_supported,
    missing,
    newer_names,
    reason_of_module,
)

NEW = ("get_mesh", "Inline", "sharding.UnreducedKind", "numpy.top_k", "lax.log2", "profiler.ProfileSession")


def test_names_of_newer_releases_exist_with_every_jaxlib():
    names = newer_names()
    assert names.issuperset(NEW) and all(map(is_supported, NEW))
    assert {name for name in names if not is_supported(name)} - REASONS.keys() == set()


@pytest.mark.slow
@pytest.mark.jax
def test_every_missing_name_has_a_reason_and_every_reason_is_needed():
    pytest.importorskip("jax")
    assert missing() == REASONS.keys()


@pytest.mark.jax
def test_every_module_that_is_left_out_exists_in_jax():
    pytest.importorskip("jax")
    for module in MODULES:
        path = installed_release().joinpath("jax", *module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_primitives_and_modules_that_are_left_out_are_not_compared():
    lines = NEWER_NAMES.read_text().split()
    left_out = [line for line in lines if line.startswith("jax.experimental.pallas.") or line.endswith("_p")]
    assert left_out and newer_names().isdisjoint(line.removeprefix("jax.") for line in left_out)


def test_modules_below_a_module_are_left_out_too():
    assert reason_of_module("experimental.pallas.tpu") == reason_of_module("experimental.pallas") != ""
    assert reason_of_module("experimental") == reason_of_module("experimental.sparse") == ""

"""The tables of cases of tests/numpy, lax, nn, random and scipy, on 8 devices compared with one.

Their arrays are small: most dims are sharded unevenly, and some devices have empty shards.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shardwise.numpy as jnp
from shardwise import lax, nn, random, scipy
from tests.agreement import Case, batch_name, batches, mesh_like_one_device

jax = pytest.importorskip("jax")  # some of the tables need it
pytestmark = [pytest.mark.jax, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
FOLDERS = ("numpy", "lax", "nn", "random", "scipy")
NAMESPACES: dict[str, Any] = {
    "lax.test_linalg": lax,
    "lax.test_lax_like_jax": importlib.import_module("tests.lax.test_lax_like_jax").OURS,
    "nn.test_activations_like_jax": nn,
    "nn.test_attention_like_jax": nn,
    "random.test_random_like_jax": random,
    "scipy.test_fft": scipy.fft,
    "scipy.test_ndimage": scipy.ndimage,
    "scipy.linalg.test_linalg": scipy,
    "scipy.signal.test_signal": scipy.signal,
    "scipy.test_special": scipy.special,
    "scipy.stats.test_stats": scipy.stats,
    **{
        f"numpy.{name}": jnp
        for name in (
            *("structure_cases", "test_calculus", "test_equality", "test_einsum", "test_fft", "test_float_bits"),
            *("test_histograms", "test_integers", "linalg.test_linalg", "test_padding", "test_polynomials"),
            *("test_sets", "test_statistics", "test_numpy_structure_like_jax", "test_ufuncs"),
        )
    },
}
# The shapes of their results depend on values; test_layouts.py has some of these.
NOT_COMPILED = {
    "test_sets.UNIQUE",
    "test_sets.SETS",
    "test_histograms.EAGER",
    "test_numpy_structure_like_jax.VALUE_DEPENDENT_SHAPES",
}


def tables(module: ModuleType) -> dict[str, list[Case]]:
    """Return the lists of cases of a module by name."""
    return {
        name: cases
        for name, cases in vars(module).items()
        if isinstance(cases, list) and cases and all(isinstance(case, Case) for case in cases)
    }


def family(name: str) -> list[Case]:
    """Return all cases of a module that can be compiled, without duplicates."""
    module = importlib.import_module(f"tests.{name}")
    module_name = name.rpartition(".")[2]
    compiled = [cases for table, cases in tables(module).items() if f"{module_name}.{table}" not in NOT_COMPILED]
    return list({id(case): case for cases in compiled for case in cases}.values())


def batches_of_families() -> list[Any]:
    seen: set[int] = set()
    params = []
    for name, namespace in NAMESPACES.items():
        cases = [one for one in family(name) if id(one) not in seen]
        seen |= {id(one) for one in cases}
        params += [pytest.param(namespace, batch, id=f"{name}-{batch_name(batch)}") for batch in batches(cases)]
    return params


@pytest.mark.parametrize("sharded_dim", ["first", "last"])
@pytest.mark.parametrize(("namespace", "cases"), batches_of_families())
def test_sharded_cases_match_one_device(mesh, namespace, cases, sharded_dim):
    mesh_like_one_device(mesh, namespace, cases, sharded_dim)


def test_all_tables_are_listed():
    """A table that a module imports counts as listed with its own module."""
    listed = {
        id(case)
        for name in NAMESPACES
        for table in tables(importlib.import_module(f"tests.{name}")).values()
        for case in table
    }
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).rglob("*.py")):
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            found = tables(importlib.import_module(name))
            unlisted = [table for table, cases in found.items() if not {id(case) for case in cases} <= listed]
            assert not unlisted, f"{name} has tables of cases, {unlisted}: add it to NAMESPACES"


def test_tables_that_are_not_compiled_exist():
    names = {
        f"{name.rpartition('.')[2]}.{table}"
        for name in NAMESPACES
        for table in tables(importlib.import_module(f"tests.{name}"))
    }
    assert names >= NOT_COMPILED

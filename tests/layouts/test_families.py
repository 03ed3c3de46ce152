"""The families' own tables, with every keyword and odd value in them, on 8 devices as on one.

Their arrays are small: most dims fall into pieces of different sizes, and some devices hold nothing.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shardwise.numpy as jnp
from shardwise import lax, nn, random, scipy
from tests.agreement import Case, batch_name, batches, mesh_like_one_device

jax = pytest.importorskip("jax")  # without which some of the tables are not there
pytestmark = [pytest.mark.jax, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
FOLDERS = ("numpy", "lax", "nn", "random", "scipy")
FAMILIES: dict[str, Any] = {
    "lax.test_linalg": lax,
    "lax.test_rest_like_jax": importlib.import_module("tests.lax.test_rest_like_jax").OURS,
    "nn.test_activations_like_jax": nn,
    "nn.test_attention_like_jax": nn,
    "random.test_like_jax": random,
    "scipy.test_linalg": scipy,
    "scipy.test_special": scipy.special,
    "scipy.test_stats": scipy.stats,
    **{
        f"numpy.{name}": jnp
        for name in (
            *("structure_cases", "test_calculus", "test_comparing", "test_einsum", "test_fft", "test_floats"),
            *("test_histograms", "test_integers", "test_linalg", "test_padding", "test_polynomials", "test_sets"),
            *("test_statistics", "test_structure_like_jax", "test_ufuncs"),
        )
    },
}
# Whose results' shapes hang on values: test_layouts.py has some of these.
UNCOMPILED = {"test_sets.UNIQUE", "test_sets.SETS", "test_histograms.EAGER", "test_structure_like_jax.VALUES_DECIDE"}


def tables(module: ModuleType) -> dict[str, list[Case]]:
    """The lists of cases that a module has, by name."""
    return {
        name: found
        for name, found in vars(module).items()
        if isinstance(found, list) and found and all(isinstance(one, Case) for one in found)
    }


def family(name: str) -> list[Case]:
    """All cases of a module that can be compiled, each once."""
    module = importlib.import_module(f"tests.{name}")
    found = tables(module)
    short = name.rpartition(".")[2]
    mine = {id(one): one for table in found for one in found[table] if f"{short}.{table}" not in UNCOMPILED}
    return list(mine.values())


def gathered() -> list[Any]:
    seen: set[int] = set()
    found = []
    for name, namespace in FAMILIES.items():
        cases = [one for one in family(name) if id(one) not in seen]
        seen |= {id(one) for one in cases}
        found += [pytest.param(namespace, batch, id=f"{name}-{batch_name(batch)}") for batch in batches(cases)]
    return found


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize(("namespace", "cases"), gathered())
def test_tables(mesh, namespace, cases, which):
    mesh_like_one_device(mesh, namespace, cases, which)


def test_every_table_is_here():
    """A table that a module imports from another is the other's."""
    listed = {
        id(case)
        for name in FAMILIES
        for table in tables(importlib.import_module(f"tests.{name}")).values()
        for case in table
    }
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).glob("*.py")):
            found = tables(importlib.import_module(f"tests.{folder}.{path.stem}"))
            fresh = [name for name, cases in found.items() if not {id(case) for case in cases} <= listed]
            assert not fresh, f"tests/{folder}/{path.name} has tables of cases, {fresh}: name it in FAMILIES"

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
    for path in sorted(TESTS.glob("*/*.py")):
        name = f"{path.parent.name}.{path.stem}"
        if path.parent.name in ("numpy", "lax", "nn", "random", "scipy") and name not in FAMILIES:
            module = importlib.import_module(f"tests.{name}")
            known = [family for family in FAMILIES if family.startswith(path.parent.name)]
            listed = {
                id(case)
                for other in known
                for table in tables(importlib.import_module(f"tests.{other}")).values()
                for case in table
            }
            fresh = [table for table, cases in tables(module).items() if not all(id(case) in listed for case in cases)]
            assert not fresh, f"tests/{path.parent.name}/{path.name} has tables of cases {fresh}: name it in FAMILIES"

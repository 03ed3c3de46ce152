"""Reductions over `axis_index_groups` of different sizes."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

GROUPS = [[0, 3, 5], [1], [2, 4, 6, 7]]
X = (np.arange(8.0, dtype=np.float32) - 3) ** 2
REDUCTIONS = {"psum": np.sum, "pmax": np.max, "pmin": np.min, "pmean": np.mean}


def over_groups(name):
    return lambda x: getattr(lax, name)(x, "i", axis_index_groups=GROUPS)


def in_shard_map(function):
    mesh = sw.make_mesh((8,), ("i",))
    return sw.shard_map(function, mesh=mesh, in_specs=sw.P("i"), out_specs=sw.P("i"))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    group_of = [next(group for group in GROUPS if member in group) for member in range(8)]
    expected = [REDUCTIONS[name](X[group]) for group in group_of]
    for run in (
        sw.vmap(over_groups(name), axis_name="i"),
        sw.pmap(over_groups(name), axis_name="i"),
        sw.jit(in_shard_map(over_groups(name))),
    ):
        np.testing.assert_allclose(run(X), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["psum", "pmean"])
def test_gradients(name):
    weights = np.arange(8, dtype=np.float32)
    by_vmap = sw.grad(lambda x: (sw.vmap(over_groups(name), axis_name="i")(x) * weights).sum())(X)
    by_region = sw.grad(lambda x: (in_shard_map(over_groups(name))(x) * weights).sum())(X)
    sizes = np.array([len(next(group for group in GROUPS if member in group)) for member in range(8)])
    totals = [weights[next(group for group in GROUPS if member in group)].sum() for member in range(8)]
    expected = np.array(totals) / (sizes if name == "pmean" else 1)
    np.testing.assert_allclose(by_vmap, expected, rtol=1e-6)
    np.testing.assert_allclose(by_region, expected, rtol=1e-6)


@pytest.mark.jax
def test_psum_matches_jax():
    jax = pytest.importorskip("jax")
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    theirs = jax.pmap(lambda x: jax.lax.psum(x, "i", axis_index_groups=GROUPS), axis_name="i")(X)
    np.testing.assert_allclose(sw.pmap(over_groups("psum"), axis_name="i")(X), theirs)


def test_errors():
    with pytest.raises(ValueError, match=r"all_gather: axis_index_groups .* must all have the same size"):
        sw.vmap(lambda x: lax.all_gather(x, "i", axis_index_groups=GROUPS), axis_name="i")(X)
    with pytest.raises(ValueError, match=r"psum: over several axes, axis_index_groups .* must all have the same size"):
        sw.vmap(
            sw.vmap(lambda x: lax.psum(x, ("i", "j"), axis_index_groups=[[0], [1, 2, 3]]), axis_name="j"), axis_name="i"
        )(np.ones((2, 2)))

"""Equal collectives run once, outside and inside loops."""

import numpy as np

import shardwise as sw
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def rows(mesh, count=4096):
    x = (np.arange(count * 32, dtype=np.float32) % 97).reshape(count, 32)
    return x, sw.device_put(x, NamedSharding(mesh, P("data")))


def test_two_ops_with_the_same_halo_share_its_exchange(mesh):
    x, placed = rows(mesh)

    def differences(x):
        before, after = x[1:], x[:-1]
        return before - after, before * after

    plan = sw.explain(differences)(placed)
    once = sw.explain(lambda x: x[1:] - x[:-1])(placed)
    assert plan.counts() == once.counts()
    for got, expected in zip(sw.jit(differences)(placed), differences(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_equal_slices_share_one_exchange(mesh):
    x, placed = rows(mesh)

    def twice(x):
        return x[1:] + 1, x[1:] * 2

    assert sw.explain(twice)(placed).counts() == {"take_window": 1}
    for got, expected in zip(sw.jit(twice)(placed), twice(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_equal_exchanges_inside_a_loop_are_shared(mesh):
    x, placed = rows(mesh)

    def step(carry, _):
        return carry.at[1:].add(carry[:-1] * 0.5).at[1:].add(carry[:-1] * 0.25), None

    def run(x):
        return lax.scan(step, x, None, length=3)[0]

    plan = sw.explain(run)(placed)
    expected = x.copy()
    for _ in range(3):
        before = expected[:-1].copy()
        expected[1:] += before * 0.75
    np.testing.assert_allclose(sw.jit(run)(placed), expected, rtol=1e-5)
    assert len([row for row in plan.collectives if row.kind == "take_window"]) <= 4

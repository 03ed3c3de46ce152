"""Lookup in a sharded embedding table: equal to take, without a gather of the table, with a sharded gradient."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, parallel
from shardwise.errors import StrategyError
from shardwise.sharding import NamedSharding

VOCABULARY, FEATURES = 24, 5


def operands(mesh):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(VOCABULARY, FEATURES)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, (8, 6)).astype(np.int32)
    ids[0, :3] = -1, VOCABULARY, 2**31 - 1
    return sw.device_put((table, ids), (NamedSharding(mesh, P("model")), NamedSharding(mesh, P("data"))))


def oracle(table, ids, weights):
    """The rows, zeros for unknown ids, and the gradient of their weighted sum, by numpy."""
    table, ids = np.asarray(table), np.asarray(ids)
    known = (ids >= 0) & (ids < VOCABULARY)
    rows = np.where(known[..., None], table[np.where(known, ids, 0)], 0)
    gradient = np.zeros_like(table)
    np.add.at(gradient, ids[known], weights[known])
    return rows, gradient


WEIGHTS = np.random.default_rng(1).normal(size=(8, 6, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("scatter_dim", [None, 1, -1])
def test_equals_take_and_sums_over_the_axis_once(scatter_dim, mesh):
    table, ids = operands(mesh)

    def lookup(table, ids):
        return parallel.embedding_lookup(table, ids, axis="model", scatter_dim=scatter_dim, mesh=mesh)

    def loss(table, ids):
        return (lookup(table, ids) * WEIGHTS).sum()

    rows, gradient = oracle(table, ids, WEIGHTS)
    result = sw.jit(lookup)(table, ids)
    np.testing.assert_allclose(result, rows)
    computed = sw.jit(sw.grad(loss))(table, ids)
    np.testing.assert_allclose(computed, gradient, rtol=1e-5, atol=1e-6)
    assert computed.sharding.spec == P("model")  # as the table

    (forward,) = sw.jit(lookup).lower(table, ids).plan.collectives
    result_bytes = 2 * 6 * FEATURES * 4  # per device, before the sum
    backward = [c for c in sw.jit(sw.grad(loss)).lower(table, ids).plan.collectives if c.axes == ("model",)]
    if scatter_dim is None:
        assert (forward.kind, forward.axes, forward.sent) == ("all_reduce", ("model",), result_bytes)
        assert result.sharding.spec == P("data") and backward == []
    else:
        assert (forward.kind, forward.axes, forward.sent) == ("reduce_scatter", ("model",), result_bytes / 2)
        assert result.sharding.spec == P("data", "model")
        assert all(c.type != "f32[12,5]" for c in backward)  # neither the table nor its gradient moves along the axis


def test_inside_a_users_shard_map(mesh):
    table, ids = operands(mesh)

    def loss(table, ids, weights):
        return sw.lax.psum((parallel.embedding_lookup(table, ids, axis="model") * weights).sum(), "data")

    specs = P("model"), P("data"), P("data")
    rows, gradient = oracle(table, ids, WEIGHTS)
    for check_vma in (True, False):
        mapped = sw.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
        value, computed = sw.jit(sw.value_and_grad(mapped))(table, ids, WEIGHTS)
        np.testing.assert_allclose(value, (rows * WEIGHTS).sum(), rtol=1e-5)
        np.testing.assert_allclose(computed, gradient, rtol=1e-5, atol=1e-6)


def test_table_that_is_not_sharded_has_the_same_rule_for_unknown_ids(mesh):
    table, ids = operands(mesh)
    rows, _ = oracle(table, ids, WEIGHTS)
    np.testing.assert_allclose(parallel.embedding_lookup(np.asarray(table), np.asarray(ids), axis=None), rows)
    small = np.array([3, 255], np.uint8)
    np.testing.assert_allclose(
        parallel.embedding_lookup(table, small, axis="model", mesh=mesh), [np.asarray(table)[3], np.zeros(FEATURES)]
    )


def test_bad_operands_are_errors(mesh):
    table, ids = operands(mesh)

    def check(message, *args, **keywords):
        with pytest.raises(StrategyError, match=message):
            parallel.embedding_lookup(*args, **{"axis": "model", "mesh": mesh, **keywords})

    check("ids must be integers, indices of the vocabulary", table, WEIGHTS)
    check("table must be a matrix", ids.reshape(-1), ids)
    check("the mesh has no axis 'vocabulary'", table, ids, axis="vocabulary")
    check("is 23, which the 2 devices along 'model' do not divide", np.asarray(table)[:23], ids)
    check("scatter_dim=2 is not a dim of ids", table, ids, scatter_dim=2)
    check("dim 0 of ids .* has size 7, which the 2 devices do not divide", table, ids[:7], scatter_dim=0)
    check("scatter_dim=0 needs an axis", table, ids, scatter_dim=0, axis=None)

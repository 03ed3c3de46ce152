"""Regression tests for partitioning bugs that were reported in other projects, named by issue.

Those of single ops are in tests/compiler/ops and tests/lax.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def placed(mesh, *arrays_and_specs):
    return [sw.device_put(x, NamedSharding(mesh, spec)) for x, spec in arrays_and_specs]


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


@pytest.fixture(scope="module")
def line():
    return sw.make_mesh((8,), ("data",))


class TestGradientAccumulationReshape:
    """xla#13306: reshaping a batch to microbatches × rows replicates everything."""

    def test_the_reshape_itself_moves_nothing(self, line):
        (x,) = placed(line, (numbers(32, 3), P("data")))
        plan = sw.explain(lambda x: jnp.tanh(x.reshape(4, 8, 3) * 2).reshape(32, 3))(x)
        assert plan.collectives == []

    def test_microbatches_that_are_returned_move_less_than_two_shards(self, line):
        """The result is resharded: each microbatch is on two devices, and no spec on the user's mesh says that."""
        (x,) = placed(line, (numbers(512, 64), P("data")))
        plan = sw.explain(lambda x: x.reshape(4, 128, 64) * 2)(x)
        assert sum(row.sent for row in plan.collectives) <= 2 * x.nbytes / 8
        assert sw.jit(lambda x: x.reshape(4, 128, 64) * 2)(x).sharding.spec == P(None, "data")

    def test_microbatches_over_all_devices_move_two_shards(self, line):
        (x,) = placed(line, (numbers(4096, 64), P("data")))
        micro = NamedSharding(line, P(None, "data"))

        def step(x):
            return lax.with_sharding_constraint(x.reshape(4, 1024, 64), micro).sum(1)

        plan = sw.explain(step)(x)
        moved = [row for row in plan.collectives if row.kind != "all_reduce"]
        assert sum(row.sent for row in moved) <= 2 * x.nbytes / 8
        np.testing.assert_allclose(sw.jit(step)(x), np.asarray(x).reshape(4, 1024, 64).sum(1), rtol=1e-4, atol=1e-4)

    def test_a_loop_over_microbatches_keeps_all_devices_at_work(self, line):
        """Without a constraint, each microbatch is sharded over all 8 devices nevertheless."""
        x, w = placed(line, (numbers(1024, 128), P("data")), (numbers(128, 128), P()))

        def loss(w, x):
            def micro(total, rows):
                return total + jnp.sum(jnp.tanh(rows @ w) ** 2), None

            return lax.scan(micro, jnp.zeros(()), x.reshape(4, 256, 128))[0]

        local = sw.explain(sw.jit(sw.grad(loss)))(w, x).stages.local
        dots = [equation for equation in local.program.walk() if equation.op.name == "dot"]
        assert len(dots) >= 2
        assert all(32 in equation.inputs[0].type.shape for equation in dots)
        got = sw.jit(sw.grad(loss))(w, x)
        np.testing.assert_allclose(got, sw.grad(loss)(np.asarray(w), np.asarray(x)), rtol=1e-3, atol=1e-3)


class TestHeads:
    """marin#7247: splitting and merging heads of the model dim under tensor parallelism."""

    def test_split_and_merge_move_nothing(self, mesh):
        (x,) = placed(mesh, (numbers(8, 6, 32), P("data", None, "model")))
        plan = sw.explain(lambda x: jnp.swapaxes(x.reshape(8, 6, 4, 8), 1, 2))(x)
        assert plan.collectives == []
        (y,) = placed(mesh, (numbers(8, 4, 6, 8), P("data", "model")))
        plan = sw.explain(lambda y: jnp.swapaxes(y, 1, 2).reshape(8, 6, 32))(y)
        assert plan.collectives == []

    def test_heads_that_do_not_divide(self, mesh):
        """3 heads over 2 devices: the reshape pads, and only the elements beyond the even split move."""
        (x,) = placed(mesh, (numbers(8, 3, 16), P("data", "model")))

        def merge(x):
            return x.reshape(8, 48) * 2

        plan = sw.explain(merge)(x)
        assert plan.wire_bytes <= 8 / 4 * 8 * 4  # half a head, for 2 rows
        np.testing.assert_array_equal(sw.jit(merge)(x), np.asarray(x).reshape(8, 48) * 2)


def test_uneven_batch_is_flattened_without_communication(mesh):
    """jax#26946: if a dim is not divisible, the array is silently replicated."""
    (x,) = placed(mesh, (numbers(6, 5, 7), P("data")))
    (w,) = placed(mesh, (numbers(7, 8), P(None, "model")))

    def layer(x, w):
        return (x.reshape(30, 7) @ w).reshape(6, 5, 8)

    assert sw.explain(layer)(x, w).collectives == []
    got = sw.jit(layer)(x, w)
    assert got.sharding.spec == P("data", None, "model")
    np.testing.assert_allclose(got, np.asarray(x) @ np.asarray(w), rtol=1e-5, atol=1e-5)


def test_product_with_a_transposed_operand_gathers_neither(mesh):
    """xla#4062: dot + transpose gathers both operands."""
    x, w = placed(mesh, (numbers(64, 32), P("data", "model")), (numbers(48, 32), P(None, "model")))
    plan = sw.explain(lambda x, w: jnp.tanh(x @ w.T))(x, w)
    assert plan.counts() == {"all_reduce": 1} or plan.counts() == {"reduce_scatter": 1}
    assert plan.wire_bytes <= 2 * 16 * 48 * 4 / 2


def test_a_batch_parallel_op_does_not_gather(mesh):
    """jax#20381: an unnecessary all-gather in a batch-parallel op."""
    x, w = placed(mesh, (numbers(64, 10, 16), P(("data", "model"))), (numbers(16, 16), P()))

    def attention(x, w):
        q, k = x @ w, x @ w.T
        scores = jnp.einsum("btd,bsd->bts", q, k)
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        return jnp.einsum("bts,bsd->btd", weights / weights.sum(-1, keepdims=True), x)

    assert sw.explain(attention)(x, w).collectives == []


def test_sum_inside_a_loop_is_per_iteration(mesh):
    """xla#49143: an all-reduce is wrongly hoisted out of a scan whose iterations depend on the sum."""
    (x,) = placed(mesh, (numbers(5, 16), P(None, "data")))

    def normalized(x):
        def turn(carry, row):
            total = jnp.sum(row * carry)  # over devices, of this iteration's row
            return carry / (1 + jnp.abs(total)), total

        return lax.scan(turn, jnp.ones(16), x)

    for got, wanted in zip(sw.jit(normalized)(x), normalized(np.asarray(x)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_maximum_inside_a_loop_is_not_a_sum_of_maxima(mesh):
    """xla#49143, with a reduction that does not distribute over the loop's addition."""
    (x,) = placed(mesh, (numbers(5, 16), P(None, "data")))

    def total(x):
        return lax.scan(lambda total, row: (total + row.max(), None), jnp.zeros(()), x)[0]

    np.testing.assert_allclose(sw.jit(total)(x), np.asarray(x).max(1).sum(), rtol=1e-5)


@pytest.mark.parametrize("rows", [16, 13])
def test_cumsum_along_a_sharded_dim(mesh, rows):
    """jax#21403: cumsum is wrong when partitioned."""
    x = np.arange(rows * 3, dtype=np.int32).reshape(rows, 3) % 7
    for spec in (P("data"), P(("data", "model")), P("model", "data")):
        (y,) = placed(mesh, (x, spec))
        np.testing.assert_array_equal(sw.jit(lambda x: jnp.cumsum(x, 0))(y), x.cumsum(0))
        np.testing.assert_array_equal(sw.jit(lambda x: lax.cumsum(x, 0, reverse=True))(y), x[::-1].cumsum(0)[::-1])


@pytest.mark.parametrize("columns", [64, 45])
def test_top_k_along_a_sharded_dim(mesh, columns):
    """jax#19271: top_k is wrong when partitioned; equal values too come from the lowest index."""
    x = (np.arange(4 * columns, dtype=np.int32) * 7919 % 13).reshape(4, columns)
    (y,) = placed(mesh, (x, P(None, ("data", "model"))))
    values, places = sw.jit(lambda x: lax.top_k(x, 9))(y)
    wanted = np.argsort(-x, axis=1, kind="stable")[:, :9]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))

"""roll along a sharded dim: each device sends the elements that cross a shard boundary, once."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.roll import Roll
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("data", "model"))
ROWS = P("data", None)


def local_of(function, shape, spec=ROWS):
    x = sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(MESH, spec))
    return sw.jit(function).lower(x)._prepared.stages.local


def sent(local):
    return [(equation.op.name, local.bytes_sent(equation)) for equation in local.collectives()]


@pytest.mark.parametrize(("by", "rows"), [(1, 1), (-1, 1), (4, 4), (3, 3), (5, 4), (8, 4), (15, 1), (13, 3)], ids=str)
def test_each_device_sends_the_rows_that_cross_a_shard_boundary(by, rows):
    """16 rows in shards of 4: a device sends at most its shard."""
    local = local_of(lambda x: jnp.roll(x, by, 0), (16, 6))
    assert sent(local) == [("rotate", rows * 6 * 4)]
    x = np.arange(96, dtype=np.float32).reshape(16, 6)
    np.testing.assert_array_equal(evaluate_shards(local, [x])[0], np.roll(x, by, 0))


def test_a_roll_by_the_size_sends_nothing():
    assert sent(local_of(lambda x: jnp.roll(x, 16, 0), (16, 6))) == []


def test_a_roll_along_an_unsharded_dim_sends_nothing():
    assert sent(local_of(lambda x: jnp.roll(x, 2, 1), (16, 6))) == []


def test_the_transpose_rolls_back_with_one_rotate():
    local = local_of(lambda x: sw.vjp(lambda x: jnp.roll(x, 1, 0), x)[1](x)[0], (16, 6))
    assert sent(local) == [("rotate", 6 * 4)]
    x = np.arange(96, dtype=np.float32).reshape(16, 6)
    np.testing.assert_array_equal(evaluate_shards(local, [x])[0], np.roll(x, -1, 0))


@pytest.mark.parametrize("by", [1, 3, 7, 14])
def test_uneven_shards(by):
    local = local_of(lambda x: jnp.roll(x, by, 0), (15, 6))
    assert {name for name, _ in sent(local)} == {"exchange_windows"}
    x = np.arange(90, dtype=np.float32).reshape(15, 6)
    np.testing.assert_array_equal(evaluate_shards(local, [x])[0], np.roll(x, by, 0))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("size", [16, 15])
def test_exchanged_bytes_equals_the_bytes_sent(size, count):
    op, x = Roll(0, 3), ArrayType((size, 6), np.float32)
    spec = ROWS if count == 4 else P("model", None)
    local = local_of(lambda x: jnp.roll(x, 3, 0), x.shape, spec)
    assert op.exchanged_bytes(0, count, x) == sum(count for _, count in sent(local))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Roll(2, 1), "roll: dim 2 does not exist in f32\\[3,4\\]"),
        (Roll(0, 3), "the shift 3 is not in the range of dim 0 of f32\\[3,4\\]"),
    ],
    ids=["dim", "by"],
)
def test_wrong_operands(op, message):
    with pytest.raises(TypeError, match=message):
        op.out_type(ArrayType((3, 4), np.float32))

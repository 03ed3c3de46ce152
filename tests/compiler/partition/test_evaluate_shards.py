"""The simulation: shards and global arrays, garbage in padding, and its errors."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce, DeviceIndex
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.partition.evaluate_shards import assemble_shards, evaluate_shards, split_into_shards
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.errors import ProgramError

MESH = AbstractMesh((4, 2), ("a", "b"))
ROWS = Layout((("a",), ()))


def placed(shape, layout, dtype=np.float32):
    return Placement(ArrayType(shape, dtype), layout)


def local(function, inputs, outputs):
    """Return a local program that applies `function` to shards."""
    types = [p.type.with_shape(p.shard_shape(MESH)) for p in inputs]
    program, _ = build(lambda *args: [function(*args)], types, "local")
    return verify_local(LocalProgram(program, MESH, tuple(inputs), tuple(outputs)))


@pytest.mark.parametrize("shape", [(8, 4), (10, 3), (1, 1), (3, 7), (5, 2)])
@pytest.mark.parametrize(
    "dims", [((), ()), (("a",), ()), ((), ("b",)), (("b",), ("a",)), (("b", "a"), ()), ((), ("a", "b"))]
)
def test_shards_assemble_to_the_array(shape, dims):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placement = placed(shape, Layout(dims))
    shards = split_into_shards(placement, array, MESH)
    assert {shard.shape for shard in shards} == {placement.shard_shape(MESH)}
    np.testing.assert_array_equal(assemble_shards(placement, shards, MESH), array)


def test_a_device_holds_the_shard_of_its_mesh_position():
    # In device order "a" is major, in P(("b", "a")) "b" is major: device 3 is at a=1, b=1 and holds shard 5.
    array = np.arange(16, dtype=np.float32)
    shards = split_into_shards(placed((16,), Layout((("b", "a"),))), array, MESH)
    assert shards[3].tolist() == [10, 11]


def test_padding_starts_as_garbage():
    floats = split_into_shards(placed((5,), Layout((("a",),))), np.zeros(5, np.float32), MESH)
    assert [np.isnan(shard).sum() for shard in floats[::2]] == [0, 0, 1, 2]
    integers = split_into_shards(placed((5,), Layout((("a",),)), np.int32), np.zeros(5, np.int32), MESH)
    assert [(shard != 0).sum() for shard in integers[::2]] == [0, 0, 1, 2]


def test_a_shard_past_the_end_is_empty():
    index = Layout((("a",),)).shard_indices((5,), MESH)
    assert [(part.start, part.stop) for (part,) in index[::2]] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_a_sum_that_reads_padding_is_nan():
    unmasked = local(
        lambda x: AllReduce(("a",), SUM)(Sum((0, 1))(x)), [placed((10, 2), ROWS)], [placed((), Layout(()))]
    )
    assert np.isnan(evaluate_shards(unmasked, [np.ones((10, 2))])[0])


def test_an_all_gather_assembles_the_array():
    gathers = local(AllGather(0, ("a",), 4), [placed((8, 2), ROWS)], [placed((8, 2), Layout(((), ())))])
    array = np.arange(16, dtype=np.float32).reshape(8, 2)
    np.testing.assert_array_equal(evaluate_shards(gathers, [array])[0], array)


def test_devices_that_disagree_on_a_replicated_value_raise():
    def differs(x):
        return Add()(x, Broadcast(x.type.shape, ())(Convert(np.dtype(np.float32))(DeviceIndex(("b",))())))

    wrong = local(differs, [placed((8, 2), ROWS)], [placed((8, 2), ROWS)])
    with pytest.raises(ProgramError, match="devices disagree on part"):
        evaluate_shards(wrong, [np.zeros((8, 2))])
    right = local(differs, [placed((8, 2), Layout((("a",), ("b",))))], [placed((8, 2), Layout((("a",), ("b",))))])
    assert evaluate_shards(right, [np.zeros((8, 2))])[0].tolist() == [[0.0, 1.0]] * 8


def test_a_shard_of_the_wrong_shape_raises():
    with pytest.raises(ProgramError, match="a shard of f32"):
        local(lambda x: x, [placed((8, 2), ROWS)], [placed((8, 2), Layout(((), ())))])


def test_an_unreduced_output_raises():
    term = Layout((), (("a", SUM),))
    with pytest.raises(ProgramError, match="is unreduced"):
        local(Sum((0, 1)), [placed((8, 2), ROWS)], [placed((), term)])


@pytest.mark.parametrize("rows", [1, 3, 8, 10, 13])
def test_an_unevenly_sharded_program_equals_one_device(rows):
    def function(x, w):
        product = x @ w
        return [product, product.sum(), (product / (1 + product * product)).sum(0)]

    types = [ArrayType((rows, 6), np.float32), ArrayType((6, 5), np.float32)]
    program, _ = build(function, types, "uneven")
    pins = [pin_of(P("a", "b"), types[0].shape, MESH), pin_of(P("b", None), types[1].shape, MESH)]
    stages = run_stages(program, MESH, pins, [None] * 3)
    rng = np.random.default_rng(rows)
    args = [rng.integers(-3, 4, type.shape).astype(np.float32) for type in types]
    for found, expected in zip(evaluate_shards(stages.local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_dim_that_divides_evenly_is_never_padded():
    def function(x, w):
        return [(x @ w).sum(0)]

    types = [ArrayType((8, 16), np.float32), ArrayType((16, 6), np.float32)]
    program, _ = build(function, types, "even")
    pins = [pin_of(P(("a", "b"), None), types[0].shape, MESH), pin_of(P(None, "b"), types[1].shape, MESH)]
    names = {equation.op.name for equation in run_stages(program, MESH, pins, [None]).local.program.equations}
    assert names.isdisjoint({"pad_or_trim", "select"})

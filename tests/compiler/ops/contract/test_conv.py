"""conv beyond the laws: what it refuses, what moves on a mesh, infinities beside uneven cuts."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import UndefinedPrimal, result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension
from shardwise.compiler.partition.simulate import simulate
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite

F32 = np.dtype(np.float32)
MESH = AbstractMesh((4, 2), ("data", "model"))


def images(stride=1, low=1, high=1, base=1, dilation=1, names=("bi01", "oi01", "bo01")):
    """A convolution along two spatial dims, alike in both."""
    return Conv(*names, *((number,) * 2 for number in (stride, low, high, base, dilation)), F32)


def row(stride=1, low=0, high=0, base=1, dilation=1, names=("bi0", "oi0", "bo0"), dtype=F32):
    return Conv(*names, *((number,) for number in (stride, low, high, base, dilation)), dtype)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (row(), "f32[2,3,7] f32[4,3]", "conv: 'oi0' names 3 dims, but f32[4,3] has 2"),
        (
            row(names=("bi0", "oi1", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: each dim needs a name, and 1 of them are spatial, not 'oi1'",
        ),
        (
            row(names=("bb0", "oi0", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: each dim needs a name, and 1 of them are spatial, not 'bb0'",
        ),
        (
            row(names=("bc0", "oi0", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: 'c' is in only one of 'bc0', 'oi0', 'bo0'",
        ),
        (
            row(),
            "f32[2,3,7] f32[4,2,3]",
            "conv: dims 1 of f32[2,3,7] and 1 of f32[4,2,3] must agree: both are 'i' in bi0 and oi0",
        ),
        (row(), "f32[2,3,7] f32[4,3,0]", "conv: the window along dim 2 must have 1 element or more, not 0"),
        (row(stride=0), "f32[2,3,7] f32[4,3,3]", "conv: the stride along dim 2 must be 1 or more, not 0"),
        (
            row(base=0),
            "f32[2,3,7] f32[4,3,3]",
            "conv: the dilation of the operand along dim 2 must be 1 or more, not 0",
        ),
        (row(), "f32[2,3,7] bf16[4,3,3]", "conv: operands must have one dtype, not f32[2,3,7] and bf16[4,3,3]"),
        (row(), "bool[2,3,7] bool[4,3,3]", "conv: needs numbers, not bool[2,3,7]"),
        (row(), "f64[2,3,7] f64[4,3,3]", "conv: f32 is too narrow for sums of products of f64[2,3,7]"),
        (row(), "i8[2,3,7] i8[4,3,3]", "conv: f32 is too narrow for sums of products of i8[2,3,7]"),
    ],
    ids=str,
)
def test_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def stages(body, shapes, specs):
    types = [ArrayType(shape, F32) for shape in shapes]
    program = rewrite("program", types, body)
    pins = [pin_of(spec, shape, MESH) for spec, shape in zip(specs, shapes, strict=True)]
    return program, run_stages(program, MESH, pins, [None] * len(program.outputs))


def check(program, found, shapes, rtol=1e-5):
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(F32) for shape in shapes]
    for ours, whole in zip(simulate(found.local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(ours, whole, rtol, 1e-4)


def moved(found):
    return [(step.op.name, found.local.bytes_sent(step)) for step in found.local.collectives()]


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
def test_rows_that_are_cut_send_one_row_to_each_side_and_nothing_else(rows):
    """Reported against XLA: convolutions along a cut dim gather everything."""
    shapes, specs = [(2, 3, rows, 8), (4, 3, 3, 3)], [P(None, None, "data", None), P()]
    program, found = stages(lambda x, k: [images()(x, k)], shapes, specs)
    assert moved(found) == [("take_window", 2 * 2 * 3 * 8 * 4)]  # two rows of 2 × 3 × 8 floats
    assert found.local.outputs[0].layout.dims == ((), (), ("data",), ())
    check(program, found, shapes)


def test_both_spatial_dims_may_be_cut():
    shapes, specs = [(2, 3, 16, 10), (4, 3, 3, 3)], [P(None, None, "data", "model"), P()]
    program, found = stages(lambda x, k: [images()(x, k)], shapes, specs)
    # A row of 5 to each side; then columns of 4 + 2, of which each of two devices has one neighbour's.
    assert moved(found) == [("take_window", 2 * 2 * 3 * 5 * 4), ("take_window", 2 * 2 * 3 * 6 * 4)]
    assert found.local.outputs[0].layout.dims == ((), (), ("data",), ("model",))
    check(program, found, shapes)


def test_windows_that_do_not_overlap_send_nothing():
    op = Conv("b01i", "01io", "b01o", (4, 4), (0, 0), (0, 0), (1, 1), (1, 1), F32)
    shapes, specs = [(2, 64, 64, 16), (4, 4, 16, 8)], [P(None, "data", "model", None), P()]
    program, found = stages(lambda x, k: [op(x, k)], shapes, specs)
    assert moved(found) == []
    check(program, found, shapes)


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
def test_derivatives_of_rows_that_are_cut(rows):
    """Rows to each side for each of the two convolutions, and one sum for the kernel: nothing is gathered."""
    shapes = [(2, 3, rows, 8), (4, 3, 3, 3), (2, 4, rows, 8)]
    cut = P(None, None, "data", None)

    def derivatives(x, kernel, cotangent):
        op = images()
        to_x, _ = op.transpose(cotangent, UndefinedPrimal(x.type), kernel)
        _, to_kernel = op.transpose(cotangent, x, UndefinedPrimal(kernel.type))
        return [to_x, to_kernel]

    program, found = stages(derivatives, shapes, [cut, P(), cut])
    kernel = 2 * 4 * 3 * 3 * 3 * 4 * 3 / 4
    rows_sent = [("take_window", 2 * 2 * channels * 8 * 4) for channels in (4, 3)]
    assert sorted(moved(found)) == sorted([*rows_sent, ("all_reduce", kernel)])
    assert [placement.layout.dims for placement in found.local.outputs] == [((), (), ("data",), ()), ((),) * 4]
    check(program, found, shapes)


@pytest.mark.parametrize(
    ("lhs", "rhs", "steps"),
    [
        (P("data"), P(), []),
        (P(), P("model"), []),
        (P("data"), P("model"), []),
        (P(None, "data"), P(None, "data"), ["all_reduce"]),
    ],
    ids=["batch", "out features", "both", "in features"],
)
def test_other_dims_are_cut_like_those_of_a_product(lhs, rhs, steps):
    shapes = [(8, 4, 6, 6), (4, 4, 3, 3)]
    program, found = stages(lambda x, k: [images()(x, k)], shapes, [lhs, rhs])
    assert [name for name, _ in moved(found)] == steps
    check(program, found, shapes)


@pytest.mark.parametrize("batch", [8, 6], ids=["even", "uneven"])
def test_a_grouped_convolution_keeps_its_batch_cut(batch):
    """openxla/xla#47945: a batch that is cut is gathered for a grouped convolution."""
    op = images(names=("bgi01", "goi01", "bgo01"))
    shapes, specs = [(batch, 2, 3, 6, 6), (2, 4, 3, 3, 3), (batch, 2, 4, 6, 6)], [P("data"), P(), P("data")]

    def step(x, kernel, cotangent):
        to_x, _ = op.transpose(cotangent, UndefinedPrimal(x.type), kernel)
        _, to_kernel = op.transpose(cotangent, x, UndefinedPrimal(kernel.type))
        return [op(x, kernel), to_x, to_kernel]

    program, found = stages(step, shapes, specs)
    assert [name for name, _ in moved(found)] == ["all_reduce"]  # of what flows to the kernel
    assert all(found.local.outputs[number].layout.dims[0] == ("data",) for number in (0, 1))
    check(program, found, shapes)


def test_groups_may_be_cut():
    op = images(names=("bgi01", "goi01", "bgo01"))
    shapes = [(2, 8, 1, 6, 6), (8, 2, 1, 3, 3)]
    program, found = stages(lambda x, k: [op(x, k)], shapes, [P(None, "data"), P("data")])
    assert moved(found) == []
    check(program, found, shapes)


@pytest.mark.parametrize("size", [8, 7, 5], ids=["even", "uneven", "some have none"])
def test_a_kernels_padding_does_not_meet_infinities(size):
    """The kernel is cut with the array, and past its end there are zeros: one times infinity would be NaN."""
    shapes = [(1, 1, size + 2), (1, 1, size)]
    program, found = stages(lambda x, k: [row()(x, k)], shapes, [P(None, None, "data"), P(None, None, "data")])
    args = [np.ones(shape, F32) for shape in shapes]
    for at in range(size + 2):
        args[0][:] = 1
        args[0][..., at] = np.inf
        np.testing.assert_array_equal(simulate(found.local, args)[0], evaluate(program, args)[0])


@pytest.mark.parametrize("size", range(7))
@pytest.mark.parametrize(
    "sliding",
    [WindowDimension(3, 1, 1, 1), WindowDimension(2, 3, 0, 2, 2), WindowDimension(3, 2, -1, 2, 3, 2)],
    ids=str,
)
def test_slidings_undo_each_other(sliding, size):
    places = sliding.output_size(size)
    found = [
        (j, p, q)
        for j in range(places)
        for p in range(sliding.window)
        for q in range(size)
        if sliding.stride * j + sliding.window_dilation * p - sliding.low == sliding.base_dilation * q
    ]

    def pairs(other, inner, count):
        return {
            (j, p, q)
            for j in range(count)
            for p in range(other.window)
            for q in range(inner)
            if other.stride * j + other.window_dilation * p - other.low == other.base_dilation * q
        }

    back = sliding.transposed(size)
    assert back.output_size(places) == size
    assert pairs(back, places, size) == {(q, sliding.window - 1 - p, j) for j, p, q in found}
    if places:
        by_position = sliding.kernel_gradient(size)
        assert by_position.output_size(size) == sliding.window
        assert pairs(by_position, size, sliding.window) == {(p, j, q) for j, p, q in found}

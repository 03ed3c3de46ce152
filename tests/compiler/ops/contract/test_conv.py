"""conv: wrong operands, communication on a mesh, infinities next to uneven shards."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import UndefinedPrimal, result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite

F32 = np.dtype(np.float32)
MESH = AbstractMesh((4, 2), ("data", "model"))


def conv_2d(stride=1, low=1, high=1, base=1, dilation=1, names=("bi01", "oi01", "bo01")):
    """Return a convolution along two spatial dims, with the same parameters in both."""
    return Conv(*names, *((number,) * 2 for number in (stride, low, high, base, dilation)), F32)


def conv_1d(stride=1, low=0, high=0, base=1, dilation=1, names=("bi0", "oi0", "bo0"), dtype=F32):
    return Conv(*names, *((number,) for number in (stride, low, high, base, dilation)), dtype)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (conv_1d(), "f32[2,3,7] f32[4,3]", "conv: 'oi0' names 3 dims, but f32[4,3] has 2"),
        (
            conv_1d(names=("bi0", "oi1", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: dims must have distinct names, and 1 of them must be spatial, not 'oi1'",
        ),
        (
            conv_1d(names=("bb0", "oi0", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: dims must have distinct names, and 1 of them must be spatial, not 'bb0'",
        ),
        (
            conv_1d(names=("bc0", "oi0", "bo0")),
            "f32[2,3,7] f32[4,3,3]",
            "conv: 'c' must be in two or three of 'bc0', 'oi0', 'bo0', not in one",
        ),
        (
            conv_1d(),
            "f32[2,3,7] f32[4,2,3]",
            "conv: dims 1 of f32[2,3,7] and 1 of f32[4,2,3] must agree: both are 'i' in bi0 and oi0",
        ),
        (conv_1d(), "f32[2,3,7] f32[4,3,0]", "conv: the window along dim 2 must have 1 element or more, not 0"),
        (conv_1d(stride=0), "f32[2,3,7] f32[4,3,3]", "conv: the stride along dim 2 must be 1 or more, not 0"),
        (
            conv_1d(base=0),
            "f32[2,3,7] f32[4,3,3]",
            "conv: the dilation of the operand along dim 2 must be 1 or more, not 0",
        ),
        (conv_1d(), "f32[2,3,7] bf16[4,3,3]", "conv: operands must have one dtype, not f32[2,3,7] and bf16[4,3,3]"),
        (conv_1d(), "bool[2,3,7] bool[4,3,3]", "conv: needs numbers, not bool[2,3,7]"),
        (conv_1d(), "f64[2,3,7] f64[4,3,3]", "conv: f32 is too narrow for sums of products of f64[2,3,7]"),
        (conv_1d(), "i8[2,3,7] i8[4,3,3]", "conv: f32 is too narrow for sums of products of i8[2,3,7]"),
    ],
    ids=str,
)
def test_rejects_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def compile_stages(body, shapes, specs):
    types = [ArrayType(shape, F32) for shape in shapes]
    program = rewrite("program", types, body)
    pins = [pin_of(spec, shape, MESH) for spec, shape in zip(specs, shapes, strict=True)]
    return program, run_stages(program, MESH, pins, [None] * len(program.outputs))


def check(program, compiled, shapes, rtol=1e-5):
    """Check that the partitioned program computes the same as the program."""
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(F32) for shape in shapes]
    for actual, expected in zip(evaluate_shards(compiled.local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(actual, expected, rtol, 1e-4)


def communication(compiled):
    """Return the name and the bytes sent of each collective."""
    return [(step.op.name, compiled.local.bytes_sent(step)) for step in compiled.local.collectives()]


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
def test_sharded_rows_send_only_one_row_to_each_neighbour(rows):
    """Reported against XLA: convolutions along a sharded dim gather the array."""
    shapes, specs = [(2, 3, rows, 8), (4, 3, 3, 3)], [P(None, None, "data", None), P()]
    program, compiled = compile_stages(lambda x, k: [conv_2d()(x, k)], shapes, specs)
    assert communication(compiled) == [("take_window", 2 * 2 * 3 * 8 * 4)]  # two rows of 2 × 3 × 8 floats
    assert compiled.local.outputs[0].layout.dims == ((), (), ("data",), ())
    check(program, compiled, shapes)


def test_both_spatial_dims_can_be_sharded():
    shapes, specs = [(2, 3, 16, 10), (4, 3, 3, 3)], [P(None, None, "data", "model"), P()]
    program, compiled = compile_stages(lambda x, k: [conv_2d()(x, k)], shapes, specs)
    # A row of 5 to each neighbour; then a column of 4 + 2 to the one neighbour along the other axis.
    assert communication(compiled) == [("take_window", 2 * 2 * 3 * 5 * 4), ("take_window", 2 * 3 * 6 * 4)]
    assert compiled.local.outputs[0].layout.dims == ((), (), ("data",), ("model",))
    check(program, compiled, shapes)


def test_windows_without_overlap_communicate_nothing():
    op = Conv("b01i", "01io", "b01o", (4, 4), (0, 0), (0, 0), (1, 1), (1, 1), F32)
    shapes, specs = [(2, 64, 64, 16), (4, 4, 16, 8)], [P(None, "data", "model", None), P()]
    program, compiled = compile_stages(lambda x, k: [op(x, k)], shapes, specs)
    assert communication(compiled) == []
    check(program, compiled, shapes)


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
def test_derivatives_with_sharded_rows(rows):
    """Both convolutions exchange halos, and the kernel's gradient is all-reduced: nothing is gathered."""
    shapes = [(2, 3, rows, 8), (4, 3, 3, 3), (2, 4, rows, 8)]
    sharded = P(None, None, "data", None)

    def derivatives(x, kernel, cotangent):
        op = conv_2d()
        x_cotangent, _ = op.transpose(cotangent, UndefinedPrimal(x.type), kernel)
        _, kernel_cotangent = op.transpose(cotangent, x, UndefinedPrimal(kernel.type))
        return [x_cotangent, kernel_cotangent]

    program, compiled = compile_stages(derivatives, shapes, [sharded, P(), sharded])
    kernel_bytes = 2 * 4 * 3 * 3 * 3 * 4 * 3 / 4
    halos = [("take_window", 2 * 2 * channels * 8 * 4) for channels in (4, 3)]
    assert sorted(communication(compiled)) == sorted([*halos, ("all_reduce", kernel_bytes)])
    assert [placement.layout.dims for placement in compiled.local.outputs] == [((), (), ("data",), ()), ((),) * 4]
    check(program, compiled, shapes)


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
def test_other_dims_are_sharded_as_in_a_matrix_product(lhs, rhs, steps):
    shapes = [(8, 4, 6, 6), (4, 4, 3, 3)]
    program, compiled = compile_stages(lambda x, k: [conv_2d()(x, k)], shapes, [lhs, rhs])
    assert [name for name, _ in communication(compiled)] == steps
    check(program, compiled, shapes)


@pytest.mark.parametrize("batch", [8, 6], ids=["even", "uneven"])
def test_a_grouped_convolution_keeps_its_batch_sharded(batch):
    """openxla/xla#47945: a sharded batch is gathered for a grouped convolution."""
    op = conv_2d(names=("bgi01", "goi01", "bgo01"))
    shapes, specs = [(batch, 2, 3, 6, 6), (2, 4, 3, 3, 3), (batch, 2, 4, 6, 6)], [P("data"), P(), P("data")]

    def step(x, kernel, cotangent):
        x_cotangent, _ = op.transpose(cotangent, UndefinedPrimal(x.type), kernel)
        _, kernel_cotangent = op.transpose(cotangent, x, UndefinedPrimal(kernel.type))
        return [op(x, kernel), x_cotangent, kernel_cotangent]

    program, compiled = compile_stages(step, shapes, specs)
    assert [name for name, _ in communication(compiled)] == ["all_reduce"]  # of the kernel's cotangent
    assert all(compiled.local.outputs[number].layout.dims[0] == ("data",) for number in (0, 1))
    check(program, compiled, shapes)


def test_groups_can_be_sharded():
    op = conv_2d(names=("bgi01", "goi01", "bgo01"))
    shapes = [(2, 8, 1, 6, 6), (8, 2, 1, 3, 3)]
    program, compiled = compile_stages(lambda x, k: [op(x, k)], shapes, [P(None, "data"), P("data")])
    assert communication(compiled) == []
    check(program, compiled, shapes)


@pytest.mark.parametrize("size", [8, 7, 5], ids=["even", "uneven", "empty shards"])
def test_the_padding_of_a_kernel_is_not_multiplied_with_infinity(size):
    """The kernel is sharded with the array, and padded with zeros: zero times infinity would be NaN."""
    shapes = [(1, 1, size + 2), (1, 1, size)]
    program, compiled = compile_stages(
        lambda x, k: [conv_1d()(x, k)], shapes, [P(None, None, "data"), P(None, None, "data")]
    )
    args = [np.ones(shape, F32) for shape in shapes]
    for position in range(size + 2):
        args[0][:] = 1
        args[0][..., position] = np.inf
        np.testing.assert_array_equal(evaluate_shards(compiled.local, args)[0], evaluate(program, args)[0])


@pytest.mark.parametrize("size", range(7))
@pytest.mark.parametrize(
    "window",
    [WindowDimension(3, 1, 1, 1), WindowDimension(2, 3, 0, 2, 2), WindowDimension(3, 2, -1, 2, 3, 2)],
    ids=str,
)
def test_windows_of_derivatives_read_the_same_elements(window, size):
    def reads(window, outputs, size):
        """Return all (output, position, element): the output reads the element at that position of the window."""
        return {
            (j, p, q)
            for j in range(outputs)
            for p in range(window.window)
            for q in range(size)
            if window.stride * j + window.window_dilation * p - window.low == window.base_dilation * q
        }

    outputs = window.output_size(size)
    expected = reads(window, outputs, size)
    transposed = window.transposed(size)
    assert transposed.output_size(outputs) == size
    assert reads(transposed, size, outputs) == {(q, window.window - 1 - p, j) for j, p, q in expected}
    if outputs:
        by_position = window.kernel_gradient(size)
        assert by_position.output_size(size) == window.window
        assert reads(by_position, window.window, size) == {(p, j, q) for j, p, q in expected}


@pytest.mark.parametrize(
    ("names", "is_copied"),
    [
        (("b01i", "01io", "b01o"), False),
        (("bi01", "bo01", "io01"), True),  # the gradient of a kernel: the first dim of the array is summed
    ],
)
def test_arrays_in_other_dim_orders_are_transposed_on_cpu(names, is_copied):
    types = tuple(ArrayType((4, 4, 4, 4), F32) for _ in range(2))
    copied = conv_2d(names=names).copied_bytes("cpu", *types)
    assert [size > 0 for size in copied] == [is_copied] * 2

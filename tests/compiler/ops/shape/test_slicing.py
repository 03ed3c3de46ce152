"""slice, pad, concatenate and reverse beyond the laws: errors, communication, derivatives of padding."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.transpose import transpose_program

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (
            Slice((0,), (1,), (1,)),
            "f32[3,4]",
            "slice: needs a start, a limit and a stride for each dim of f32[3,4], not (0,), (1,) and (1,)",
        ),
        (Slice((0, 2), (3, 5), (1, 1)), "f32[3,4]", "slice: 2:5 is out of bounds for dim 1 of f32[3,4]"),
        (Slice((2,), (1,), (1,)), "f32[3]", "slice: 2:1 is out of bounds for dim 0 of f32[3]"),
        (Slice((-1,), (1,), (1,)), "f32[3]", "slice: -1:1 is out of bounds for dim 0 of f32[3]"),
        (
            Slice((0,), (3,), (-1,)),
            "f32[3]",
            "slice: the stride of dim 0 must be 1 or more, not -1; use reverse to go backwards",
        ),
        (
            Pad((0,), (0,), (0, 0)),
            "f32[3] f32[]",
            "pad: needs a low, a high and an interior padding for each dim of f32[3], not (0,), (0,) and (0, 0)",
        ),
        (
            Pad((0,), (0,), (0,)),
            "f32[3] i32[]",
            "pad: the padding value of f32[3] must be a scalar of the same dtype, not i32[]",
        ),
        (
            Pad((0,), (0,), (0,)),
            "f32[3] f32[1]",
            "pad: the padding value of f32[3] must be a scalar of the same dtype, not f32[1]",
        ),
        (Pad((0,), (0,), (-1,)), "f32[3] f32[]", "pad: interior padding cannot be negative: (-1,)"),
        (
            Pad((-2,), (-2,), (0,)),
            "f32[3] f32[]",
            "pad: low -2 and high -2 remove more elements than dim 0 of f32[3] has",
        ),
        (Concatenate(0), "", "concatenate: needs at least one operand"),
        (Concatenate(1), "f32[3] f32[3]", "concatenate: dim 1 does not exist in f32[3]"),
        (
            Concatenate(0),
            "f32[3] i32[3]",
            "concatenate: operands must have one dtype and equal sizes in all dims but 0, not f32[3], i32[3]",
        ),
        (
            Concatenate(1),
            "f32[3,4] f32[2,4]",
            "concatenate: operands must have one dtype and equal sizes in all dims but 1, not f32[3,4], f32[2,4]",
        ),
        (
            Concatenate(1),
            "f32[3,4] f32[3]",
            "concatenate: operands must have one dtype and equal sizes in all dims but 1, not f32[3,4], f32[3]",
        ),
        (Reverse((0, 2)), "f32[3,4]", "reverse: dims [2] do not exist in f32[3,4]"),
        (Reverse((-1,)), "f32[3,4]", "reverse: dims [-1] do not exist in f32[3,4]"),
        (Reverse((1, 1)), "f32[3,4]", "reverse: a dim repeats in (1, 1)"),
    ],
    ids=str,
)
def test_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def along_columns(op):
    """Return a function that applies an op that changes the columns and not the rows."""
    return lambda x: [op(x, full((), 2, np.float32)) if isinstance(op, Pad) else op(x)]


CHANGE_COLUMNS = {
    "slice": lambda rows: Slice((0, 1), (rows, 5), (1, 2)),
    "pad": lambda rows: Pad((0, 2), (0, -1), (0, 1)),
    "reverse": lambda rows: Reverse((1,)),
    "concatenate": lambda rows: lambda x: Concatenate(1)(x, x, x),
}


def stages(body, shape, spec):
    """Return a program of one array that is sharded by `spec`, and its stages."""
    program = rewrite("program", [ArrayType(shape, np.float32)], body)
    return program, run_stages(program, MESH, [pin_of(spec, shape, MESH)], [None] * len(program.outputs))


@pytest.mark.parametrize("rows", [8, 7], ids=["even", "uneven"])
@pytest.mark.parametrize("name", CHANGE_COLUMNS)
def test_an_unchanged_dim_stays_sharded(name, rows):
    program, result = stages(along_columns(CHANGE_COLUMNS[name](rows)), (rows, 6), P("data", None))
    assert result.local.collectives() == []
    assert [placement.layout.dims for placement in result.local.outputs] == [(("data",), ())]
    x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
    np.testing.assert_array_equal(evaluate_shards(result.local, [x])[0], evaluate(program, [x])[0])


@pytest.mark.parametrize("columns", [6, 7], ids=["even", "uneven"])
@pytest.mark.parametrize("name", CHANGE_COLUMNS)
def test_only_the_changed_dim_needs_communication(name, columns):
    program, result = stages(along_columns(CHANGE_COLUMNS[name](8)), (8, columns), P("data", "model"))
    assert {(step.op.dim, step.op.axes) for step in result.local.collectives()} <= {(1, ("model",))}
    x = np.arange(8 * columns, dtype=np.float32).reshape(8, columns)
    np.testing.assert_array_equal(evaluate_shards(result.local, [x])[0], evaluate(program, [x])[0])


def test_partial_sums_pass_through_and_are_reduced_once():
    """A dot sharded along its contracting dim is partial; the all-reduce comes after the slices, on fewer elements."""

    def body(x):
        product = Dot(((0,), (0,)))(x, x)
        top, bottom = (Slice((row, 0), (row + 1, 16), (1, 1))(product) for row in (0, 15))
        return [Pad((0, 1), (0, -2), (0, 0))(Reverse((1,))(Concatenate(0)(top, bottom)), full((), 3, np.float32))]

    program, result = stages(body, (8, 16), P("data", None))
    (step,) = result.local.collectives()
    assert step.op.name == "all_reduce"
    assert step is result.local.program.equations[-1]
    x = np.arange(128, dtype=np.float32).reshape(8, 16) / 8
    np.testing.assert_allclose(evaluate_shards(result.local, [x])[0], evaluate(program, [x])[0])


def test_the_cotangent_of_the_padding_value_is_independent_of_the_operands():
    types = [ArrayType((3,), np.float32), ArrayType((), np.float32)]
    program = rewrite("padded", types, lambda x, value: [Pad((1,), (-1,), (1,))(x, value)])
    backward, reached = transpose_program(program, (True, True), (True,))
    assert reached == (True, True)
    to_x, to_value = evaluate(backward, [np.array([1, np.inf, 2, np.nan, 4], np.float32)])
    # The result is value, x[0], value, x[1], value: x[2] was cropped.
    np.testing.assert_array_equal(to_x, [np.inf, np.nan, 0])
    assert to_value == 1 + 2 + 4


@pytest.mark.parametrize("rows", [4096, 4095], ids=["even", "uneven"])
@pytest.mark.parametrize(
    ("function", "sent"),
    [
        (lambda x: Slice((1, 0), (x.type.shape[0], 64), (1, 1))(x), 1),
        (lambda x: Slice((0, 0), (x.type.shape[0] - 1, 64), (1, 1))(x), 0),
        (lambda x: Pad((2, 0), (0, 0), (0, 0))(x, full((), 7, np.float32)), 2),
    ],
    ids=["after the first", "before the last", "two in front"],
)
def test_a_shift_takes_rows_from_the_neighbour_only(function, sent, rows):
    """XLA gathers the whole operand of a slice along a sharded dim."""
    program, result = stages(lambda x: [function(x)], (rows, 64), P("data", None))
    steps = result.local.collectives()
    assert [step.op.name for step in steps] == ["take_window"] * bool(sent)
    assert sum(map(result.local.bytes_sent, steps)) <= (sent + 1) * 64 * 4  # uneven shards may shift by one more row
    x = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
    np.testing.assert_array_equal(evaluate_shards(result.local, [x])[0], evaluate(program, [x])[0])

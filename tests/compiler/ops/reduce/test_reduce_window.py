"""reduce_window beyond the laws: errors, communication, and the elements that its derivative selects."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.ops.reduce.window_argmax import GatherFromWindow, ScatterAddToWindow, WindowArgExtremum
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.reduction import AND, MAX, MIN, PROD, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program

MESH = AbstractMesh((4, 2), ("data", "model"))


def pool(reduction, window=3, stride=2, low=1, high=1):
    """Return a reduction of windows along the first of two dims."""
    return ReduceWindow(reduction, (window, 1), (stride, 1), (low, 0), (high, 0), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (
            ReduceWindow(AND, (2,), (1,), (0,), (0,), (1,), (1,)),
            "f32[3]",
            "reduce_window: no windowed and; supported: sum, prod, max, min",
        ),
        (
            ReduceWindow(SUM, (2,), (1,), (0,), (0,), (1,), (1,)),
            "f32[3,4]",
            "reduce_window: each parameter needs one entry per dim of f32[3,4], "
            "not ((2,), (1,), (0,), (0,), (1,), (1,))",
        ),
        (pool(SUM, window=0), "f32[3,4]", "reduce_window: the window along dim 0 must have 1 element or more, not 0"),
        (pool(SUM), "bool[3,4]", "reduce_window: sum needs numbers, not bool[3,4]"),
        (pool(MAX), "c64[3,4]", "reduce_window: max needs integers, floats or booleans, not c64[3,4]"),
        (
            WindowArgExtremum(0, 2, 1, 0, 0, 1, 1, "GT"),
            "c64[3]",
            "window_arg_extremum: complex numbers have no order: c64[3]",
        ),
        (WindowArgExtremum(1, 2, 1, 0, 0, 1, 1, "GT"), "f32[3]", "window_arg_extremum: dim 1 does not exist in f32[3]"),
        (
            GatherFromWindow(0, 2, 1, 0, 0, 1, 1),
            "f32[3] i32[3]",
            "gather_from_window: needs one position per window, i32[2], not i32[3]",
        ),
        (
            ScatterAddToWindow(0, 2, 1, 0, 0, 1, 1),
            "f32[3] i64[3]",
            "scatter_add_to_window: needs one position per window, i32[3], not i64[3]",
        ),
    ],
    ids=str,
)
def test_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def linearized(op, shape):
    """Return the forward program, which also returns residuals, and the backward program."""
    program = rewrite("pool", [ArrayType(shape, np.float32)], lambda x: [op(x)])
    forward, linear, _ = linearize_program(program, (True,))
    residuals = len(forward.outputs) - 1
    backward, _ = transpose_program(linear, (*(False,) * residuals, True), (True,))
    return forward, backward


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
@pytest.mark.parametrize("reduction", [SUM, MAX, MIN, PROD], ids=str)
def test_a_sharded_dim_sends_one_row(reduction, rows):
    op = pool(reduction)
    program = rewrite("pool", [ArrayType((rows, 8), np.float32)], lambda x: [op(x)])
    stages = run_stages(program, MESH, [pin_of(P("data"), (rows, 8), MESH)], [None])
    steps = stages.local.collectives()
    assert [step.op.name for step in steps] == ["take_window"]
    assert sum(map(stages.local.bytes_sent, steps)) <= (1 if rows == 32 else 3) * 8 * 4
    assert stages.local.outputs[0].layout.dims == (("data",), ())
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    np.testing.assert_allclose(evaluate_shards(stages.local, [x])[0], evaluate(program, [x])[0], rtol=1e-6)


@pytest.mark.parametrize("rows", [32, 30], ids=["even", "uneven"])
@pytest.mark.parametrize("reduction", [SUM, MAX], ids=str)
def test_derivatives_along_a_sharded_dim_exchange_only_halos(reduction, rows):
    forward, backward = linearized(pool(reduction), (rows, 1024))
    rng = np.random.default_rng(0)
    args = [rng.integers(0, 3, (rows, 1024)).astype(np.float32)]  # with many ties
    for program in (forward, backward):
        types = program.in_types
        pins = [pin_of(P("data"), type.shape, MESH) for type in types]
        stages = run_stages(program, MESH, pins, [None] * len(program.outputs))
        assert {step.op.name for step in stages.local.collectives()} == {"take_window"}
        rows_sent = sum(map(stages.local.bytes_sent, stages.local.collectives())) / (1024 * 4)
        assert rows_sent <= 6
        expected = evaluate(program, args)
        for actual, array in zip(evaluate_shards(stages.local, args), expected, strict=True):
            np.testing.assert_array_equal(actual, array)
        args = [*expected[1:], rng.integers(1, 9, expected[0].shape).astype(np.float32)]


def test_the_derivative_selects_the_first_of_equal_elements():
    x = np.array([[1, 3, 3], [3, 0, 3]], np.float32)
    op = ReduceWindow(MAX, (2, 2), (1, 1), (0, 0), (0, 0), (1, 1), (1, 1))
    forward, backward = linearized(op, x.shape)
    y, *residuals = evaluate(forward, [x])
    np.testing.assert_array_equal(y, [[3, 3]])
    (slope,) = evaluate(backward, [*residuals, np.array([[5, 7]], np.float32)])
    np.testing.assert_array_equal(slope, [[0, 12, 0], [0, 0, 0]])


def test_elements_that_are_not_selected_get_zero_despite_infinite_cotangents():
    x = np.array([[1], [2], [0]], np.float32)
    forward, backward = linearized(pool(MAX, window=2, stride=1, low=0, high=0), x.shape)
    _, *residuals = evaluate(forward, [x])
    (slope,) = evaluate(backward, [*residuals, np.array([[np.inf], [1]], np.float32)])
    np.testing.assert_array_equal(slope, [[0], [np.inf], [0]])


def test_a_window_of_padding_only_is_constant():
    forward, backward = linearized(pool(MAX, window=1, stride=1, low=1, high=0), (2, 1))
    y, *residuals = evaluate(forward, [np.array([[4], [5]], np.float32)])
    np.testing.assert_array_equal(y, [[-np.inf], [4], [5]])
    (slope,) = evaluate(backward, [*residuals, np.array([[9], [1], [2]], np.float32)])
    np.testing.assert_array_equal(slope, [[1], [2]])

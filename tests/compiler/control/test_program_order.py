"""order_kernels: barriers leave the results of a program, and constants stay outside of them."""

import numpy as np

from shardwise.compiler.control.program_order import order_kernels
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.identities import CollectiveDone
from shardwise.compiler.ops.shape.constants import full
from tests.compiler.control.control_programs import program

PRODUCT = Dot(((1,), (0,)), ((), ()))
X, Y = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)


def ops(ordered):
    return [equation.op.name for equation in ordered.equations]


def test_results_are_unchanged():
    def body(x, y):
        first, second = PRODUCT(x, x), PRODUCT(y, y)
        third = PRODUCT(x, y)
        return [second, first, x, PRODUCT(first + third, second)]

    plain = program("f", "f32[3,3] f32[3,3]", body)
    for strict_in, strict_out in ((False, False), (True, True)):
        ordered = order_kernels(plain, strict_in, strict_out)
        verify(ordered)
        for ours, theirs in zip(evaluate(ordered, (X, Y)), evaluate(plain, (X, Y)), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_one_barrier_per_value_between_kernels():
    ordered = order_kernels(program("f", "f32[3,3] f32[3,3]", lambda x, y: [PRODUCT(x, x), PRODUCT(y, y)]))
    assert ops(ordered) == ["dot", "barrier", "barrier", "dot"]
    first, result, operand, second = ordered.equations
    assert result.inputs == first.outputs and operand.inputs == ordered.inputs[1:]
    assert second.inputs == operand.outputs * 2 and ordered.outputs == (*result.outputs, *second.outputs)


def test_fusible_ops_and_constants_need_no_barriers():
    ordered = order_kernels(program("f", "f32[3,3]", lambda x: [PRODUCT(-x, full((3, 3), 2.0, np.float32)) * x + 1]))
    assert "dot" in ops(ordered) and ops(ordered).count("barrier") == 2  # of -x and x
    assert order_kernels(program("f", "f32[3,3]", lambda x: [-x * x + x])).equations[0].op.name == "neg"


def test_kernels_before_done_wait_for_the_operand_of_the_start():
    def body(x, y):
        started = PRODUCT(-x, x)  # stands for a collective
        return [PRODUCT(y, y), CollectiveDone()(started)]

    ordered = order_kernels(program("f", "f32[3,3] f32[3,3]", body))
    assert ops(ordered) == [
        *("neg", "barrier", "barrier", "barrier", "dot", "dot"),
        *("barrier", "barrier", "collective_done"),
    ]
    negated, first, second, third, start, between, result, flight, _ = ordered.equations
    assert first.inputs == negated.outputs and (*second.inputs, *third.inputs) == ordered.inputs
    assert start.inputs == (*first.outputs, *second.outputs) and between.inputs == third.outputs * 2
    assert result.inputs == between.outputs and flight.inputs == start.outputs


def test_fusible_ops_run_beside_a_started_collective():
    def body(x, y):
        started = PRODUCT(x, x)
        total = -y
        return [CollectiveDone()(started) + total]

    ordered = order_kernels(program("f", "f32[3,3] f32[3,3]", body))
    assert ops(ordered) == ["barrier", "barrier", "dot", "neg", "barrier", "barrier", "collective_done", "add"]


def test_a_start_does_not_wait_for_another_collective():
    def body(x, y):
        first = PRODUCT(x, x)
        second = PRODUCT(y, y)
        return [CollectiveDone()(first), CollectiveDone()(second)]

    ordered = order_kernels(program("f", "f32[3,3] f32[3,3]", body))
    assert ops(ordered).index("collective_done") > max(n for n, op in enumerate(ops(ordered)) if op == "dot")
    dots = [equation for equation in ordered.equations if equation.op.name == "dot"]
    results = {value for dot in dots for value in dot.outputs}
    before = ordered.equations[: ordered.equations.index(dots[1])]
    assert not any(results.intersection(equation.inputs) for equation in before)

"""Transformations of programs, alone and composed, against finite differences, loops and closed forms."""

import itertools

import numpy as np
import pytest

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType, Scalar, parse_type
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.collective.collectives import AllReduce
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.reduction import SUM
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.errors import MissingRuleError
from tests.compiler.ops.cases import plain
from tests.compiler.transforms.programs import SQUARE, ops_of, program

F64 = np.dtype(np.float64)
STEP = 1e-6


def constant(shape: tuple[int, ...], value: float):
    return Full(shape, Scalar.from_value(value, F64))()


def softmax(x):
    """Along the last dim of a matrix."""
    rows = Exp()(x)
    total = Broadcast(x.type.shape, (0,))(Sum((1,))(rows))
    return Div()(rows, total)


def mlp(x, w, v):
    hidden = Max()(Dot(((1,), (0,)))(x, w), constant((3, 5), 0.0))
    return [Sum((0, 1))(Mul()(Dot(((1,), (0,)))(hidden, v), Dot(((1,), (0,)))(hidden, v)))]


def attention(q, k):
    scores = softmax(Dot(((1,), (1,)))(q, k))
    return [Dot(((1,), (0,)))(scores, k), Sum((1,))(Transpose((1, 0))(scores))]


def mixed(x, n):
    """Integers beside floats, a value used three times, an output that is an input, an output without a tangent."""
    scaled = Mul()(x, Convert(F64)(n))
    kept = Select()(Compare("GT")(x, scaled), x, Neg()(scaled))
    return [Add()(kept, Mul()(x, x)), n, x, Convert(np.dtype(np.int32))(x)]


TWICE = program("twice", "f64[3]", lambda x: [Call(SQUARE)(Call(SQUARE)(x)[0])[0], x])

PROGRAMS = [
    program("cube", "f64[4]", lambda x: [Mul()(Mul()(x, x), x)]),
    program("mlp", "f64[3,4] f64[4,5] f64[5,2]", mlp),
    program("attention", "f64[3,4] f64[2,4]", attention),
    program("mixed", "f64[6] i32[6]", mixed),
    program("folded", "f64[2,6]", lambda x: [Exp()(Reshape((3, 4))(x)), Sum((1,))(Reshape((4, 3))(x))]),
    program("called", "f64[3] f64[3]", lambda x, y: [Add()(Call(TWICE)(x)[0], Mul()(Call(TWICE)(y)[1], x))]),
    program("untouched", "f64[2] f64[2]", lambda x, y: [Exp()(y), constant((2,), 3.0)]),
]


def active_inputs(body: Program) -> tuple[bool, ...]:
    return tuple(type.dtype == F64 for type in body.in_types)


def args_of(body: Program, seed: str = "values") -> list[NumpyArray]:
    return plain(body.in_types, f"{seed} of {body.name}")


def gradient(body: Program) -> Program:
    """Return the program inputs → gradients of the sum of all outputs with a tangent, by the float inputs."""
    active = active_inputs(body)
    forward, linear, _ = linearize_program(body, active)
    residuals = len(forward.outputs) - len(body.outputs)
    is_tangent = (*(False,) * residuals, *(True,) * active.count(True))
    backward, reached = transpose_program(linear, is_tangent, (True,) * len(linear.outputs))

    def play(*args):
        kept = replay(forward, args)[len(body.outputs) :]
        ones = [Full(type.shape, Scalar.from_value(1, type.dtype))() for type in linear.out_types]
        found = iter(replay(backward, [*kept, *ones]))
        types = [type for type, is_active in zip(body.in_types, active, strict=True) if is_active]
        return [next(found) if there else constant(t.shape, 0.0) for t, there in zip(types, reached, strict=True)]

    return verify(rewrite(f"gradient_{body.name}", body.in_types, play))


def total(body: Program, args: list[NumpyArray]) -> float:
    return sum(out.sum() for out in evaluate(body, args) if out.dtype == F64)


@pytest.mark.parametrize("body", PROGRAMS, ids=lambda body: body.name)
class TestCompositions:
    def test_the_gradient_equals_finite_differences(self, body):
        args = args_of(body)
        gradients = iter(evaluate(gradient(body), args))
        for number, arg in enumerate(args):
            if arg.dtype != F64:
                continue
            slopes = np.zeros(arg.shape)
            for index in np.ndindex(arg.shape):
                both = []
                for by in (STEP, -STEP):
                    moved = [a.copy() for a in args]
                    moved[number][index] += by
                    both.append(total(body, moved))
                slopes[index] = (both[0] - both[1]) / (2 * STEP)
            np.testing.assert_allclose(next(gradients), slopes, rtol=1e-6, atol=1e-8)

    def test_jvp_of_jvp_equals_finite_differences_of_jvp(self, body):
        first, moving = jvp_program(body, active_inputs(body))
        second, _ = jvp_program(first, active_inputs(first))
        args, tangents = args_of(first), [a for a in args_of(first, "tangents") if a.dtype == F64]
        results = evaluate(verify(second), [*args, *tangents])
        ahead, behind = (evaluate(first, moved_along(first, args, tangents, by)) for by in (STEP, -STEP))
        slopes = [(a - b) / (2 * STEP) for a, b in zip(ahead, behind, strict=True) if a.dtype == F64]
        found = list(results[len(first.outputs) :])
        assert sum(moving) <= len(found) <= len(slopes)
        for slope in slopes:  # an output without a tangent has the derivative zero
            if slope.any():
                np.testing.assert_allclose(found.pop(0), slope, rtol=1e-5, atol=1e-7)
        assert not any(tangent.any() for tangent in found)

    def test_jvp_of_the_gradient_equals_finite_differences_of_it(self, body):
        grad = gradient(body)
        derivative, moving = jvp_program(grad, active_inputs(grad))
        args, tangents = args_of(grad), [a for a in args_of(grad, "tangents") if a.dtype == F64]
        found = iter(evaluate(verify(derivative), [*args, *tangents])[len(grad.outputs) :])
        ahead, behind = (evaluate(grad, moved_along(grad, args, tangents, by)) for by in (STEP, -STEP))
        for is_moving, above, below in zip(moving, ahead, behind, strict=True):
            tangent = next(found) if is_moving else np.zeros(above.shape)
            np.testing.assert_allclose(tangent, (above - below) / (2 * STEP), rtol=1e-5, atol=1e-7)

    def test_the_second_gradient_is_symmetric(self, body):
        """H v = Hᵀ v, reverse over reverse."""
        grad = gradient(body)
        active = active_inputs(grad)
        forward, linear, moving = linearize_program(grad, active)
        args = args_of(grad)
        residuals = evaluate(forward, args)[len(grad.outputs) :]
        v = [a for a in args_of(grad, "v") if a.dtype == F64]
        pushed = iter(evaluate(linear, [*residuals, *v]))
        h_v = [next(pushed) if is_moving else np.zeros(a.shape) for is_moving, a in zip(moving, v, strict=True)]
        is_tangent = (*(False,) * len(residuals), *(True,) * len(v))
        backward, reached = transpose_program(linear, is_tangent, (True,) * sum(moving))
        cotangents = [a for a, is_moving in zip(v, moving, strict=True) if is_moving]
        pulled = iter(evaluate(verify(backward), [*residuals, *cotangents]))
        h_t_v = [next(pulled) if there else np.zeros(a.shape) for there, a in zip(reached, v, strict=True)]
        for left, right in zip(h_v, h_t_v, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)

    def test_vmap_of_vmap_equals_nested_loops(self, body):
        places = [tuple(0 for _ in body.inputs), tuple(type.ndim for type in body.in_types)]
        for inner, outer in itertools.product(places, repeat=2):
            once, once_dims = vmap_program(body, BatchAxis(2), inner)
            both, both_dims = vmap_program(once, BatchAxis(3), outer)
            args = args_of(verify(both), "batches")
            found = evaluate(both, args)
            for i, j in itertools.product(range(3), range(2)):
                some = [np.take(np.take(a, i, o), j, n) for a, o, n in zip(args, outer, inner, strict=True)]
                for result, o, n, one in zip(found, both_dims, once_dims, evaluate(body, some), strict=True):
                    part = result if o is None else np.take(result, i, o)
                    part = part if n is None else np.take(part, j, n)
                    np.testing.assert_allclose(part, one, rtol=1e-12)

    def test_the_gradient_of_a_batch_is_the_batch_of_gradients(self, body):
        dims = tuple(0 for _ in body.inputs)
        batched, places = vmap_program(gradient(body), BatchAxis(3), dims)
        other = gradient(vmap_program(body, BatchAxis(3), dims)[0])
        args = args_of(other, "batch")
        for one, dim, two in zip(evaluate(verify(batched), args), places, evaluate(other, args), strict=True):
            whole = np.broadcast_to(one, two.shape) if dim is None else np.moveaxis(one, dim, 0)
            np.testing.assert_allclose(whole, two, rtol=1e-10, atol=1e-12)

    def test_inlining_changes_nothing_but_the_calls(self, body):
        flat = inline(body)
        assert not any(isinstance(equation.op, Call) for equation in verify(flat).equations)
        assert flat.in_types == body.in_types
        args = args_of(body)
        for one, two in zip(evaluate(flat, args), evaluate(body, args), strict=True):
            np.testing.assert_array_equal(one, two)


def moved_along(body: Program, args: list[NumpyArray], tangents: list[NumpyArray], by: float) -> list[NumpyArray]:
    rest = iter(tangents)
    return [arg + by * next(rest) if arg.dtype == F64 else arg for arg in args]


WEAK = "f32[]~"


class TestWeakTypes:
    """Tangents and cotangents have the type of their value, including its weakness, as calls require."""

    CALLED = program("called", f"{WEAK} {WEAK}", lambda x, y: [Max()(x, y), Mul()(x, y)])

    @pytest.mark.parametrize(
        "before",
        [
            Max(),
            lambda x, y: Select()(Compare("GT")(x, y), x, y),
            lambda x, y: Mul()(x, Convert(np.dtype(np.float32), True)(Full((), Scalar.from_value(2, np.float32))())),
        ],
        ids=["max", "select", "mul"],
    )
    def test_calls_accept_weak_tangents_and_cotangents(self, before):
        body = program("body", f"{WEAK} {WEAK}", lambda x, y: [*Call(self.CALLED)(before(x, y), y)])
        for active in ((True, False), (False, True), (True, True)):
            derivative, moving = jvp_program(body, active)
            types = [type for type, is_moving in zip(body.out_types, moving, strict=True) if is_moving]
            assert list(verify(derivative).out_types) == [*body.out_types, *types]
            _, linear, _ = linearize_program(body, active)
            known = len(linear.inputs) - sum(active)
            is_tangent = (*(False,) * known, *(True,) * sum(active))
            backward, reached = transpose_program(verify(linear), is_tangent, (True,) * len(linear.outputs))
            assert verify(backward).out_types == (parse_type(WEAK),) * sum(reached)

    def test_the_cotangent_of_a_weak_operand_of_convert_is_weak(self):
        body = program("strong", WEAK, lambda x: [Convert(np.dtype(np.float32))(Call(SCALAR)(x)[0])])
        _, linear, _ = linearize_program(body, (True,))
        backward, _ = transpose_program(linear, (True,), (True,))
        assert verify(backward).out_types == (parse_type(WEAK),)


SCALAR = program("scalar", WEAK, lambda x: [Neg()(x)])


def lines(body: Program) -> set[int]:
    return {equation.source.line for equation in body.equations}


def test_transformed_equations_have_the_users_source_line():
    x, a, b = (Value(ArrayType((3,), F64)) for _ in range(3))
    body = Program(
        (x,),
        (
            Equation(Exp(), [x], [a], Source("train.py", 1, "f")),
            Equation(Max(), [a, x], [b], Source("train.py", 2, "f")),
        ),
        (b,),
    )
    assert lines(jvp_program(body, (True,))[0]) == {1, 2}
    assert lines(vmap_program(body, BatchAxis(3), (0,))[0]) == {1, 2}
    forward, linear, _ = linearize_program(body, (True,))
    assert lines(forward) == lines(linear) == {1, 2}
    known = len(linear.inputs) - 1
    assert lines(transpose_program(linear, (*(False,) * known, True), (True,))[0]) == {1, 2}
    assert provenance.source is None


def test_a_failed_transformation_restores_the_current_source():
    x, y = Value(ArrayType((3,), F64)), Value(ArrayType((3,), F64))
    body = Program((x,), (Equation(AllReduce(("a",), SUM), [x], [y], Source("train.py", 1, "f")),), (y,))
    for transform in (lambda: jvp_program(body, (True,)), lambda: vmap_program(body, BatchAxis(3), (0,))):
        with pytest.raises(MissingRuleError, match="op 'all_reduce' has no rule"):
            transform()
        assert provenance.source is None
        assert open_frames() == []


@pytest.mark.parametrize("contract", [((1,), (0,)), ((1,), (1,)), ((0,), (0,)), ((0,), (1,))], ids=str)
def test_gradients_of_a_product_need_no_transpose_op(contract):
    body = program("product", "f64[4,4] f64[4,4]", lambda x, y: [Sum((0, 1))(Dot(contract)(x, y))])
    assert "transpose" not in ops_of(gradient(body))

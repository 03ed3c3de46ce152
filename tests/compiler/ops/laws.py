"""The laws that every op obeys, each checked on a case against an oracle that was computed another way.

    lowers_like_numpy             XLA's result is the numpy meaning
    folds_like_numpy              so is what XLA makes of constants while it compiles
    jvp_like_finite_difference    the derivative is the slope
    transpose_is_adjoint          <A x, y> = <x, Aᵀ y>
    vmap_like_loop                a batch is its elements one by one
    factors_like_shards           cut along a factor and joined, it is the whole
    sums_pass_through             of terms of a sum, the results are terms of a sum
    padding_is_as_stated          past the end of a dim lies what the op says
    text_reads_back               it prints as text that parses to the same program

`LAWS` gives for each law the cases that it speaks about.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_inexact
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, factor_rule, result_types
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem, StopGradient, Sub
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Conj, Imag, Real, Sign
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Clamp, Max, Min, Relu
from shardwise.compiler.ops.elementwise.powers import Square
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor, Nextafter, ReducePrecision, Round
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.elementwise.transcendental import Exp2
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.hessenberg_schur import SimilarityReduction
from shardwise.compiler.ops.linalg.householder import HouseholderOp
from shardwise.compiler.ops.linalg.linear_solve import LinearSolve
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.random.distributions import RandomGamma, Sampler
from shardwise.compiler.ops.random.poisson_binomial import CountSampler
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.reductions import ReduceExtremum
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full, Nullary
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.ops.special.gamma_erf import MultiOperandFunction, SpecialFunction
from shardwise.compiler.ops.special.hypergeometric import Hyp1f1Slope, Hyp2f1Slope
from shardwise.compiler.partition.simulate import simulate
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.propagate.candidates import factor_candidate
from shardwise.compiler.propagate.propagate import propagate
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.execute.load import load
from shardwise.runtime.array import place
from shardwise.runtime.client import devices
from shardwise.runtime.sharding import ONE_DEVICE, SingleDeviceSharding
from tests.compiler.ops.cases import Case, plain


def lowers_like_numpy(case: Case) -> None:
    program, args = case.program, case.args
    assert_alike(case.op, on_one_device(program, args), evaluate(program, args))


def folds_like_numpy(case: Case) -> None:
    def folded() -> list[Any]:
        found = [case.op(*(constant() for constant in row)) for row in constants(case)]
        return found if case.op.single else [y for results in found for y in results]

    program = rewrite("folded", [], folded)
    assert_alike(case.op, on_one_device(program, []), evaluate(program, []))


def constants(case: Case) -> list[list[Full]]:
    """The case's operands as constants: of an elementwise op element by element, else whole arrays of one element."""
    flat = [arg.reshape(-1) for arg in case.args]
    if isinstance(case.op, Elementwise):
        picked = range(0, flat[0].size, 1 + flat[0].size // 130)
        return [[Full((), Scalar.of(arg[i], arg.dtype)) for arg in flat] for i in picked]
    return [[Full(type.shape, Scalar.of(arg[0], type.dtype)) for arg, type in zip(flat, case.types, strict=True)]]


def on_one_device(program: Program, args: Sequence[NumpyArray]) -> list[NumpyArray]:
    """The program's outputs by the whole pipeline and PJRT."""
    device = devices()[0]
    here = SingleDeviceSharding(device)
    stages = run_stages(
        program, ONE_DEVICE, [here.pin(type.shape) for type in program.in_types], [None] * outs(program)
    )
    executable = load(stages, [device], [here] * outs(program), False)
    buffers = [place(arg, type, here, False).buffers for arg, type in zip(args, program.in_types, strict=True)]
    return [array.numpy() for array in executable.run(buffers)]


def jvp_like_finite_difference(case: Case) -> None:
    program = widened(case.program)
    args = case.plain(program.in_types)
    step = 1e-6
    for active in subsets(active_operands(case)):
        derivative, moving = jvp_program(program, active)
        verify(derivative)
        verify(jvp_program(case.program, active)[0])
        tangents = chosen(case.directions(program.in_types), active)
        results = evaluate(derivative, [*args, *tangents])
        assert_alike(case.op, results[: outs(program)], evaluate(program, args))
        slopes = iter(results[outs(program) :])
        ahead, behind = (evaluate(program, moved(args, tangents, active, by)) for by in (step, -step))
        for type, is_moving, above, below in zip(program.out_types, moving, ahead, behind, strict=True):
            if is_inexact(type.dtype):
                slope = next(slopes) if is_moving else np.zeros(type.shape)
                assert slope.shape == type.shape
                np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6, atol=1e-8)
            else:
                assert not is_moving


def transpose_is_adjoint(case: Case) -> None:
    program = widened(case.program)
    args = case.plain(program.in_types)
    for active in subsets(active_operands(case)):
        forward, linear, moving = linearize_program(program, active)
        outputs = evaluate(verify(forward), args)
        assert_alike(case.op, outputs[: outs(program)], evaluate(program, args))
        residuals = outputs[outs(program) :]
        tangents = chosen(case.directions(program.in_types), active)
        pushed = evaluate(verify(linear), [*residuals, *tangents])
        derivative, same = jvp_program(program, active)
        assert moving == same
        assert_alike(Sum(()), pushed, evaluate(derivative, [*args, *tangents])[outs(program) :])
        is_tangent = (*(False for _ in residuals), *(True for _ in tangents))
        cotangents = plain(linear.out_types, f"cotangents of {case}")
        for present in subsets((True,) * len(pushed)):
            backward, reached = transpose_program(linear, is_tangent, present)
            pulled = iter(evaluate(verify(backward), [*residuals, *chosen(cotangents, present)]))
            arrived = [next(pulled) if is_reached else None for is_reached in reached]
            for tangent, cotangent in zip(tangents, arrived, strict=True):
                assert cotangent is None or (cotangent.shape, cotangent.dtype) == (tangent.shape, tangent.dtype)
            left = sum(paired(a, b) for a, b in zip(chosen(pushed, present), chosen(cotangents, present), strict=True))
            right = sum(paired(a, b) for a, b in zip(tangents, arrived, strict=True) if b is not None)
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
        assert_types_return(case.program, active)


def assert_types_return(program: Program, active: tuple[bool, ...]) -> None:
    """In the case's own dtypes: a tangent has the type of its output, a cotangent that of its operand."""
    _, linear, moving = linearize_program(program, active)
    assert linear.out_types == tuple(chosen(program.out_types, moving))
    residuals = len(linear.inputs) - active.count(True)
    is_tangent = (*(False,) * residuals, *(True,) * active.count(True))
    backward, reached = transpose_program(linear, is_tangent, (True,) * outs(linear))
    assert verify(backward).out_types == tuple(chosen(chosen(program.in_types, active), reached))


def vmap_like_loop(case: Case) -> None:
    program, args, size = case.program, case.args, 3
    batches = [case.batch(number, size) for number in range(len(args))]
    places: list[list[int | None]] = [[None, *range(type.ndim + 1)] for type in case.types]
    ways = list(itertools.product(*places))
    most = 10 if isinstance(case.op, (Sampler, Hyp1f1Slope, Hyp2f1Slope)) else 100  # their loops take numpy long
    for dims in ways[:: 1 + len(ways) // most]:
        if all(dim is None for dim in dims):
            continue
        batched, out_dims = vmap_program(program, BatchAxis(size), dims)
        stacked = [batch[0] if dim is None else np.stack(batch, dim) for batch, dim in zip(batches, dims, strict=True)]
        found = evaluate(verify(batched), stacked)
        loop = [
            evaluate(program, [batch[0 if dim is None else i] for batch, dim in zip(batches, dims, strict=True)])
            for i in range(size)
        ]
        for number, (result, dim) in enumerate(zip(found, out_dims, strict=True)):
            each = [results[number] for results in loop]
            if dim is None:
                for one in each:
                    assert_alike(case.op, [result], [one])
            else:
                assert_alike(case.op, [result], [np.stack(each, dim)])


def factors_like_shards(case: Case) -> None:
    program, args = case.program, case.args
    expected = evaluate(program, args)
    (equation,) = program.equations
    rule = factor_rule(case.op, case.types)
    for cut in cuts(case):
        axes = AXES[: len(cut)]
        mesh = AbstractMesh([count for _, count in cut], axes)
        factors = {axis: factor for axis, (factor, _) in zip(axes, cut, strict=True)}
        reduces = any(factor in rule.reduce for factor in factors.values())
        in_pins = [cut_along(factors, dims) for dims in rule.operands]
        out_pins = [None if reduces else cut_along(factors, dims) for dims in rule.results]
        sharded = propagate(program, mesh, in_pins, out_pins)
        if not isinstance(case.op, Nullary):
            wanted = {axis: factor_candidate(rule, factor) for axis, factor in factors.items()}
            assert all(candidate in sharded.candidates[axis][equation] for axis, candidate in wanted.items())
            options = {axis: {equation: (candidate,)} for axis, candidate in wanted.items()}
            sharded = replace(sharded, candidates=options)
        local = partition(sharded, choose(sharded))
        assert_alike(case.op, simulate(local, args), expected)
        assert parse_program(str(local.program)) == local.program


AXES = ("a", "b")


def cuts(case: Case) -> Iterator[tuple[tuple[int, int], ...]]:
    """For each mesh axis a factor and the number of pieces: every factor alone, with itself, and with the next one."""
    rule = factor_rule(case.op, case.types)
    leading = sorted(rule.leading)
    for factor, after in zip(leading, [*leading[1:], *leading[:1]], strict=True):
        ways = [((factor, 2),), ((factor, 3),), ((factor, 4),), ((factor, 2), (factor, 3))]
        for way in ways if after == factor else [*ways, ((factor, 2), (after, 2))]:
            if rule.allows_sharding({f: math.prod(count for g, count in way if g == f) for f, _ in way}):
                yield way
    for first, second, *_ in dict.fromkeys(rule.compound_dims):
        way = ((first, rule.sizes[first]), (second, 2))
        if not rule.need_replication.intersection((first, second)) and rule.allows_sharding(dict(way)):
            yield way


def cut_along(factors: dict[str, int], dims: Dims) -> Pin:
    """Every dim cut over the axes that cut its factors, major first."""
    return Pin(Layout(tuple(tuple(axis for f in mine for axis, cut in factors.items() if cut == f) for mine in dims)))


def sums_pass_through(case: Case) -> None:
    program = widened(case.program)
    first, second = (plain(program.in_types, f"{which} terms of {case}") for which in ("first", "second"))
    for together in case.op.linear_in(*case.types):
        other = [second[i] if i in together else first[i] for i in range(len(first))]
        both = [total(a, b) if i in together else a for i, (a, b) in enumerate(zip(first, second, strict=True))]
        (of_sum,) = evaluate(program, both)
        sum_of = total(*(evaluate(program, args)[0] for args in (first, other)))
        assert_alike(Sum(()), [of_sum], [sum_of])


def padding_is_as_stated(case: Case) -> None:
    rule = factor_rule(case.op, case.types)
    (result,) = result_types(case.op, case.types)
    for at, factors in padded_dims(rule):
        holders = [(operand, dims.index(factors)) for operand, dims in enumerate(rule.operands) if factors in dims]
        for values in itertools.product((0, 1), repeat=len(holders)):
            args = case.args
            fills = [
                np.asarray(value).astype(args[operand].dtype)
                for value, (operand, _) in zip(values, holders, strict=True)
            ]
            for fill, (operand, dim) in zip(fills, holders, strict=True):
                edge = np.take(args[operand], [], dim).shape
                row = np.full((*edge[:dim], 1, *edge[dim + 1 :]), fill)
                args[operand] = np.concatenate([args[operand], row], dim)
            stated = case.op.padding(fills)
            if stated is None:
                continue
            shape = (*result.shape[:at], result.shape[at] + 1, *result.shape[at + 1 :])
            types = [ArrayType(arg.shape, arg.dtype) for arg in args]
            shard = _Longer((shape,), case.types)
            local = rewrite("local", types, lambda *xs, shard=shard: [case.op.localize(shard, *xs)])
            past = np.take(evaluate(local, args)[0], -1, at)
            assert_alike(case.op, [past], [np.full(past.shape, stated).astype(past.dtype)])


@final
@dataclass(frozen=True)
class _Longer:
    """What `localize` is told of a result that is one longer than the whole."""

    out_shapes: tuple[tuple[int, ...], ...]
    global_types: tuple[ArrayType, ...]
    auto_axes = ()

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        return (), 1

    def offset(self, dim: int, dtype: Any, operand: int | None = None) -> None:
        return None


def padded_dims(rule: FactorRule) -> list[tuple[int, tuple[int, ...]]]:
    """The result's dims that may be padded inside the op, with their factors."""
    return [
        (dim, factors)
        for dim, factors in enumerate(rule.results[0])
        if rule.is_paddable(factors) and factors[0] not in rule.exchange
    ]


def text_reads_back(case: Case) -> None:
    program = case.program
    text = str(program)
    again = parse_program(text)
    assert again == program
    assert str(again) == re.sub(" *#.*", "", text)
    assert verify(again).out_types == program.out_types


# What the laws speak about.


def has_rule(case: Case) -> bool:
    """Whether the op has factors of its own: a call is inlined and a control op unfolded before anyone asks."""
    return not (case.op.is_call or isinstance(case.op, Control))


def is_cut(case: Case) -> bool:
    """Whether the op can be cut along a factor; a constraint says itself how it is cut."""
    return has_rule(case) and not isinstance(case.op, Constrain) and any(cuts(case))


def states_padding(case: Case) -> bool:
    if not has_rule(case):
        return False
    rule = factor_rule(case.op, case.types)
    return any(
        case.op.padding(
            [np.zeros((), type.dtype) for type, dims in zip(case.types, rule.operands, strict=True) if factors in dims]
        )
        is not None
        for _, factors in padded_dims(rule)
    )


# Their derivative is by decree, not a slope.
NO_SLOPE = (StopGradient, ReducePrecision, Nextafter, BitcastConvert, LinearSolve, RandomGamma, CountSampler)


def has_derivative(case: Case) -> bool:
    """Whether the op can be differentiated at all: factors that leave too much open cannot."""
    if isinstance(case.op, (HouseholderOp, SimilarityReduction, FusedAttention, FusedAttentionGrad)):
        return False
    if isinstance(case.op, Svd):
        return not (case.op.full and case.op.vectors and case.types[0].shape[-1] != case.types[0].shape[-2])
    return not isinstance(case.op, Eig) or case.op.differentiable or not (case.op.left or case.op.right)


def has_free_phase(case: Case) -> bool:
    """Whether the phases of complex vectors are arbitrary; test_decompositions.py checks products of them."""
    return isinstance(case.op, (Eigh, Svd)) and case.kinds[0].kind == "c"


LAWS: dict[Callable[[Case], None], Callable[[Case], bool]] = {
    lowers_like_numpy: lambda case: not isinstance(case.op, Constrain),
    folds_like_numpy: lambda case: (
        (case.special or isinstance(case.op, (Dot, Reduce, MovementOp))) and all(type.size for type in case.types)
    ),
    jvp_like_finite_difference: lambda case: (
        any(active_operands(case))
        and not isinstance(case.op, NO_SLOPE)
        and has_derivative(case)
        and not has_free_phase(case)
    ),
    transpose_is_adjoint: lambda case: (
        any(active_operands(case))
        and not isinstance(case.op, NO_SLOPE)
        and has_derivative(case)
        and not case.op.irreversible
        and any(is_inexact(type.dtype) for type in case.program.out_types)
    ),
    vmap_like_loop: lambda case: bool(case.types),
    factors_like_shards: is_cut,
    sums_pass_through: lambda case: has_rule(case) and bool(case.op.linear_in(*case.types)),
    padding_is_as_stated: states_padding,
    text_reads_back: lambda case: True,
}


# What the laws share.


def outs(program: Program) -> int:
    return len(program.outputs)


def active_operands(case: Case) -> tuple[bool, ...]:
    fixed = case.op.nondifferentiable if isinstance(case.op, MultiOperandFunction) else ()
    return tuple(is_inexact(kind) and number not in fixed for number, kind in enumerate(case.kinds))


def subsets(which: Sequence[bool]) -> Iterator[tuple[bool, ...]]:
    """Every choice, but the empty one, of the places that are marked."""
    for picked in itertools.product(*((True, False) if marked else (False,) for marked in which)):
        if any(picked):
            yield picked


def chosen(items: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    return [item for item, marked in zip(items, which, strict=True) if marked]


def moved(args: Sequence[NumpyArray], tangents: Sequence[NumpyArray], active: Sequence[bool], by: float) -> list[Any]:
    rest = iter(tangents)
    return [arg + by * next(rest) if is_active else arg for arg, is_active in zip(args, active, strict=True)]


def paired(a: NumpyArray, b: NumpyArray) -> Any:
    """The real product of two vectors; complex ones count as their real and imaginary parts, as in JAX."""
    return np.real(np.sum(a * b))


def total(a: NumpyArray, b: NumpyArray) -> NumpyArray:
    return np.asarray(Add().reference(a, b))


def moves_bits(op: Op) -> bool:
    """Whether the op's results are copies: compared to the bit, NaN and signed zeros too."""
    if isinstance(op, Scatter):
        return op.combine is None
    return isinstance(op, (Nullary, MovementOp, Select, Constrain, Sort, DynamicSlice, DynamicUpdateSlice, Gather))


# Rounded once and correctly, or not at all.
ROUNDED_ONCE = (
    *(Add, Sub, Mul, Div, Rem, Neg, Max, Min, Clamp, Convert, Abs, Sign, Real, Imag, Conj, Complex, Square),
    *(Floor, Ceil, Round, Nextafter, ReducePrecision, Relu, ReduceExtremum),
)


def roundings(op: Op, dtype: DType) -> float:
    """By how many units in the last place two ways of computing an element may differ."""
    if isinstance(op, ROUNDED_ONCE) and dtype.kind != "c":
        return 0
    if isinstance(op, Exp2):
        return 128  # the exponent is rounded once, and it is as large as 300 here
    if isinstance(op, Elementwise):
        return 4 if op.dialect == "stablehlo" else 32  # CHLO composes its functions of others
    # Sums run in f32 at least, in any order, and are rounded to narrower types at the end.
    return 64 * min(1, np.finfo(np.float32).eps / float(ml_dtypes.finfo(dtype).eps)) + 2


def assert_alike(op: Op, found: Sequence[NumpyArray], expected: Sequence[NumpyArray]) -> None:
    """Equal in shape and dtype. Copies, integers and booleans equal to the bit, other results up to rounding."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if moves_bits(op) or not is_inexact(a.dtype):
            assert a.tobytes() == b.tobytes(), f"{a}\nis not\n{b}"
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        rtol = roundings(op, a.dtype) * float(ml_dtypes.finfo(a.dtype).eps)
        # The special functions are exact to so many places after the point, also near their zeros.
        size = 1.0 if isinstance(op, SpecialFunction) else float(np.abs(y[np.isfinite(y)]).max(initial=0))
        # A result below the normal numbers may be taken for zero.
        np.testing.assert_allclose(x, y, rtol, rtol * min(1.0, size) + float(ml_dtypes.finfo(a.dtype).smallest_normal))


def widened(program: Program) -> Program:
    """The program with every float as f64 and every complex number as c128."""
    values = {value: Value(wide_type(value.type)) for value in program.inputs}
    equations = []
    for equation in program.equations:
        op = wide_op(equation.op)
        inputs = [values[value] for value in equation.inputs]
        outputs = [Value(type) for type in result_types(op, tuple(value.type for value in inputs))]
        values.update(zip(equation.outputs, outputs, strict=True))
        equations.append(Equation(op, inputs, outputs))
    return Program(
        tuple(values[value] for value in program.inputs),
        tuple(equations),
        tuple(values[value] for value in program.outputs),
        program.name,
    )


def wide_op(op: Op) -> Op:
    def wide_field(value: Any) -> Any:
        match value:
            case Program():
                return widened(value)
            case tuple():
                return tuple(map(wide_field, value))
            case np.dtype():
                return wide_dtype(value)
            case Scalar():
                return Scalar.of(value.array, wide_dtype(value.dtype))
            case _:
                return value

    return replace(op, **{field.name: wide_field(getattr(op, field.name)) for field in fields(op)})


def wide_type(type: ArrayType) -> ArrayType:
    return ArrayType(type.shape, wide_dtype(type.dtype), type.weak)


def wide_dtype(dtype: DType) -> DType:
    return np.dtype(np.complex128) if dtype.kind == "c" else np.dtype(np.float64) if is_float(dtype) else dtype

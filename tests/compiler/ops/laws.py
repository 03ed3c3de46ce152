"""The laws that every op obeys, each checked on a case against an independently computed result.

    lowers_like_numpy             XLA computes the numpy reference
    folds_like_numpy              XLA's constant folding computes the numpy reference
    jvp_like_finite_difference    the jvp is the derivative
    transpose_is_adjoint          <A x, y> = <x, Aᵀ y>
    second_derivative_like_finite_difference    the derivative of a kernel's vjp
    vmap_like_loop                vmap computes the same as a loop over the batch
    factors_like_shards           sharded along a factor, the op computes the same
    sums_pass_through             operands that are partial sums give results that are partial sums
    padding_is_as_stated          the padding of the result has the fill that the op states
    text_reads_back               the printed program parses to the same program

`LAWS` maps each law to a predicate: the cases that the law applies to.
"""

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.candidates.candidate import factor_candidate
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.control.linear_solve import LinearSolve
from shardwise.compiler.dtypes import DType, is_float, is_inexact
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.masks import insert_none
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, factor_rule, result_types
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.kernels.kernel import KernelOp
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
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
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import Reshard
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.reductions import ReduceExtremum
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full, Nullary
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.poisson_binomial import CountSampler
from shardwise.compiler.samplers.sampler import Sampler
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import ONE_DEVICE, AbstractMesh
from shardwise.compiler.special.gamma_erf import MultiOperandFunction, SpecialFunction
from shardwise.compiler.special.hypergeometric import Hyp1f1GradParameter, Hyp2f1GradParameter
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.jvp import instantiate_zeros, jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.execute.load import load
from shardwise.runtime.array import place
from shardwise.runtime.client import devices
from shardwise.runtime.sharding import SingleDeviceSharding
from tests.compiler.ops.cases import Case, plain


def lowers_like_numpy(case: Case) -> None:
    program, args = case.program, case.args
    assert_alike(case.op, on_one_device(program, args), evaluate(program, args))


def folds_like_numpy(case: Case) -> None:
    def folded() -> list[Any]:
        results = [case.op(*(constant() for constant in row)) for row in constant_operands(case)]
        return results if case.op.single else [y for row in results for y in row]

    program = rewrite("folded", [], folded)
    assert_alike(case.op, on_one_device(program, []), evaluate(program, []))


def constant_operands(case: Case) -> list[list[Full]]:
    """Return lists of constant operands: scalars for an elementwise op, otherwise arrays that repeat one element."""
    flat = [arg.reshape(-1) for arg in case.args]
    if isinstance(case.op, Elementwise):
        sample = range(0, flat[0].size, 1 + flat[0].size // 130)
        return [[Full((), Scalar.from_value(arg[i], arg.dtype)) for arg in flat] for i in sample]
    return [
        [Full(type.shape, Scalar.from_value(arg[0], type.dtype)) for arg, type in zip(flat, case.types, strict=True)]
    ]


def on_one_device(program: Program, args: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Compile and run a program on one device."""
    device = devices()[0]
    sharding = SingleDeviceSharding(device)
    stages = run_stages(
        program, ONE_DEVICE, [sharding.pin(type.shape) for type in program.in_types], [None] * output_count(program)
    )
    executable = load(stages, [device], [sharding] * output_count(program), False)
    buffers = [place(arg, type, sharding, False).buffers for arg, type in zip(args, program.in_types, strict=True)]
    return [array.numpy() for array in executable.run(buffers)]


def jvp_like_finite_difference(case: Case) -> None:
    program = widen_program(case.program)
    args = case.plain(program.in_types)
    step = 1e-6
    for active in subsets(active_operands(case)):
        derivative, out_active = jvp_program(program, active)
        verify(derivative)
        verify(jvp_program(case.program, active)[0])
        tangents = select(case.directions(program.in_types), active)
        results = evaluate(derivative, [*args, *tangents])
        assert_alike(case.op, results[: output_count(program)], evaluate(program, args))
        out_tangents = iter(results[output_count(program) :])
        ahead, behind = (evaluate(program, perturb(args, tangents, active, by)) for by in (step, -step))
        for type, is_active, above, below in zip(program.out_types, out_active, ahead, behind, strict=True):
            if is_inexact(type.dtype):
                tangent = next(out_tangents) if is_active else np.zeros(type.shape)
                assert tangent.shape == type.shape
                np.testing.assert_allclose(tangent, (above - below) / (2 * step), rtol=1e-6, atol=1e-8)
            else:
                assert not is_active


def transpose_is_adjoint(case: Case) -> None:
    program = widen_program(case.program)
    args = case.plain(program.in_types)
    for active in subsets(active_operands(case)):
        forward, linear, out_active = linearize_program(program, active)
        outputs = evaluate(verify(forward), args)
        assert_alike(case.op, outputs[: output_count(program)], evaluate(program, args))
        residuals = outputs[output_count(program) :]
        tangents = select(case.directions(program.in_types), active)
        out_tangents = evaluate(verify(linear), [*residuals, *tangents])
        derivative, jvp_active = jvp_program(program, active)
        assert out_active == jvp_active
        assert_alike(Sum(()), out_tangents, evaluate(derivative, [*args, *tangents])[output_count(program) :])
        is_tangent = (*(False for _ in residuals), *(True for _ in tangents))
        cotangents = plain(linear.out_types, f"cotangents of {case}")
        for nonzero in subsets((True,) * len(out_tangents)):
            backward, out_nonzero = transpose_program(linear, is_tangent, nonzero)
            results = iter(evaluate(verify(backward), [*residuals, *select(cotangents, nonzero)]))
            in_cotangents = [next(results) if is_nonzero else None for is_nonzero in out_nonzero]
            for tangent, cotangent in zip(tangents, in_cotangents, strict=True):
                assert cotangent is None or (cotangent.shape, cotangent.dtype) == (tangent.shape, tangent.dtype)
            pairs = zip(select(out_tangents, nonzero), select(cotangents, nonzero), strict=True)
            left = sum(inner_product(a, b) for a, b in pairs)
            right = sum(inner_product(a, b) for a, b in zip(tangents, in_cotangents, strict=True) if b is not None)
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
        assert_derivative_types(case.program, active)


def second_derivative_like_finite_difference(case: Case) -> None:
    """Check the derivative of the vjp, in forward mode and, by the adjoint, in reverse mode."""
    active = active_operands(case)
    vjp = vjp_of(widen_program(case.program), active)
    rest = vjp.in_types[len(case.types) :]
    args = [*case.plain(vjp.in_types[: len(case.types)]), *plain(rest, f"cotangents of {case}")]
    both = (*active, *(True for _ in rest))
    tangents = select(plain(vjp.in_types, f"tangents of {case}"), both)
    derivative, _ = jvp_program(vjp, both, (True,) * len(vjp.outputs))
    out_tangents = evaluate(verify(derivative), [*args, *tangents])[len(vjp.outputs) :]
    step = 1e-6
    ahead, behind = (evaluate(vjp, perturb(args, tangents, both, by)) for by in (step, -step))
    for tangent, above, below in zip(out_tangents, ahead, behind, strict=True):
        np.testing.assert_allclose(tangent, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)
    cotangents = plain(vjp.out_types, f"second cotangents of {case}")
    results = evaluate(verify(vjp_of(vjp, both)), [*args, *cotangents])
    left = sum(inner_product(a, b) for a, b in zip(out_tangents, cotangents, strict=True))
    right = sum(inner_product(a, b) for a, b in zip(tangents, results, strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)


def vjp_of(program: Program, active: tuple[bool, ...]) -> Program:
    """Return (operands, cotangents of the results) → the cotangents of the active operands."""
    forward, linear, out_active = linearize_program(program, active)
    count = len(forward.outputs) - output_count(program)
    is_tangent = tuple(index >= count for index in range(len(linear.inputs)))
    backward, nonzero = transpose_program(linear, is_tangent, (True,) * len(linear.outputs))

    def body(*args: Any) -> Any:
        residuals = Call(forward)(*args[: len(program.inputs)])[output_count(program) :]
        cotangents = Call(backward)(*residuals, *select(args[len(program.inputs) :], out_active))
        return instantiate_zeros(insert_none(cotangents, nonzero), (True,) * len(nonzero), linear.in_types[count:])

    return rewrite("vjp", [*program.in_types, *program.out_types], body)


def assert_derivative_types(program: Program, active: tuple[bool, ...]) -> None:
    """Check, in the dtypes of the case, that tangents have the types of outputs, and cotangents those of operands."""
    _, linear, out_active = linearize_program(program, active)
    assert linear.out_types == tuple(select(program.out_types, out_active))
    residuals = len(linear.inputs) - active.count(True)
    is_tangent = (*(False,) * residuals, *(True,) * active.count(True))
    backward, out_nonzero = transpose_program(linear, is_tangent, (True,) * output_count(linear))
    assert verify(backward).out_types == tuple(select(select(program.in_types, active), out_nonzero))


def vmap_like_loop(case: Case) -> None:
    program, args, size = case.program, case.args, 3
    batches = [case.batch(index, size) for index in range(len(args))]
    batch_dims: list[list[int | None]] = [[None, *range(type.ndim + 1)] for type in case.types]
    combinations = list(itertools.product(*batch_dims))
    limit = (
        10 if isinstance(case.op, (Sampler, Hyp1f1GradParameter, Hyp2f1GradParameter)) else 100
    )  # their loops are slow in numpy
    for dims in combinations[:: 1 + len(combinations) // limit]:
        if all(dim is None for dim in dims):
            continue
        batched, out_dims = vmap_program(program, BatchAxis(size), dims)
        stacked = [batch[0] if dim is None else np.stack(batch, dim) for batch, dim in zip(batches, dims, strict=True)]
        actual = evaluate(verify(batched), stacked)
        loop = [
            evaluate(program, [batch[0 if dim is None else i] for batch, dim in zip(batches, dims, strict=True)])
            for i in range(size)
        ]
        for index, (result, dim) in enumerate(zip(actual, out_dims, strict=True)):
            each = [results[index] for results in loop]
            if dim is None:
                for one in each:
                    assert_alike(case.op, [result], [one])
            else:
                assert_alike(case.op, [result], [np.stack(each, dim)])


def factors_like_shards(case: Case) -> None:
    expected = evaluate(case.program, case.args)
    for local in sharded_programs(case):
        assert_alike(case.op, evaluate_shards(local, case.args), expected)
        assert parse_program(str(local.program)) == local.program


def sharded_programs(case: Case) -> Iterator[LocalProgram]:
    """Yield the local programs of the op, sharded along each of its factors."""
    program = case.program
    (equation,) = program.equations
    rule = factor_rule(case.op, case.types)
    for sharding in sharding_cases(case):
        axes = AXES[: len(sharding)]
        mesh = AbstractMesh([count for _, count in sharding], axes)
        factors = {axis: factor for axis, (factor, _) in zip(axes, sharding, strict=True)}
        reduces = any(factor in rule.reduce for factor in factors.values())
        in_pins = [pin_along(factors, dims) for dims in rule.operands]
        out_pins = [None if reduces else pin_along(factors, dims) for dims in rule.results]
        problem = layout_problem(program, mesh, in_pins, out_pins)
        if not isinstance(case.op, Nullary):
            wanted = {axis: factor_candidate(rule, factor) for axis, factor in factors.items()}
            assert all(candidate in problem.candidates[axis][equation] for axis, candidate in wanted.items())
            options = {axis: {equation: (candidate,)} for axis, candidate in wanted.items()}
            problem = replace(problem, candidates=options)
        yield partition(problem, choose(problem))


AXES = ("a", "b")


def sharding_cases(case: Case) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield for each mesh axis a factor and the number of shards: each factor alone, twice, and with the next one."""
    rule = factor_rule(case.op, case.types)
    leading = sorted(rule.leading)
    for factor, after in zip(leading, [*leading[1:], *leading[:1]], strict=True):
        shardings = [((factor, 2),), ((factor, 3),), ((factor, 4),), ((factor, 2), (factor, 3))]
        for sharding in shardings if after == factor else [*shardings, ((factor, 2), (after, 2))]:
            if rule.allows_sharding({f: math.prod(count for g, count in sharding if g == f) for f, _ in sharding}):
                yield sharding
    for first, second, *_ in dict.fromkeys(rule.compound_dims):
        sharding = ((first, rule.sizes[first]), (second, 2))
        if not rule.need_replication.intersection((first, second)) and rule.allows_sharding(dict(sharding)):
            yield sharding


def pin_along(factors: dict[str, int], dims: Dims) -> Pin:
    """Pin every dim to the axes that shard its factors, major first."""
    return Pin(
        Layout(tuple(tuple(axis for f in own for axis, factor in factors.items() if factor == f) for own in dims))
    )


def sums_pass_through(case: Case) -> None:
    for linear in case.op.linear_in(*case.types):
        result_of_sum, sum_of_results = sum_results(case, linear)
        assert_alike(Sum(()), [result_of_sum], [sum_of_results])


def padding_is_as_stated(case: Case) -> None:
    rule = factor_rule(case.op, case.types)
    (result,) = result_types(case.op, case.types)
    for out_dim, factors in padded_dims(rule):
        padded_operands = [
            (operand, dims.index(factors)) for operand, dims in enumerate(rule.operands) if factors in dims
        ]
        for values in itertools.product((0, 1), repeat=len(padded_operands)):
            args = case.args
            fills = [
                np.asarray(value).astype(args[operand].dtype)
                for value, (operand, _) in zip(values, padded_operands, strict=True)
            ]
            for fill, (operand, dim) in zip(fills, padded_operands, strict=True):
                empty = np.take(args[operand], [], dim).shape
                row = np.full((*empty[:dim], 1, *empty[dim + 1 :]), fill)
                args[operand] = np.concatenate([args[operand], row], dim)
            stated = case.op.padding(fills)
            if stated is None:
                continue
            shape = (*result.shape[:out_dim], result.shape[out_dim] + 1, *result.shape[out_dim + 1 :])
            types = [ArrayType(arg.shape, arg.dtype) for arg in args]
            context = _PaddedContext((shape,), case.types)
            local = rewrite("local", types, lambda *xs, context=context: [case.op.localize(context, *xs)])
            padding = np.take(evaluate(local, args)[0], -1, out_dim)
            assert_alike(case.op, [padding], [np.full(padding.shape, stated).astype(padding.dtype)])


@final
@dataclass(frozen=True)
class _PaddedContext:
    """The context of `localize` for a result with one padded element."""

    out_shapes: tuple[tuple[int, ...], ...]
    global_types: tuple[ArrayType, ...]
    auto_axes = ()

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        return (), 1

    def offset(self, dim: int, dtype: Any, operand: int | None = None) -> None:
        return None


def padded_dims(rule: FactorRule) -> list[tuple[int, tuple[int, ...]]]:
    """Return the dims of the result that may be padded inside the op, with their factors."""
    return [
        (dim, factors)
        for dim, factors in enumerate(rule.results[0])
        if rule.is_paddable(factors) and factors[0] not in rule.exchange
    ]


def text_reads_back(case: Case) -> None:
    program = case.program
    text = str(program)
    parsed = parse_program(text)
    assert parsed == program
    assert str(parsed) == re.sub(" *#.*", "", text)
    assert verify(parsed).out_types == program.out_types


# Which cases a law applies to.


def has_rule(case: Case) -> bool:
    """Return whether the op has a factor rule: calls are inlined and control ops unfolded before planning."""
    return not (case.op.is_call or isinstance(case.op, Control))


def is_shardable(case: Case) -> bool:
    """Return whether the op can be sharded along a factor; constrain and reshard prescribe their own sharding."""
    return has_rule(case) and not isinstance(case.op, (Constrain, Reshard)) and any(sharding_cases(case))


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


# Ops whose derivative is defined otherwise than as the derivative of their reference.
CUSTOM_DERIVATIVE = (
    *(StopGradient, ReducePrecision, Nextafter, BitcastConvert, LinearSolve, LinearCall, RandomGamma, CountSampler),
)


ROUNDED = (Quantize, ScaledDot)  # numbers that are rounded to float8


def has_derivative(case: Case) -> bool:
    """Return whether the op has a derivative: decompositions that are not unique have none."""
    if isinstance(case.op, (HouseholderOp, SimilarityReduction, FusedAttention, FusedAttentionGrad, *ROUNDED)):
        return False
    if isinstance(case.op, Svd):
        return not (case.op.full and case.op.vectors and case.types[0].shape[-1] != case.types[0].shape[-2])
    return not isinstance(case.op, Eig) or case.op.differentiable or not (case.op.left or case.op.right)


def has_free_phase(case: Case) -> bool:
    """Return whether the phases of complex vectors are arbitrary; linalg/test_linalg.py checks their products."""
    return isinstance(case.op, (Eigh, Svd)) and case.kinds[0].kind == "c"


LAWS: dict[Callable[[Case], None], Callable[[Case], bool]] = {
    lowers_like_numpy: lambda case: not isinstance(case.op, (Constrain, Reshard)),
    folds_like_numpy: lambda case: (
        (case.special or isinstance(case.op, (Dot, Reduce, MovementOp))) and all(type.size for type in case.types)
    ),
    jvp_like_finite_difference: lambda case: (
        any(active_operands(case))
        and not isinstance(case.op, CUSTOM_DERIVATIVE)
        and has_derivative(case)
        and not has_free_phase(case)
    ),
    transpose_is_adjoint: lambda case: (
        any(active_operands(case))
        and not isinstance(case.op, CUSTOM_DERIVATIVE)
        and has_derivative(case)
        and not case.op.irreversible
        and any(is_inexact(type.dtype) for type in case.program.out_types)
    ),
    # the derivatives of other ops are ops for which the laws hold
    second_derivative_like_finite_difference: lambda case: (
        isinstance(case.op, KernelOp) and not isinstance(case.op, Quantize)
    ),
    vmap_like_loop: lambda case: bool(case.types),
    factors_like_shards: is_shardable,
    sums_pass_through: lambda case: has_rule(case) and bool(case.op.linear_in(*case.types)),
    padding_is_as_stated: states_padding,
    text_reads_back: lambda case: True,
}


# Helpers of the laws.


def output_count(program: Program) -> int:
    return len(program.outputs)


def active_operands(case: Case) -> tuple[bool, ...]:
    fixed = case.op.nondifferentiable if isinstance(case.op, MultiOperandFunction) else ()
    return tuple(is_inexact(kind) and index not in fixed for index, kind in enumerate(case.kinds))


def subsets(mask: Sequence[bool]) -> Iterator[tuple[bool, ...]]:
    """Yield the masks of all nonempty subsets of the elements that are marked."""
    for subset in itertools.product(*((True, False) if marked else (False,) for marked in mask)):
        if any(subset):
            yield subset


def select(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [item for item, marked in zip(items, mask, strict=True) if marked]


def perturb(args: Sequence[NumpyArray], tangents: Sequence[NumpyArray], active: Sequence[bool], by: float) -> list[Any]:
    rest = iter(tangents)
    return [arg + by * next(rest) if is_active else arg for arg, is_active in zip(args, active, strict=True)]


def inner_product(a: NumpyArray, b: NumpyArray) -> Any:
    """Return the real part of the bilinear product: JAX's convention for complex cotangents."""
    return np.real(np.sum(a * b))


def sum_results(case: Case, operands: Collection[int]) -> tuple[NumpyArray, NumpyArray]:
    """Return the result for sums of two terms in these operands, and the sum of the results for each term."""
    program = widen_program(case.program)
    first, second = (plain(program.in_types, f"{which} terms of {case}") for which in ("first", "second"))
    other = [second[i] if i in operands else first[i] for i in range(len(first))]
    both = [total(a, b) if i in operands else a for i, (a, b) in enumerate(zip(first, second, strict=True))]
    (result_of_sum,) = evaluate(program, both)
    return result_of_sum, total(*(evaluate(program, args)[0] for args in (first, other)))


def total(a: NumpyArray, b: NumpyArray) -> NumpyArray:
    return np.asarray(Add().reference(a, b))


def copies_elements(op: Op) -> bool:
    """Return whether results are copies of elements, which must agree bitwise, NaN and signed zeros included."""
    if isinstance(op, Scatter):
        return op.combine is None
    return isinstance(op, (Nullary, MovementOp, Select, Constrain, Sort, DynamicSlice, DynamicUpdateSlice, Gather))


# Ops that are exact, or correctly rounded once.
ROUNDED_ONCE = (
    *(Add, Sub, Mul, Div, Rem, Neg, Max, Min, Clamp, Convert, Abs, Sign, Real, Imag, Conj, Complex, Square),
    *(Floor, Ceil, Round, Nextafter, ReducePrecision, Relu, ReduceExtremum),
)


def tolerance_in_ulps(op: Op, dtype: DType) -> float:
    """Return how many units in the last place two computations of an element may differ by."""
    if isinstance(op, ROUNDED_ONCE) and dtype.kind != "c":
        return 0
    if isinstance(op, Exp2):
        return 128  # rounding the exponent, up to 300 here, changes the result by that much
    if isinstance(op, Elementwise):
        return 4 if op.dialect == "stablehlo" else 32  # CHLO's functions are compositions
    # Sums run in f32 or wider, in any order, and are rounded to narrower dtypes at the end.
    return 64 * min(1, np.finfo(np.float32).eps / float(ml_dtypes.finfo(dtype).eps)) + 2


def assert_alike(op: Op, actual: Sequence[NumpyArray], expected: Sequence[NumpyArray]) -> None:
    """Check that results agree: copies, integers and booleans bitwise, others up to rounding."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if copies_elements(op) or not is_inexact(a.dtype):
            assert a.tobytes() == b.tobytes(), f"{a}\nis not\n{b}"
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        rtol = tolerance_in_ulps(op, a.dtype) * float(ml_dtypes.finfo(a.dtype).eps)
        # Special functions have an absolute error of this size near their zeros.
        size = 1.0 if isinstance(op, SpecialFunction) else float(np.abs(y[np.isfinite(y)]).max(initial=0))
        # Subnormal results may be flushed to zero.
        np.testing.assert_allclose(x, y, rtol, rtol * min(1.0, size) + float(ml_dtypes.finfo(a.dtype).smallest_normal))


def widen_program(program: Program) -> Program:
    """Return the program with f64 for all floats and c128 for all complex numbers."""
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
                return widen_program(value)
            case tuple():
                return tuple(map(wide_field, value))
            case np.dtype():
                return wide_dtype(value)
            case Scalar():
                return Scalar.from_value(value.array, wide_dtype(value.dtype))
            case _:
                return value

    return replace(op, **{field.name: wide_field(getattr(op, field.name)) for field in fields(op)})


def wide_type(type: ArrayType) -> ArrayType:
    return ArrayType(type.shape, wide_dtype(type.dtype), type.weak)


def wide_dtype(dtype: DType) -> DType:
    return np.dtype(np.complex128) if dtype.kind == "c" else np.dtype(np.float64) if is_float(dtype) else dtype

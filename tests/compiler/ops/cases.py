"""Cases for the laws: for every op that a user's program can contain, instances with types and values.

A case prints as the op and its operand types. Values are *plain* (magnitudes from 0.5 to 2 and small integers, for
which no op overflows and derivatives are continuous) or *special* (NaN, infinities, both zeros, the largest and
smallest numbers; if the sizes allow, every combination of the operands' special values occurs).
"""

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.control.linear_solve import LinearSolve
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.dtypes import SHORT_NAMES, DType, is_inexact, is_integer, numpy_carrier
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.format import format_op
from shardwise.compiler.ir.op import NumpyArray, Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar, parse_type
from shardwise.compiler.kernels.cross_entropy import CrossEntropy, CrossEntropyGrad
from shardwise.compiler.kernels.norm import Norm, NormFactors, NormGrad
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.kernels.unpack import Unpack
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem, StopGradient, Sub
from shardwise.compiler.ops.elementwise.bitwise import (
    And,
    BitcastConvert,
    Clz,
    MulHigh,
    Not,
    Or,
    PopulationCount,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
)
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Conj, Imag, Real, Sign
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.ops.elementwise.min_max import Clamp, Max, Min, Relu
from shardwise.compiler.ops.elementwise.powers import Cbrt, IntegerPow, OneMinusSquare, Pow, Rsqrt, Sqrt, Square
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor, IsFinite, Nextafter, ReducePrecision, Round
from shardwise.compiler.ops.elementwise.select import DIRECTIONS, Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atan2,
    Atanh,
    Cos,
    Cosh,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Log2,
    Logistic,
    Sin,
    Sinh,
    Tan,
    Tanh,
)
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.indexing.sort import Sort, TopK
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.fft import Fft
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg, Schur, Tridiagonal
from shardwise.compiler.ops.linalg.householder import Geqrf, HouseholderProduct, Ormqr, Qr
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve, TridiagonalSolve
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.memory_space import CopyToDevice, CopyToHost, InMemory
from shardwise.compiler.ops.placement.reshard import Reshard
from shardwise.compiler.ops.placement.shard_alike import ShardAlike
from shardwise.compiler.ops.random.threefry import RandomBits, RandomKeys
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin, ExtremumWithIndex
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import COMBINERS, Cumulative, Recurrence
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.reduce.window_argmax import GatherFromWindow, ScatterAddToWindow, WindowArgExtremum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.roll import Roll
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.poisson_binomial import CountSampler, RejectionSampler, WaitingTimeSampler
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType
from shardwise.compiler.special.approximations import (
    BesselI0e,
    BesselI1e,
    CosineIntegral,
    Dawsn,
    Erfcx,
    Exp1,
    Expi,
    Fresnel,
    Ndtri,
    SineIntegral,
    Spence,
)
from shardwise.compiler.special.gamma_erf import (
    Digamma,
    Entr,
    Erf,
    Erfc,
    ErfInv,
    Lgamma,
    Polygamma,
    Xlog1py,
    Xlogy,
    Zeta,
)
from shardwise.compiler.special.hypergeometric import Hyp1f1, Hyp1f1GradParameter, Hyp2f1, Hyp2f1GradParameter
from shardwise.compiler.special.incomplete import Betainc, Expn, Igamma, Igammac, IgammaGradA, RandomGammaGrad
from shardwise.compiler.trace.build import rewrite


@final
@dataclass(frozen=True)
class Case:
    """An op, the types of its operands, and whether their values are special."""

    op: Op
    types: tuple[ArrayType, ...]
    special: bool = False

    def __str__(self) -> str:
        op = format_op(self.op)
        if self.op.programs:  # are printed by name
            rest = [getattr(self.op, field.name) for field in fields(self.op) if field.type in (int, bool)]
            op = f"{self.op.name}[{', '.join(map(str, [*(p.name for p in self.op.programs), *rest]))}]"
        return " ".join([op, *map(str, self.types), *(["special"] if self.special else [])])

    @property
    def program(self) -> Program:
        """A program that applies the op."""
        return one_op(self.op, self.types)

    @property
    def args(self) -> list[NumpyArray]:
        """The operands. Equal cases have equal operands."""
        return specials(self.types) if self.special else self.plain(self.types)

    def plain(self, types: Sequence[ArrayType], seed: str = "") -> list[NumpyArray]:
        """Return operands of these types with plain values in the domain of the op."""
        low, high, signs = DOMAINS.get(self.op.name, PLAIN_DOMAIN)
        operands = plain(types, seed or str(self), low, high, signs)
        if isinstance(self.op, Cond):  # the index must be in range
            operands[0] = np.asarray(operands[0] % len(self.op.branches), np.int32)
        if isinstance(self.op, BatchedMatrixOp):
            make_well_conditioned(self.op, operands)
        if isinstance(self.op, CountSampler):
            set_expected_counts(self.op, operands)
        if isinstance(self.op, (Polygamma, Expn)):  # the order must be an integer
            operands[0] = np.round(operands[0].astype(np.float64)).astype(operands[0].dtype)
        return operands

    def directions(self, types: Sequence[ArrayType]) -> list[NumpyArray]:
        """Return tangents of operands of these types: Hermitian if the op assumes that its operand is."""
        tangents = plain(types, f"tangents of {self}")
        if isinstance(self.op, (Cholesky, Eigh)):
            tangents[0] = np.asarray(tangents[0] + np.swapaxes(tangents[0], -1, -2).conj())
        return tangents

    def batch(self, number: int, size: int) -> list[NumpyArray]:
        """Return `size` values of an operand: its elements rolled; a branch index takes all values."""
        arg = self.args[number]
        if isinstance(self.op, BatchedMatrixOp):
            return [self.plain(self.types, f"{self}, {shift}")[number] for shift in range(size)]
        if isinstance(self.op, Cond) and not number:
            return [np.asarray((arg + shift) % len(self.op.branches), arg.dtype) for shift in range(size)]
        if isinstance(self.op, Control) and not arg.ndim and is_inexact(arg.dtype):
            return [np.asarray(arg * (1 + shift), arg.dtype) for shift in range(size)]
        if isinstance(self.op, (DynamicSlice, DynamicUpdateSlice)) and not arg.ndim and is_integer(arg.dtype):
            return [np.asarray(arg + shift, arg.dtype) for shift in range(size)]
        return [np.roll(arg.reshape(-1), shift).reshape(arg.shape) for shift in range(size)]

    @property
    def kinds(self) -> list[DType]:
        return [type.dtype for type in self.types]


def one_op(op: Op, types: Sequence[ArrayType]) -> Program:
    inputs = [Value(type) for type in types]
    outputs = [Value(type) for type in result_types(op, tuple(types))]
    return Program(tuple(inputs), (Equation(op, inputs, outputs),), tuple(outputs), op.name)


def make_well_conditioned(op: Op, operands: list[NumpyArray]) -> None:
    """Change operands so that the op is defined and well-conditioned for them."""
    first = operands[0]
    if isinstance(op, PivotsToPermutation):
        operands[0] = np.asarray(np.abs(first) % op.size, first.dtype)
    elif isinstance(op, TridiagonalSolve):
        operands[1] += np.asarray(4 * np.sign(operands[1].real), first.dtype)
    elif isinstance(op, Cholesky):
        operands[0] = first @ np.swapaxes(first, -1, -2).conj() + np.eye(first.shape[-1], dtype=first.dtype)
    elif isinstance(op, TriangularSolve):
        weights = 1 + 3 * np.eye(first.shape[-1])
        operands[0] = np.asarray(first.astype(numpy_carrier(first.dtype)) * weights).astype(first.dtype)


def set_expected_counts(op: CountSampler, operands: list[NumpyArray]) -> None:
    """Change rates, trials and probabilities so that few events are expected; many if sampling is by rejection."""
    first, times = (4, 100) if isinstance(op, RejectionSampler) else (2, 3)
    operands[first] = np.asarray(times * operands[first], operands[first].dtype)
    if op.distribution == "binomial":
        operands[-1] = np.asarray(operands[-1] / 5, operands[-1].dtype)


PLAIN_DOMAIN = (0.5, 2.0, (-1, 1))
_POSITIVE, _BELOW_ONE = (0.5, 2.0, (1,)), (0.1, 0.9, (-1, 1))
# Magnitudes and signs for ops that are not smooth on plain values.
DOMAINS = {
    **dict.fromkeys(("log", "log1p", "log2", "sqrt", "rsqrt", "pow", "lgamma", "digamma", "polygamma"), _POSITIVE),
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a", "random_gamma_grad"), _POSITIVE),
    **dict.fromkeys(("exp1", "expn", "cosine_integral", "spence", "xlogy", "xlog1py", "entr"), _POSITIVE),
    **dict.fromkeys(("betainc", "ndtri"), (0.3, 0.9, (1,))),
    **dict.fromkeys(("hyp1f1", "hyp1f1_grad_parameter", "hyp2f1", "hyp2f1_grad_parameter"), (0.3, 0.9, (1,))),
    **dict.fromkeys(("asin", "acos", "atanh", "erf_inv", "tan"), _BELOW_ONE),
    **dict.fromkeys(("acosh", "zeta"), (1.2, 3.0, (1,))),
    **dict.fromkeys(("random_gamma", "random_waiting", "random_rejection"), _POSITIVE),
}


def plain(
    types: Sequence[ArrayType], seed: str, low: float = 0.5, high: float = 2.0, signs: Sequence[int] = (-1, 1)
) -> list[NumpyArray]:
    """Return arrays of these types with plain values; equal seeds give equal arrays."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))

    def real(shape: tuple[int, ...]) -> NumpyArray:
        return np.asarray(rng.uniform(low, high, shape) * rng.choice(signs, shape))

    def array(type: ArrayType) -> NumpyArray:
        if type.dtype == np.bool_:
            return np.asarray(rng.integers(0, 2, type.shape).astype(np.bool_))
        if type.dtype.kind == "c":
            return np.asarray((real(type.shape) + 1j * real(type.shape)).astype(type.dtype))
        if is_inexact(type.dtype):
            return np.asarray(real(type.shape).astype(type.dtype))
        return np.asarray(rng.integers(-7, 8, type.shape).astype(type.dtype))

    return [array(type) for type in types]


def special_values(dtype: DType) -> NumpyArray:
    """Return values of a dtype for which implementations differ. No subnormals: XLA flushes them to zero on CPU."""
    if dtype == np.bool_:
        return np.array([False, True])
    if is_integer(dtype):
        low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        return np.array([low, low + 1, 0, 1, 5, high - 1, high], np.uint64 if low == 0 else np.int64).astype(dtype)
    if dtype.kind == "c":
        parts = [0.0, -0.0, 1.0, 2.0, np.nan, np.inf]
        return np.array([complex(a, b) for a, b in itertools.product(parts, parts)], dtype)
    limits = ml_dtypes.finfo(dtype)
    infinities = [] if np.isnan(np.asarray(np.inf).astype(dtype)) else [np.inf, -np.inf]
    numbers = [np.nan, *infinities, 0.0, -0.0, 1.0, -1.5, 300.0, float(limits.smallest_normal)]
    extremes = np.array([limits.max, limits.min], dtype)
    with np.errstate(over="ignore"):
        return np.concatenate([np.array(numbers).astype(dtype), extremes])


def specials(types: Sequence[ArrayType]) -> list[NumpyArray]:
    """Return special values: element n of operand i has the value that digit i of n selects."""
    arrays, stride = [], 1
    for type in types:
        values = special_values(type.dtype)
        arrays.append(values[(np.arange(type.size) // stride) % len(values)].reshape(type.shape))
        stride *= len(values)
    return arrays


def case(op: Op, text: str, special: bool = False) -> Case:
    """Return a case; operand types are written as they print: `f32[3,4] f32[3,4]`."""
    return Case(op, tuple(parse_type(word) for word in text.split()), special)


def dtype(name: str) -> DType:
    return SHORT_NAMES[name]


FLOATS = ("f32", "f16", "bf16", "f64")
COMPLEX = ("c64", "c128")
INTEGERS = ("i32", "u8", "i8", "u32", "i64")
SMALL = ("f8_e4m3fn", "f8_e5m2", "i4", "u4")
SHAPES = ("[]", "[5]", "[3,4]", "[2,1,5]", "[2,3,2,2]", "[3,0]")


def nullary_cases() -> list[Case]:
    constants = [
        *(
            Full(shape, Scalar.from_value(1.5, np.float32))
            for shape in ((), (5,), (3, 4), (2, 1, 5), (2, 3, 2, 2), (3, 0))
        ),
        *(Full((3,), Scalar.from_value(1, dtype(name))) for name in SHORT_NAMES),
        *(Full((7,), Scalar.from_value(value, np.float32)) for value in (np.nan, np.inf, -np.inf, -0.0, 1e-30, 0.1)),
        Full((7,), Scalar.from_value(0.1, np.float64)),
        Full((2, 3), Scalar.from_value(complex(-0.0, 2.5), np.complex64)),
        Full((2, 3), Scalar.from_value(complex(np.nan, -np.inf), np.complex128)),
        Full((3,), Scalar.from_value(-(2**31), np.int32)),
        Full((3,), Scalar.from_value(2**64 - 1, np.uint64)),
        Full((), Scalar.from_value(2.0, np.float32), weak=True),
    ]
    counts = [
        *(Iota((5, 3), dim, np.dtype(np.int32)) for dim in (0, 1)),
        *(Iota((7,), 0, dtype(name)) for name in SHORT_NAMES if name != "bool"),
        Iota((2, 3, 4, 2), 2, np.dtype(np.float32)),
        Iota((3, 0), 1, np.dtype(np.int32)),
        Iota((1, 4), 0, np.dtype(np.int32)),
        # Indices that the dtype cannot represent: they wrap around or are rounded.
        Iota((600,), 0, np.dtype(np.uint8)),
        Iota((605, 2), 0, dtype("bf16")),
        Iota((4101,), 0, np.dtype(np.float16)),
    ]
    return [Case(op, ()) for op in (*constants, *counts)]


def movement_cases() -> list[Case]:
    cases = [
        case(Broadcast((3,), ()), "f32[]"),
        case(Broadcast((3, 4), (1,)), "f32[4]"),
        case(Broadcast((3, 4), (0,)), "i32[3]"),
        case(Broadcast((5, 2, 3), (1, 2)), "bf16[2,3]"),
        case(Broadcast((2, 5, 3), (0, 2)), "f64[2,3]"),
        case(Broadcast((2, 1, 3, 4), (1, 3)), "c64[1,4]"),
        case(Broadcast((0, 4), (1,)), "bool[4]"),
        case(Broadcast((4, 0), (1,)), "f32[0]"),
        case(Broadcast((3, 4), (0, 1)), "u8[3,4]"),
        case(Broadcast((2,), ()), "f32[]~"),
        case(Broadcast((3, 11), (1,)), "f32[11]", special=True),
    ]
    reshapes = [
        ("f32[6]", (2, 3)),
        ("f32[2,3]", (6,)),
        ("f32[]", (1, 1)),
        ("f32[1,1]", ()),
        ("i32[8,4]", (2, 16)),
        ("f32[6,4]", (4, 6)),
        ("bf16[4,6]", (6, 4)),
        ("f32[2,3]", (3, 2)),
        ("f32[12]", (3, 4)),
        ("f32[12,2]", (3, 8)),
        ("c64[4,5]", (4, 1, 5)),
        ("f64[1,4,1,5]", (4, 5, 1)),
        ("bool[2,3,4]", (6, 4)),
        ("u8[2,3,4]", (2, 12)),
        ("f32[2,3,4]", (4, 3, 2)),
        ("f32[5,6,4]", (5, 4, 6)),
        ("f32[6,4,7]", (4, 6, 7)),
        ("f32[2,6,2]", (4, 3, 2)),
        ("f32[4,3,4]", (2, 6, 4)),
        ("f32[3,0]", (0, 5)),
        ("f32[2,0,3]", (0,)),
        ("f32[1,3]", (3, 1)),
        ("f32[7]~", (7, 1)),
        ("f32[4,2,3]", (8, 3)),
        ("f32[16]", (2, 2, 2, 2)),
        ("f32[12,1]", (2, 6)),
        ("f32[1,12]", (4, 1, 3)),
        ("f32[9,4]", (6, 6)),
    ]
    cases += [case(Reshape(shape), text) for text, shape in reshapes]
    cases.append(case(Reshape((11, 1)), "f32[11]", special=True))
    transposes = [
        ("f32[]", ()),
        ("f32[5]", (0,)),
        ("f32[3,4]", (1, 0)),
        ("bf16[3,4]", (0, 1)),
        ("i32[2,3,4]", (1, 2, 0)),
        ("f64[2,3,4]", (2, 0, 1)),
        ("c64[2,1,4]", (2, 1, 0)),
        ("bool[2,3,4,5]", (3, 1, 0, 2)),
        ("f32[3,0,2]", (1, 2, 0)),
        ("f32[3,4]~", (1, 0)),
    ]
    cases += [case(Transpose(order), text) for text, order in transposes]
    cases.append(case(Transpose((1, 0)), "f32[11,3]", special=True))
    return cases


def slicing_cases() -> list[Case]:
    slices = [
        ("f32[]", (), (), ()),
        ("f32[7]", (0,), (7,), (1,)),
        ("f32[7]", (2,), (5,), (1,)),
        ("f32[7]", (1,), (7,), (2,)),
        ("f32[7]", (0,), (6,), (4,)),
        ("f32[7]", (3,), (3,), (1,)),
        ("f32[1]", (0,), (1,), (3,)),
        ("f32[5,4]", (0, 1), (5, 3), (1, 1)),
        ("f32[5,4]", (1, 0), (5, 4), (3, 1)),
        ("f32[5,4]", (2, 0), (5, 4), (1, 2)),
        ("f32[3,1,5]", (0, 0, 4), (3, 1, 5), (1, 2, 1)),
        ("f32[2,3,4,3]", (1, 0, 0, 1), (2, 3, 4, 3), (1, 1, 3, 1)),
        ("f32[0,3]", (0, 1), (0, 2), (1, 1)),
        ("f32[3,0]", (1, 0), (3, 0), (2, 5)),
        ("f32[7]~", (2,), (5,), (2,)),
    ]
    cases = [case(Slice(start, limit, stride), text) for text, start, limit, stride in slices]
    pads = [
        ("f32[]", (), (), ()),
        ("f32[4]", (0,), (0,), (0,)),
        ("f32[4]", (2,), (1,), (0,)),
        ("f32[4]", (0,), (0,), (2,)),
        ("f32[4]", (-1,), (-2,), (0,)),
        ("f32[4]", (-2,), (3,), (1,)),
        ("f32[4]", (1,), (-1,), (0,)),
        ("f32[3]", (-5,), (6,), (0,)),
        ("f32[3]", (6,), (-5,), (1,)),
        ("f32[3]", (-1,), (-2,), (0,)),
        ("f32[0]", (1,), (2,), (3,)),
        ("f32[1]", (0,), (1,), (3,)),
        ("f32[5,4]", (0, 1), (0, 2), (0, 0)),
        ("f32[5,4]", (0, -1), (0, -1), (0, 0)),
        ("f32[5,4]", (1, 0), (0, 0), (2, 0)),
        ("f32[2,3,5]", (0, 1, 0), (0, 0, 0), (0, 1, 0)),
        ("f32[2,3,2,5]", (1, 0, 0, -1), (0, 0, 1, 1), (0, 0, 0, 2)),
        ("f32[3,0]", (1, 0), (0, 0), (0, 1)),
        ("f32[3,0]", (0, 1), (0, 1), (0, 1)),
    ]
    for text, low, high, interior in pads:
        cases.append(case(Pad(low, high, interior), f"{text} f32[]"))
    cases += [case(Pad((1,), (0,), (0,)), text) for text in ("f32[3]~ f32[]~", "f32[3] f32[]~")]
    joins = [
        ("f32[5]", 0),
        ("f32[5] f32[3]", 0),
        ("f32[5] f32[5]", 0),
        ("f32[2] f32[0] f32[3] f32[1]", 0),
        ("f32[5,3] f32[5,2]", 1),
        ("f32[2,3] f32[1,3] f32[4,3]", 0),
        ("f32[2,3,4] f32[2,1,4]", 1),
        ("f32[0,3] f32[0,3]", 1),
        ("f32[3,0] f32[2,0]", 0),
        ("f32[5,4] f32[5,4]", 1),
        ("f32[2]~ f32[3]~", 0),
        ("f32[2]~ f32[3]", 0),
    ]
    cases += [case(Concatenate(dim), text) for text, dim in joins]
    reverses = [
        ("f32[]", ()),
        ("f32[5]", (0,)),
        ("f32[5]", ()),
        ("f32[5,4]", (1,)),
        ("f32[5,4]", (1, 0)),
        ("f32[2,3,4]", (1,)),
        ("f32[2,1,4,3]", (3, 1)),
        ("f32[3,0]", (1,)),
        ("f32[4]~", (0,)),
    ]
    cases += [case(Reverse(dims), text) for text, dims in reverses]
    rolls = [("f32[5]", 0, 2), ("f32[5]", 0, 0), ("f32[6,4]", 0, 5), ("f32[6,12]", 1, 1), ("f32[2,12,3]", 1, 7)]
    rolls += [("f32[0]", 0, 0), ("f32[3,0]", 0, 1), ("f32[4]~", 0, 1), ("f32[1,3]", 0, 0)]
    cases += [case(Roll(dim, by), text) for text, dim, by in rolls]
    for name in ("f64", "f16", "bf16", "i32", "u8", "i64", "bool", "c64", "c128", *SMALL):
        cases.append(case(Slice((0, 1), (3, 5), (1, 2)), f"{name}[3,5]"))
        cases.append(case(Pad((0, 1), (0, 2), (0, 1)), f"{name}[3,2] {name}[]"))
        cases.append(case(Concatenate(1), f"{name}[3,2] {name}[3,3]"))
        cases.append(case(Reverse((1,)), f"{name}[3,4]"))
        cases.append(case(Roll(1, 3), f"{name}[3,4]"))
    for name in ("f32", "bf16", "i32", "c64"):
        cases.append(case(Slice((1, 0), (11, 3), (2, 1)), f"{name}[11,3]", special=True))
        cases.append(case(Pad((1, 0), (-2, 0), (0, 0)), f"{name}[11,3] {name}[]", special=True))
        cases.append(case(Concatenate(0), f"{name}[11,3] {name}[2,3]", special=True))
        cases.append(case(Reverse((0,)), f"{name}[11,3]", special=True))
        cases.append(case(Roll(0, 4), f"{name}[11,3]", special=True))
    return cases


def dynamic_cases() -> list[Case]:
    """Slices at traced positions, some of them out of bounds."""
    parts = [
        ("[]", ()),
        ("[7]", (1,)),
        ("[7]", (3,)),
        ("[7]", (7,)),
        ("[7]", (0,)),
        ("[7]", (6,)),
        ("[5,4]", (1, 4)),
        ("[5,4]", (5, 1)),
        ("[5,4]", (2, 3)),
        ("[4,3,5]", (1, 3, 4)),
        ("[2,3,4,3]", (2, 1, 4, 2)),
        ("[0,3]", (0, 2)),
        ("[1,3]", (1, 1)),
    ]
    cases = []
    for text, sizes in parts:
        starts = " i32[]" * len(sizes)
        part = f"[{','.join(map(str, sizes))}]"
        cases.append(case(DynamicSlice(sizes), f"f32{text}{starts}"))
        cases.append(case(DynamicUpdateSlice(), f"f32{text} f32{part}{starts}"))
    for name in ("f64", "f16", "bf16", "i32", "u8", "i64", "bool", "c64", "c128", *SMALL):
        cases.append(case(DynamicSlice((3, 2)), f"{name}[3,5] i64[] i64[]"))
        cases.append(case(DynamicUpdateSlice(), f"{name}[3,5] {name}[2,5] i64[] i64[]"))
    for name in ("f32", "bf16", "i32", "c64"):
        cases.append(case(DynamicSlice((5, 3)), f"{name}[11,3] i32[] i32[]", special=True))
        cases.append(case(DynamicUpdateSlice(), f"{name}[11,3] {name}[4,3] i32[] i32[]", special=True))
    cases.append(case(DynamicSlice((2,)), "f32[5]~ i32[]~"))
    cases += [case(DynamicUpdateSlice(), f"f32[5]~ f32[2]{weak} i32[]~") for weak in ("~", "")]
    return cases


# The dims of a gather or scatter (window, collapsed, batch, index_batch, mapped), the shapes of the operand and of the
# indices, and the sizes of windows.
PLACES: list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    (((), (0,), (), (), (0,)), (7,), (5, 1), (1,)),  # elements of a vector
    (((1,), (0,), (), (), (0,)), (6, 4), (5, 1), (1, 4)),  # rows
    (((2,), (0,), (), (), (0,)), (6, 4), (3, 2, 1), (1, 4)),
    (((0,), (1,), (), (), (1,)), (3, 6), (4, 1), (3, 1)),  # columns
    (((), (0, 1), (), (), (0, 1)), (4, 3), (5, 2), (1, 1)),  # elements of a matrix
    (((1,), (0, 2), (), (), (2, 0)), (4, 3, 5), (4, 2), (1, 3, 1)),
    (((), (1,), (0,), (0,), (1,)), (3, 5), (3, 4, 1), (1, 1)),  # along each row
    (((2,), (1,), (0,), (1,), (1,)), (3, 5, 2), (4, 3, 1), (1, 1, 2)),
    (((0,), (), (), (), (0,)), (7,), (1,), (3,)),  # one window
    (((0, 2), (), (), (), (0, 1)), (5, 6), (4, 2), (2, 3)),  # windows of several elements, which may overlap
    (((1, 2), (), (), (), (1,)), (3, 6), (4, 1), (3, 2)),
    (((1,), (0,), (), (), (0, 1)), (4, 3), (5, 2), (1, 3)),  # a mapped dim that the window covers
    (((0,), (0,), (), (), ()), (1, 4), (0,), (1, 4)),  # empty index vectors
    (((), (0,), (), (), (0,)), (4,), (1,), (1,)),  # one index
    (((1,), (0,), (), (), (0,)), (6, 4), (0, 1), (1, 4)),  # no indices
    (((1,), (0,), (), (), (0,)), (5, 0), (3, 1), (1, 0)),
    (((), (0,), (), (), (0,)), (1,), (3, 1), (1,)),
]


def indexed_cases() -> list[Case]:
    """Gather and scatter, with indices out of bounds and with repeated ones."""

    def text(shape: tuple[int, ...]) -> str:
        return f"[{','.join(map(str, shape))}]"

    cases = []
    for dims, shape, index, sizes in PLACES:
        gather = Gather(*dims, sizes)
        result = gather.out_type(ArrayType(shape, np.float32), ArrayType(index, np.int32)).shape
        cases.append(case(gather, f"f32{text(shape)} i32{text(index)}"))
        for reduction in (None, SUM, PROD, MIN, MAX):
            cases.append(case(Scatter(*dims, reduction), f"f32{text(shape)} i32{text(index)} f32{text(result)}"))
    rows = PLACES[1][0]
    one = PLACES[13][0]
    for name in ("f64", "f16", "bf16", "i32", "u8", "i64", "bool", "c64", "c128", *SMALL):
        cases.append(case(Gather(*rows, (1, 4)), f"{name}[6,4] i64[5,1]"))
        reductions = (None, SUM, PROD, *(() if name in COMPLEX else (MIN, MAX)))
        cases += [case(Scatter(*rows, reduction), f"{name}[6,4] i64[5,1] {name}[5,4]") for reduction in reductions]
    cases += [
        case(Scatter(*one, reduction, unique=True), "f32[4] i32[1] f32[]") for reduction in (None, SUM, PROD, MAX)
    ]
    cases.append(case(Gather(*one, (1,), unique=True, sorted=True), "f32[4] i32[1]"))
    cases.append(case(Gather(*rows, (1, 4)), "f32[6,4]~ i32[5,1]"))
    cases += [case(Scatter(*rows, SUM), f"f32[6,4]~ i32[5,1] f32[5,4]{weak}") for weak in ("~", "")]
    for name in ("f32", "bf16", "i32", "c64"):
        cases.append(case(Gather(*rows, (1, 3)), f"{name}[11,3] i32[7,1]", special=True))
        cases.append(case(Scatter(*rows, None), f"{name}[11,3] i32[7,1] {name}[7,3]", special=True))
        if name != "c64":
            cases.append(case(Scatter(*rows, MAX), f"{name}[11,3] i32[7,1] {name}[7,3]", special=True))
    return cases


def elementwise_cases() -> list[Case]:
    cases: list[Case] = []

    def over(op: Op, arity: int, names: Sequence[str], shapes: Sequence[str] = ("[3,4]",)) -> None:
        cases.extend(
            case(op, " ".join([f"{name}{shape}"] * arity))
            for name, shape in [*((names[0], shape) for shape in shapes), *((name, "[3,5]") for name in names[1:])]
        )

    def special(op: Op, arity: int, names: Sequence[str]) -> None:
        for name in names:
            count = len(special_values(dtype(name)))
            shape = ",".join([str(count)] * arity)
            cases.append(case(op, " ".join([f"{name}[{shape}]"] * arity), special=True))

    numbers = (*FLOATS, *COMPLEX, *INTEGERS, *SMALL)
    for binary in (Add(), Mul(), Max(), Min()):
        over(binary, 2, (*numbers, "bool"), SHAPES)
        special(binary, 2, ("f32", "f16", "bf16", "f64", "i32", "u8", "bool"))
    special(Add(), 2, ("c64",))
    over(Sub(), 2, numbers, SHAPES)
    special(Sub(), 2, ("f32", "f16", "bf16", "f64", "i32", "u8", "c64"))
    special(Max(), 2, ("c64",))
    special(Min(), 2, ("c64",))
    over(Clamp(), 3, (*FLOATS, "f8_e5m2", *INTEGERS, "i4"), SHAPES)
    special(Clamp(), 3, ("f32", "bf16", "i32", "u8"))
    over(Relu(), 1, (*FLOATS, "f8_e5m2", *INTEGERS, "i4"), SHAPES)
    special(Relu(), 1, ("f32", "bf16", "f64", "i32", "u8"))
    over(Div(), 2, (*FLOATS, *COMPLEX, "f8_e5m2", *INTEGERS, "i4", "u4"), SHAPES)
    special(Div(), 2, ("f32", "bf16", "f64", *INTEGERS, "i4", "u4"))
    over(Rem(), 2, (*FLOATS, "f8_e5m2", *INTEGERS, "i4", "u4"), SHAPES)
    special(Rem(), 2, ("f32", "bf16", "f64", *INTEGERS, "i4", "u4"))
    over(Neg(), 1, numbers, SHAPES)
    special(Neg(), 1, ("f32", "bf16", "i32", "u8", "c64"))
    over(CheckpointName("activations"), 1, ("f32", "bf16", "i32"), SHAPES)
    special(CheckpointName("activations"), 1, ("f32", "c64"))
    over(ShardAlike(), 2, ("f32", "bf16", "i32"), SHAPES)
    special(ShardAlike(), 2, ("f32",))
    over(InMemory("pinned_host"), 1, ("f32", "bf16", "i32"), SHAPES)
    special(InMemory("unpinned_host"), 1, ("f32", "c64"))
    for copy in (CopyToDevice(), CopyToHost()):
        over(copy, 1, ("f32", "i32"), SHAPES)
        special(copy, 1, ("f32",))
    over(StopGradient(), 1, ("f32", "bf16", "c64"), SHAPES)
    special(StopGradient(), 1, ("f32", "bf16", "c64"))
    for direction in DIRECTIONS:
        over(Compare(direction), 2, ("f32", "c64", "i32", "u8", "bool", "bf16", "u4", "i4"), ("[3,4]", "[2,1,3]"))
        special(Compare(direction), 2, ("f32", "i32", "u8", "u32", "bool", "f16", "c64"))
    for name in ("f32", "i32", "bool", "bf16", "c64"):
        cases.append(case(Select(), f"bool[3,4] {name}[3,4] {name}[3,4]"))
    cases += [
        case(Select(), "bool[] f32[] f32[]"),
        case(Select(), "bool[2,1,3] f64[2,1,3] f64[2,1,3]"),
        case(Select(), "bool[2,0] f32[2,0] f32[2,0]"),
        case(Select(), "bool[2,11,11] f32[2,11,11] f32[2,11,11]", special=True),
        # results of Python scalars only
        case(Add(), "f32[]~ f32[]~"),
        case(Sub(), "f32[]~ f32[]~"),
        case(Mul(), "f32[]~ f32[]"),
        case(Max(), "f32[]~ f32[]~"),
        case(Select(), "bool[] f32[]~ f32[]~"),
        case(Min(), "f32[]~ f32[]~"),
        case(Div(), "f32[]~ f32[]~"),
        case(Div(), "i32[]~ i32[]~"),
        case(Rem(), "f32[]~ f32[]~"),
        case(Clamp(), "f32[]~ f32[]~ f32[]~"),
    ]
    return cases


FUNCTIONS = (
    *(Exp(), Exp2(), Expm1(), Log(), Log1p(), Log2(), Logistic(), Sqrt(), Rsqrt()),
    *(Sin(), Cos(), Tan(), Asin(), Acos(), Atan()),
    *(Sinh(), Cosh(), Tanh(), Asinh(), Acosh(), Atanh()),
)
OF_REALS = (Cbrt(), Erf(), Erfc(), ErfInv(), Lgamma(), Digamma())


def function_cases() -> list[Case]:
    """Elementary functions."""
    cases = []
    for op in (*FUNCTIONS, *OF_REALS):
        kinds = (*FLOATS, *(COMPLEX if op in FUNCTIONS else ()), "f8_e5m2")
        cases += [case(op, f"{name}[3,4]") for name in kinds]
        cases += [case(op, f"{name}[11]", special=True) for name in ("f32", "f16", "bf16", "f64")]
    cases += [case(Exp(), f"f32{shape}") for shape in SHAPES if shape != "[3,4]"]
    cases += [case(op, "f32[]~") for op in (Exp(), Log(), Cos(), Erf())]
    for op in (Atan2(), Pow()):
        cases += [case(op, f"{name}[3,4] {name}[3,4]") for name in (*FLOATS, "f8_e5m2")]
        cases += [case(op, f"{name}[11,11] {name}[11,11]", special=True) for name in ("f32", "f16", "bf16", "f64")]
        cases.append(case(op, "f32[]~ f32[]~"))
        cases += [case(op, f"{name}[3,4] {name}[3,4]") for name in COMPLEX]
    return cases


def special_cases() -> list[Case]:
    """Special functions that CHLO lacks, and those of several operands."""
    cases = []
    fitted = (BesselI0e(), BesselI1e(), Dawsn(), Erfcx(), Ndtri(), Expi(), Exp1(), Spence())
    waves = (SineIntegral(), CosineIntegral(), Fresnel(True), Fresnel(False))
    logs = (Xlogy(), Xlog1py(), Entr())
    for op in (*fitted, *waves, *logs, Zeta(), Polygamma(), *INCOMPLETE, Hyp1f1(), Hyp2f1()):
        cases += [case(op, " ".join([f"{name}[3,4]"] * op.arity)) for name in ("f32", "bf16", "f64", "f8_e5m2")]
        cases.append(case(op, " ".join(["f32[]~"] * op.arity)))
    slopes = (*map(Hyp1f1GradParameter, range(2)), *map(Hyp2f1GradParameter, range(3)))
    cases += [case(op, " ".join([f"{name}[3,4]"] * op.arity)) for op in slopes for name in ("f32", "f64")]
    for op in (*fitted, *waves, *logs, Zeta(), Polygamma()):
        shape = ",".join(["11"] * op.arity)
        cases += [case(op, " ".join([f"{name}[{shape}]"] * op.arity), special=True) for name in ("f32", "bf16")]
    return cases


INCOMPLETE = (Igamma(), Igammac(), IgammaGradA(), RandomGammaGrad(), Betainc(), Expn())


def number_cases() -> list[Case]:
    """Real and imaginary parts, powers, rounding, and spacing of numbers."""
    cases = []
    for op in (Square(), OneMinusSquare(), Sign(), *map(IntegerPow, (0, 1, 2, 3, 7))):
        cases += [case(op, f"{name}[3,4]") for name in (*FLOATS, *COMPLEX, *INTEGERS, "f8_e5m2", "i4", "u4")]
        cases += [case(op, f"{name}[{count}]", special=True) for name, count in SPECIAL_REALS]
    cases += [case(IntegerPow(y), f"{name}[3,4]") for y in (-1, -3) for name in (*FLOATS, *COMPLEX)]
    cases += [case(IntegerPow(-1), f"{name}[11]", special=True) for name in ("f32", "bf16")]
    cases += [case(Abs(), f"{name}[3,4]") for name in (*FLOATS, *COMPLEX, "i32", "i8", "i64", "f8_e5m2", "i4")]
    cases += [case(Abs(), f"{name}[{count}]", special=True) for name, count in SPECIAL_REALS if name != "u8"]
    for part in (Real(), Imag(), Conj()):
        cases += [case(part, f"{name}[3,4]") for name in COMPLEX]
        cases.append(case(part, "c64[36]", special=True))
    cases += [case(Complex(), f"{name}[3,4] {name}[3,4]") for name in ("f32", "f64")]
    cases.append(case(Complex(), "f32[11,11] f32[11,11]", special=True))
    precisions = (ReducePrecision(5, 10), ReducePrecision(8, 7), ReducePrecision(3, 2), ReducePrecision(11, 52))
    for step in (Floor(), Ceil(), Round(), Round("away"), IsFinite(), *precisions):
        cases += [case(step, f"{name}[3,4]") for name in (*FLOATS, "f8_e5m2")]
        cases += [case(step, f"{name}[11]", special=True) for name in ("f32", "f16", "bf16", "f64")]
    cases += [case(Nextafter(), f"{name}[3,4] {name}[3,4]") for name in (*FLOATS, "f8_e5m2")]
    cases += [case(Nextafter(), f"{name}[11,11] {name}[11,11]", special=True) for name in ("f32", "bf16", "f64")]
    cases += [case(op, "f32[]~") for op in (Square(), Sign(), Abs(), Floor(), IsFinite(), IntegerPow(3))]
    return cases


SPECIAL_REALS = (("f32", 11), ("f16", 11), ("bf16", 11), ("f64", 11), ("i32", 7), ("u8", 7), ("i64", 7))


def bitwise_cases() -> list[Case]:
    cases = []
    names = (*INTEGERS, "i4", "u4", "u64", "i16")
    for op in (And(), Or(), Xor(), MulHigh(), ShiftLeft(), ShiftRightLogical(), ShiftRightArithmetic()):
        logic = ("bool",) if isinstance(op, (And, Or, Xor)) else ()
        cases += [case(op, f"{name}[3,4] {name}[3,4]") for name in (*names, *logic)]
        cases += [case(op, f"{name}[7,7] {name}[7,7]", special=True) for name in names]
        cases.append(case(op, "i32[]~ i32[]~"))
    cases += [case(op, "bool[2,2] bool[2,2]", special=True) for op in (And(), Or(), Xor())]
    for unary in (Not(), PopulationCount(), Clz()):
        cases += [case(unary, f"{name}[3,4]") for name in names]
        cases += [case(unary, f"{name}[7]", special=True) for name in names]
    cases += [case(Not(), "bool[3,4]"), case(Not(), "bool[2]", special=True)]
    bits = [
        ("f32[3,4]", "i32"),
        ("i32[5]", "f32"),
        ("bf16[2,3]", "u16"),
        ("f16[3]", "bf16"),
        ("f64[4]", "u64"),
        ("u8[3]", "i8"),
        ("u32[]", "f32"),
        ("f32[3]", "u8"),
        ("f64[2,3]", "f32"),
        ("u8[3,4]", "f32"),
        ("bf16[5,3,2]", "u32"),
        ("u16[4]", "f64"),
        ("f8_e5m2[4]", "u8"),
        ("u8[3]", "i4"),
        ("i4[3,2]", "u8"),
        ("u4[5]", "i4"),
    ]
    cases += [case(BitcastConvert(dtype(after)), text) for text, after in bits]
    cases += [case(BitcastConvert(dtype("u32")), "f32[11]", special=True)]
    cases += [case(BitcastConvert(dtype("u8")), "i32[7]", special=True)]
    return cases


def convert_cases() -> list[Case]:
    cases = []
    for before in ("f32", "f64", "f16", "bf16", "i32", "u8", "i64", "u64", "bool", "c64", *SMALL):
        for after in ("f32", "f64", "f16", "bf16", "i32", "u8", "i8", "u32", "i64", "bool", "c64", *SMALL):
            count = len(special_values(dtype(before)))
            cases.append(case(Convert(dtype(after)), f"{before}[{count}]", special=True))
    cases += [
        case(Convert(np.dtype(np.float32)), "bf16[3,4]"),
        case(Convert(dtype("bf16")), "f32[2,1,5]"),
        case(Convert(np.dtype(np.float32)), "i32[]"),
        case(Convert(np.dtype(np.float32)), "f32[3]"),
        case(Convert(np.dtype(np.int32)), "f32[3,0]"),
        case(Convert(np.dtype(np.float32), weak=True), "i32[]~"),
        case(Convert(np.dtype(np.float32)), "f32[]~"),
        case(Convert(np.dtype(np.complex64)), "f32[3,4]"),
        case(Convert(np.dtype(np.float32)), "c64[3,4]"),
    ]
    return cases


REDUCED = (
    ("[]", ()),
    ("[5]", (0,)),
    ("[3,4]", (1, 0)),
    ("[2,3,5]", (0, 2)),
    ("[0,3]", (1,)),
    ("[5]", ()),
    ("[2,3,2,5]", (3, 1)),
    ("[1,5]", (0,)),
    ("[13,2]", (0,)),
)


def reduction_cases() -> list[Case]:
    cases = [
        case(Sum(dims), text)
        for text, dims in [
            ("f32[]", ()),
            ("f32[5]", (0,)),
            ("f32[5]", ()),
            ("f32[3,4]", (0,)),
            ("f32[3,4]", (1,)),
            ("f32[3,4]", (1, 0)),
            ("f32[2,3,5]", (0, 2)),
            ("f32[2,3,2,5]", (3, 1)),
            ("f32[1,5]", (0,)),
            ("f32[0,3]", (0,)),
            ("f32[0,3]", (1,)),
            ("f32[3]~", (0,)),
        ]
    ]
    cases += [case(Sum((1,)), f"{name}[3,6]") for name in ("f16", "bf16", "f64", "i32", "u8", "bool", "c64", *SMALL)]
    cases += [case(Sum((0,)), f"{name}[14,3]", special=True) for name in ("i32", "u8", "bool", "i64")]
    # Long enough that a sum that is rounded in every step stops growing.
    cases += [case(Sum((0,)), f"{name}[3000]") for name in ("f16", "bf16")]
    for op in (ReduceMax, ReduceMin, ReduceProd):
        cases += [case(op(dims), f"f32{text}") for text, dims in REDUCED]
        cases.append(case(op((0,)), "i32[0,3]"))
        names = ("f16", "bf16", "f64", "i32", "u8", "bool", "c64", *SMALL)
        cases += [case(op((1,)), f"{name}[3,6]") for name in names]
        cases.append(case(op((0,)), "f32[3]~"))
    for op in (ReduceMax, ReduceMin):
        cases += [case(op((0,)), f"{name}[11,3]", special=True) for name in ("f32", "bf16", "f64")]
        cases += [case(op((0,)), f"{name}[7,3]", special=True) for name in ("i32", "u8", "i64")]
    cases += [case(ReduceProd((0,)), f"{name}[7,3]", special=True) for name in ("i32", "u8", "bool")]
    for op in (ReduceAnd, ReduceOr, ReduceXor):
        cases += [case(op(dims), f"{name}{text}") for text, dims in REDUCED[:5] for name in ("i32", "bool")]
        cases += [case(op((1,)), f"{name}[3,4]") for name in ("u8", "i64", "i4", "u4")]
        cases += [case(op((0,)), f"{name}[7,3]", special=True) for name in ("i32", "bool")]
    index = np.dtype(np.int32)
    for arg in (Argmax, Argmin):
        texts = [
            ("f32[5]", (0,)),
            ("f32[3,4]", (0, 1)),
            ("f32[3,4]", (0,)),
            ("f32[2,3,5]", (1,)),
            ("f32[2,3,5]", (2, 0)),
        ]
        cases += [case(arg(dims, index), text) for text, dims in texts]
        cases += [case(arg((1,), index), f"{name}[3,6]") for name in ("f16", "f64", "i32", "u8", "bool", *SMALL)]
        cases += [
            case(arg((0,), dtype(name)), "bf16[300,2]") for name in ("i64", "u8", "i8")
        ]  # indices of the last two wrap around
        cases += [case(arg((0,), index), f"{name}[11,3]", special=True) for name in ("f32", "bf16", "f64")]
        cases += [case(arg((0, 1), index), f"{name}[11,3]", special=True) for name in ("f32", "bf16", "i32")]
        cases += [case(arg((1,), index), f"{name}[3,7]", special=True) for name in ("i32", "u8")]
        cases.append(case(arg((0,), index), "f32[3]~"))
    for wins in ("GT", "LT"):
        texts = [("f32[5] i32[5]", (0,)), ("f32[3,4] i32[3,4]", (0, 1)), ("bf16[2,3,5] u8[2,3,5]", (1,))]
        texts += [("f32[3,4] i32[3,4]", (0,)), ("u8[4,3] i64[4,3]", (0,))]
        cases += [case(ExtremumWithIndex(dims, wins), text) for text, dims in texts]
        cases += [
            case(ExtremumWithIndex((1,), wins), f"{name}[2,22] i32[2,22]", special=True)
            for name in ("f32", "bf16", "i32", "bool")
        ]
        cases.append(case(ExtremumWithIndex((0,), wins), "f32[3]~ i32[3]"))
    # No extremes, because their sum depends on the order; rows of NaN, infinities and zeros.
    cases += [case(Sum((1,)), "f32[11,1]", special=True), case(Sum((1,)), "bf16[11,1]", special=True)]
    return cases


def cumulative_cases() -> list[Case]:
    cases = []
    for reduction in COMBINERS:
        for reverse in (False, True):
            texts = [("f32[5]", 0), ("f32[19,2]", 0), ("f32[2,3,5]", 1), ("f32[2,1,7]", 2), ("f32[3,0]", 1)]
            cases += [case(Cumulative(dim, reduction, reverse), text) for text, dim in texts]
            names = ["f16", "bf16", "f64", "f8_e4m3fn", "f8_e5m2"]
            if reduction is not LOGSUMEXP:
                names += ["i32", "u8", "c64", "i4", "u4"]
            names += ["bool"] * (reduction in (MAX, MIN))
            cases += [case(Cumulative(1, reduction, reverse), f"{name}[2,5]") for name in names]
        cases += [
            case(Cumulative(dim, reduction), text) for text, dim in [("f32[1,3]", 0), ("f32[0,3]", 1), ("f32[3]~", 0)]
        ]
    for reduction in (MAX, MIN):
        cases += [case(Cumulative(0, reduction), f"{name}[22]", special=True) for name in ("f32", "bf16", "f64")]
        cases += [case(Cumulative(0, reduction, True), f"{name}[15]", special=True) for name in ("i32", "u8", "bool")]
    for reduction in (SUM, PROD):
        cases += [case(Cumulative(0, reduction), f"{name}[70,2]", special=True) for name in ("i32", "u8", "i64")]
    # One special value at a time: the result of several depends on the order.
    cases += [case(Cumulative(1, reduction), "f32[11,1]", special=True) for reduction in COMBINERS]
    cases.append(case(Recurrence(1), "f32[11,1] f32[11,1]", special=True))
    for reverse in (False, True):
        texts = [("f32[5]", 0), ("f32[19,2]", 0), ("f32[2,3,5]", 1), ("f32[3,0]", 1), ("f32[3,1]", 1), ("f32[3]~", 0)]
        cases += [case(Recurrence(dim, reverse), f"{text} {text}") for text, dim in texts]
        names = ("f16", "bf16", "f64", "c64", "f8_e5m2")
        cases += [case(Recurrence(1, reverse), f"{name}[2,5] {name}[2,5]") for name in names]
    return cases


def sort_cases() -> list[Case]:
    cases = []
    for descending in (False, True):
        texts = [("f32[5]", 0), ("f32[7,3]", 0), ("f32[2,3,5]", 1), ("f32[4,1]", 1), ("f32[3,0]", 1), ("f32[3]~", 0)]
        cases += [case(Sort(dim, 1, descending), text) for text, dim in texts]
        names = ("f16", "bf16", "f64", "i32", "u8", "i64", "bool", "c64", *SMALL)
        cases += [case(Sort(1, 1, descending), f"{name}[3,6] i32[3,6]") for name in names]
        cases += [case(Sort(0, 1, descending), f"{name}[23] i32[23]", special=True) for name in ("f32", "bf16", "f64")]
        cases += [case(Sort(0, 1, descending), f"{name}[15] f32[15]", special=True) for name in ("i32", "u8", "bool")]
        cases.append(case(Sort(0, 1, descending), "c64[72] i32[72]", special=True))
        cases += [case(Sort(dim, 2, descending), "i32[5,4] f32[5,4] f32[5,4]") for dim in (0, 1)]
        cases.append(case(Sort(1, 3, descending), "bool[3,8] u8[3,8] bf16[3,8] i32[3,8]"))
    texts = [("f32[5]", 3), ("f32[5]", 5), ("f32[5]", 0), ("f32[5]", 1), ("f32[3,7]", 2), ("f32[2,3,9]", 4)]
    texts += [("f32[0,4]", 2), ("f32[3,1]", 1), ("f32[4]~", 2), ("f32[2,0]", 0)]
    cases += [case(TopK(k), text) for text, k in texts]
    names = ("f16", "bf16", "f64", "i32", "u8", "i8", "u32", "i64", "bool", *SMALL)
    cases += [case(TopK(3), f"{name}[2,8]") for name in names]
    cases += [case(TopK(20), f"{name}[22]", special=True) for name in ("f32", "bf16", "f64", "f8_e4m3fn", "f8_e5m2")]
    cases += [case(TopK(12), f"{name}[14]", special=True) for name in ("i32", "u8", "i64", "bool")]
    return cases


def dot_cases() -> list[Case]:
    cases = [
        ("f32[3,4] f32[4,5]", ((1,), (0,)), ((), ())),
        ("f32[3,4] f32[5,4]", ((1,), (1,)), ((), ())),
        ("f32[4,3] f32[4,5]", ((0,), (0,)), ((), ())),
        ("f32[4] f32[4]", ((0,), (0,)), ((), ())),
        ("f32[3] f32[4]", ((), ()), ((), ())),
        ("f32[] f32[]", ((), ()), ((), ())),
        ("f32[] f32[3]", ((), ()), ((), ())),
        ("f32[2,3,4] f32[2,4,5]", ((2,), (1,)), ((0,), (0,))),
        ("f32[3,2,4] f32[4,5,2]", ((2,), (0,)), ((1,), (2,))),
        ("f32[2,3] f32[2,3]", ((), ()), ((0, 1), (0, 1))),
        ("f32[2,3] f32[3,2]", ((), ()), ((0, 1), (1, 0))),
        ("f32[2,3] f32[3,2]", ((0, 1), (1, 0)), ((), ())),
        ("f32[2,3,4] f32[4,3,5]", ((2, 1), (0, 1)), ((), ())),
        ("f32[2,3,4] f32[4,5,3]", ((1, 2), (2, 0)), ((), ())),
        ("f32[2,3,4,5] f32[5,3,2,4]", ((3, 1), (0, 1)), ((2, 0), (3, 2))),
        ("f32[3,2,5,4] f32[2,4,3,5]", ((3,), (1,)), ((1, 0, 2), (0, 2, 3))),
        ("f32[2,3,2,4] f32[4,2,6]", ((3, 2), (0, 1)), ((), ())),
        ("f32[1,4] f32[4,1]", ((1,), (0,)), ((), ())),
        ("f32[3,1] f32[1,5]", ((1,), (0,)), ((), ())),
        ("f32[0,4] f32[4,5]", ((1,), (0,)), ((), ())),
        ("f32[3,0] f32[0,5]", ((1,), (0,)), ((), ())),
        ("f32[0,3] f32[0,3]", ((1,), (1,)), ((0,), (0,))),
        ("f32[3]~ f32[3]~", ((0,), (0,)), ((), ())),
    ]
    cases = [case(Dot(contract, batch), text) for text, contract, batch in cases]
    for name in ("f64", "f16", "bf16", "i32", "u8", "i64", "bool", "c64", "c128", *SMALL):
        cases.append(case(Dot(((1,), (0,))), f"{name}[3,4] {name}[4,5]"))
        cases.append(case(Dot(((2,), (1,)), ((0,), (2,))), f"{name}[2,3,4] {name}[5,4,2]"))
    cases += [case(Dot(((0,), (0,))), f"{name}[7,7] {name}[7,7]", special=True) for name in ("i32", "u8")]
    for name, wide in (("bf16", "f32"), ("f16", "f32"), ("f32", "f64"), ("i8", "i32"), ("u8", "u32"), ("c64", "c128")):
        cases.append(case(Dot(((1,), (0,)), dtype=dtype(wide)), f"{name}[3,4] {name}[4,5]"))
        cases.append(case(Dot(((2,), (1,)), ((0,), (2,)), dtype(wide)), f"{name}[2,3,4] {name}[5,4,2]"))
    cases.append(case(Dot(((1,), (0,)), precision=("HIGHEST", "HIGH")), "f32[3,4] f32[4,5]"))
    for left, right in itertools.product(("f8_e4m3fn", "f8_e5m2"), repeat=2):
        scaled = ScaledDot(((1,), (0,)), ((), ()), dtype("bf16"))
        cases.append(case(scaled, f"{left}[3,4] {right}[4,5] f32[] f32[]"))
    scaled = ScaledDot(((2,), (2,)), ((0,), (0,)), dtype("f32"))
    cases.append(case(scaled, "f8_e4m3fn[2,3,4] f8_e4m3fn[2,5,4] f32[] f32[]"))
    cases.append(case(replace(scaled, dtype=dtype("f16")), "f8_e4m3fn[2,3,4] f8_e4m3fn[2,5,4] f32[] f32[]"))
    for addend in ("f32", "f16"):
        adds = replace(scaled, dtype=dtype(addend), adds=True)
        cases.append(case(adds, f"f8_e4m3fn[2,3,4] f8_e4m3fn[2,5,4] f32[] f32[] {addend}[2,3,5]"))
    return cases


def linalg_cases() -> list[Case]:
    """Batches of matrices: square, tall, wide, 1×1, empty, and empty batches; every dtype."""
    square = ("[4,4]", "[3,2,2]", "[1,1]", "[0,3,3]", "[0,0]")
    any_shape = (*square, "[5,3]", "[3,5]", "[2,3,2]", "[4,1]", "[3,0]", "[0,3]")
    of_square = (Cholesky(), Eigh(), Schur(), Hessenberg(), Tridiagonal(), Eig(left=False, right=False))
    of_any = (Lu(), Geqrf(), Geqrf(pivoting=True), Qr(full=False), Qr(full=True), Svd(), Svd(vectors=False))
    cases = [case(op, f"f32{text}") for op in of_square for text in square]
    cases += [case(op, f"f32{text}") for op in of_any for text in any_shape]
    cases += [case(op, f"{name}[2,3,3]") for op in of_square for name in ("f64", *COMPLEX)]
    cases += [case(op, f"{name}[2,4,3]") for op in of_any for name in ("f64", "c64")]
    cases += [case(op, "c128[3,4]") for op in of_any]
    cases.append(case(Cholesky(), "f32[2,3,2,2]"))
    cases += [case(op, "f32[3,3]~") for op in (*of_square, *of_any)]
    for name in ("f32", "c64"):
        for text in ("[2,3,3]", "[4,3]", "[3,4]", "[3,0]", "[0,2]"):
            cases += [case(Svd(full=True), f"{name}{text}"), case(Qr(full=False, pivoting=True), f"{name}{text}")]
            cases.append(case(Qr(full=True, pivoting=True), f"{name}{text}"))
        cases += [case(op, f"{name}[2,3,3]") for op in (Eigh(is_lower=False), Tridiagonal(is_lower=False))]
        cases += [case(Schur(vectors=False), f"{name}[3,4,4]"), case(Eig(left=True, right=True), f"{name}[3,3]")]
        cases += [case(Eig(left, not left, differentiable=True), f"{name}[2,3,3]") for left in (False, True)]
        cases.append(case(Eig(left=True, right=True, differentiable=True), f"{name}[4,4]"))
        cases.append(case(HouseholderProduct(), f"{name}[4,3] {name}[3]"))
        cases.append(case(HouseholderProduct(), f"{name}[2,4,4] {name}[2,2]"))
        cases.append(case(HouseholderProduct(), f"{name}[3,3] {name}[0]"))
        for way in itertools.product((False, True), repeat=2):
            cases.append(case(Ormqr(*way), f"{name}[2,4,3] {name}[2,3] {name}{'[2,4,5]' if way[0] else '[2,5,4]'}"))
        cases.append(case(Ormqr(), f"{name}[4,0] {name}[0] {name}[4,2]"))
        for perturbs in (False, True):
            cases.append(case(TridiagonalSolve(perturbs), " ".join([f"{name}[2,5]"] * 3 + [f"{name}[2,5,3]"])))
    for left, lower, transposed, other in itertools.product((False, True), repeat=4):
        b = "[2,3,4]" if left else "[2,4,3]"
        unit = TriangularSolve(left, lower, transposed, unit_diagonal=other)
        cases.append(case(unit, f"f32[2,3,3] f32{b}"))
        cases.append(case(TriangularSolve(left, lower, transposed, conjugate_a=other), f"c64[2,3,3] c64{b}"))
    for name in ("f64", "c128", "bf16", "f16"):
        cases.append(case(TriangularSolve(left_side=True, is_lower=True), f"{name}[3,3] {name}[3,2]"))
    empty = (("[0,0]", "[0,3]"), ("[3,3]", "[3,0]"), ("[0,2,2]", "[0,2,3]"))
    for a, b in (("[1,1]", "[1,3]"), ("[3,3]~", "[3,1]~"), *empty):
        cases.append(case(TriangularSolve(left_side=True, is_lower=False), f"f32{a} f32{b}"))
    for size, columns in ((1, 2), (2, 1), (0, 2), (3, 0)):
        cases.append(case(TridiagonalSolve(), " ".join([f"f32[{size}]"] * 3 + [f"f32[{size},{columns}]"])))
    cases += [case(TridiagonalSolve(), " ".join([f"{name}[4]"] * 3 + [f"{name}[4,2]"])) for name in ("f64", "c128")]
    texts = ((4, "[4]"), (5, "[3,3]"), (3, "[0]"), (0, "[0]"), (4, "[0,2]"), (3, "[2,2,3]"))
    return [*cases, *(case(PivotsToPermutation(size), f"i32{text}") for size, text in texts)]


def fft_cases() -> list[Case]:
    cases = []
    complex_texts = [("[8]", 0), ("[7]", 0), ("[1]", 0), ("[4,5]", 1), ("[5,4]", 0), ("[3,6,2]", 1), ("[2,3,2,5]", 3)]
    for text, dim in complex_texts:
        length = parse_type(f"c64{text}").shape[dim]
        cases += [case(Fft(kind, dim, length), f"c64{text}") for kind in ("FFT", "IFFT")]
        cases.append(case(Fft("RFFT", dim, length), f"f32{text}"))
        cases += [case(Fft("IRFFT", dim, 2 * length - odd), f"c64{text}") for odd in (1, 2) if 2 * length > odd]
    for kind, name in [("FFT", "c128"), ("IFFT", "c128"), ("RFFT", "f64"), ("IRFFT", "c128")]:
        cases.append(case(Fft(kind, 1, 6 if kind == "IRFFT" else 4), f"{name}[3,4]"))
        cases.append(case(Fft(kind, 1, 6 if kind == "IRFFT" else 4), f"{name}[0,4]"))
    cases += [case(Fft(kind, 0, 4), f"{name}[4]~") for kind, name in (("FFT", "c64"), ("RFFT", "f32"))]
    cases.append(case(Fft("IRFFT", 0, 6), "c64[4]~"))
    return cases


def attention_cases() -> list[Case]:
    """Attention with separate or shared key heads, causal or not, with biases of every shape."""
    cases = []
    for q, k, bias in [
        ("[2,3,4,8]", "[2,5,4,8]", ""),
        ("[3,4,6,2]", "[3,4,2,2]", ""),
        ("[2,4,4,3]", "[2,4,2,3]", "[2,4,4,4]"),
        ("[2,4,4,3]", "[2,4,4,3]", "[1,4,4,4]"),
        ("[2,4,2,3]", "[2,5,1,3]", "[2,1,1,5]"),
    ]:
        rows, heads = (parse_type(f"f32{q}").shape[dim] for dim in (1, 2))
        sums = f"f32[{q[1]},{heads},{rows}]"
        others = [f"f32{bias}"] if bias else []
        for op in ((0.5, False, 0), (0.3, True, 0), (0.4, True, 2)):
            cases.append(case(FusedAttention(*op), " ".join([f"f32{q}", *[f"f32{k}"] * 2, *others])))
            grad = [f"f32{q}", *[f"f32{k}"] * 2, sums, *[f"f32{q}"] * 2, *others]
            cases.append(case(FusedAttentionGrad(*op), " ".join(grad)))
    return cases


def kernel_cases() -> list[Case]:
    cases = []
    for rows in ("[5]", "[3,4]", "[2,3,4]"):
        width = rows.strip("[]").split(",")[-1]
        for centred, adds in itertools.product((False, True), repeat=2):
            fields = (centred, 0.5, adds, centred)
            parameters = [f"f32[{width}]"] * (1 + centred)
            cases.append(case(Norm(*fields), " ".join([f"f32{rows}"] * (1 + adds) + parameters)))
            cases.append(case(NormFactors(centred, 0.5, adds), " ".join([f"f32{rows}"] * (1 + adds))))
            cases.append(
                case(NormGrad(*fields), " ".join([*[f"f32{rows}"] * 2, parameters[0], *[f"f32{rows}"] * adds]))
            )
        leading = "[" + ",".join(rows.strip("[]").split(",")[:-1]) + "]"
        cases.append(case(CrossEntropy(), f"f32{rows} i32{leading}"))
        cases.append(case(CrossEntropyGrad(), f"f32{rows} i32{leading} " + " ".join([f"f32{leading}"] * 3)))
        for name, transposes, batch in (("f8_e4m3fn", True, 0), ("f8_e5m2", False, 0), ("f8_e5m2", True, 1)):
            quantize = Quantize(dtype(name), transposes, batch, rows.count(","))
            if batch < rows.count(","):
                cases.append(case(quantize, f"f32{rows} f32[]"))
        element = parse_type("f32[]")
        for transposes, sums in ((True, False), (False, True)):
            function = rewrite("prologue", [element] * 2, lambda x, y: [Tanh()(Mul()(x, y))])
            dims = tuple(range(rows.count(",") + 1)), (rows.count(","),)
            fused = Quantize(dtype("f8_e4m3fn"), transposes, 0, rows.count(","), function, dims, sums)
            if rows.count(","):
                cases.append(case(fused, f"f32{rows} f32[{width}] f32[]"))
    cases.append(case(Quantize(dtype("f8_e5m2"), True, 1, 1, updates=True), "f32[3,4] f32[] f32[]"))
    cases.append(case(Unpack(((), (2,), (1, 1))), "f32[5]"))
    return cases


def solve_cases() -> list[Case]:
    """Systems with a scalar or diagonal matrix, with and without a solver of the transposed system."""

    def held(name: str, body: Callable[..., Sequence[Any]], *types: str) -> Program:
        return rewrite(name, [parse_type(text) for text in types], body)

    number = ("f32[3]", "f32[3]")
    times, by = held("times", lambda x, a: [Mul()(a, x)], *number), held("by", lambda b, a: [Div()(b, a)], *number)
    counted = held("counted", lambda b, a: [Div()(b, a), Full((2,), Scalar.from_value(7, np.int32))()], *number)
    squares = held("squares", lambda x, y, a: [Mul()(a, x), Mul()(Mul()(a, a), y)], *("f32[3]",) * 3)
    roots = held("roots", lambda x, y, a: [Div()(x, a), Div()(y, Mul()(a, a))], *("f32[3]",) * 3)
    one, aside = LinearSolve(1, times, by, times, by), LinearSolve(1, times, counted, times, counted)
    two = LinearSolve(2, squares, roots, squares, roots)
    scale = held("scale", lambda a, x, y: [Mul()(a, x), Add()(x, y)], *("f32[3]",) * 3)
    unscale = held("unscale", lambda a, x, y: [Add()(Mul()(a, x), y), y], *("f32[3]",) * 3)
    return [
        case(LinearCall(scale, 1, unscale), "f32[3] f32[3] f32[3]"),
        case(one, "f32[3] f32[3] f32[3] f32[3] f32[3]"),
        case(aside, "f32[3] f32[3] f32[3] f32[3] f32[3]"),
        case(two, "f32[3] f32[3] f32[3] f32[3] f32[3] f32[3]"),
        # The jvp is the derivative if all programs belong to the same system.
        _body("solved", "f32[3] f32[3]", lambda b, a: one(b, a, a, a, a)),
        _body("solved_aside", "f32[3] f32[3]", lambda b, a: aside(b, a, a, a, a)),
        _body("solved_twice", "f32[3] f32[3] f32[3]", lambda x, y, a: two(x, y, a, a, a, a)),
    ]


MESH = AbstractMesh((2, 3), ("a", "b"))


def reshard_cases() -> list[Case]:
    mesh = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    return [
        case(Reshard((("a",), ()), mesh), "f32[4,5]"),
        case(Reshard((("b", "a"), ()), mesh), "bf16[7,2]"),
        case(Reshard(((), ("b",)), mesh, (), ("a",)), "f32[3,4]"),
        case(Reshard(((),), mesh, ("a", "b")), "c64[5]"),
        case(Reshard((), mesh), "f32[]"),
    ]


def constrain_cases() -> list[Case]:
    return [
        case(Constrain(((), ()), MESH), "f32[3,4]"),
        case(Constrain((("a",), ()), MESH), "f32[4,5]"),
        case(Constrain((("b", "a"), ()), MESH, (1,)), "bf16[7,2]"),
        case(Constrain((("a",), (), ("b",)), MESH, (0, 1)), "i32[3,2,4]"),
        case(Constrain((("a", "b"),), MESH), "c64[5]"),
        case(Constrain((), MESH), "f32[]"),
        case(Constrain((("a",),), MESH), "f32[0]"),
        case(Constrain(((), ("b",)), MESH), "f32[3,4]~"),
    ]


def _body(name: str, text: str, body: Callable[..., Sequence[Any]]) -> Case:
    types = tuple(parse_type(word) for word in text.split())
    return Case(Call(rewrite(name, types, body)), types)


def call_cases() -> list[Case]:
    half = Full((3,), Scalar.from_value(0.5, np.float32))
    square = rewrite("square", [parse_type("f32[3]")], lambda x: [Mul()(x, x)])
    return [
        _body("square", "f32[3]", lambda x: [Mul()(x, x)]),
        _body("two_results", "f32[3] f32[3]", lambda x, y: [Mul()(x, y), Exp()(x)]),
        _body("identity", "f32[3,2] i32[]", lambda x, n: [n, x]),
        _body("constant", "f32[3]", lambda x: [half(), x]),
        _body("no_results", "f32[3]", lambda x: []),
        _body("repeated", "f32[3]", lambda x: [x, x, Neg()(x)]),
        _body("nested", "f32[3] f32[3]", lambda x, y: [Add()(Call(square)(x)[0], Call(square)(y)[0])]),
        _body("counted", "f32[3] i32[3]", lambda x, n: [Mul()(x, Convert(np.dtype(np.float32))(n)), Add()(n, n)]),
        _body("weak", "f32[]~ f32[]~", lambda x, y: [Max()(x, y), Mul()(x, y)]),
        _body("matmul", "bf16[2,3] bf16[3,4]", lambda x, y: [Dot(((1,), (0,)))(x, y)]),
        _body("empty", "f32[0,2]", lambda x: [Sum((0,))(x)]),
    ]


def _program(name: str, text: str, body: Callable[..., Sequence[Any]]) -> Program:
    return rewrite(name, [parse_type(word) for word in text.split()], body)


def _number(value: float, name: str = "f32") -> Any:
    return Full((), Scalar.from_value(value, dtype(name)))()


def cond_cases() -> list[Case]:
    def branches(text: str, **bodies: Callable[..., Sequence[Any]]) -> Case:
        return case(Cond(tuple(_program(name, text, body) for name, body in bodies.items())), f"i32[] {text}")

    inner = Cond((_program("same", "f32[3]", lambda x: [x]), _program("exp", "f32[3]", lambda x: [Exp()(x)])))
    return [
        branches("f32[3]", square=lambda x: [Mul()(x, x)], exp=lambda x: [Exp()(x)]),
        branches("f32[3] f32[3]", first=lambda x, y: [x], second=lambda x, y: [y], both=lambda x, y: [Mul()(x, y)]),
        branches("f32[3] f32[]", one=lambda x, y: [Exp()(Exp()(x)), Mul()(y, y)], two=lambda x, y: [x, Exp()(y)]),
        branches(
            "f32[3]", constant=lambda x: [Full((3,), Scalar.from_value(0.5, np.float32))()], neg=lambda x: [Neg()(x)]
        ),
        branches("f32[3] i32[]", counted=lambda x, n: [Add()(n, n), x], same=lambda x, n: [n, Neg()(x)]),
        branches("f32[3]", alone=lambda x: [Sin()(x)]),
        branches("f32[3]", no_results=lambda x: [], nor_here=lambda x: []),
        branches("f32[]~", weak=lambda x: [Mul()(x, x)], too=lambda x: [x]),
        branches("c64[2]", turned=lambda x: [Mul()(x, x)], conj=lambda x: [Conj()(x)]),
        branches("bool[3]", negated=lambda x: [Not()(x)], same=lambda x: [x]),
        branches(
            "f32[0,2]", empty=lambda x: [Sum((0,))(x)], zeros=lambda x: [Full((2,), Scalar.from_value(0, np.float32))()]
        ),
        branches(
            "i32[] f32[3]", nested=lambda n, x: inner(Rem()(Mul()(n, n), _number(2, "i32")), x), not_=lambda n, x: [x]
        ),
    ]


def scan_cases() -> list[Case]:
    def loop(name: str, length: int, consts: str, carried: str, sliced: str, body: Any, **options: Any) -> Case:
        """`sliced`: the types of the arrays before slicing."""
        slices = [parse_type(word).without((0,)) for word in sliced.split()]
        program = _program(name, " ".join([consts, carried, *map(str, slices)]), body)
        op = Scan(program, length, len(consts.split()), len(carried.split()), **options)
        return case(op, " ".join([consts, carried, sliced]))

    def product(c: Any, x: Any) -> list[Any]:
        return [Mul()(c, x), Exp()(c)]

    def row(w: Any, c: Any, x: Any) -> list[Any]:
        return [Sin()(Dot(((1,), (0,)))(w, c)), Mul()(c, x)]

    square = Scan(_program("square", "f32[]", lambda c: [Mul()(c, Sin()(c))]), 2, 0, 1)
    pick = Cond((_program("same", "f32[3]", lambda x: [x]), _program("exp", "f32[3]", lambda x: [Sin()(x)])))
    return [
        loop("product", 4, "", "f32[3]", "f32[4,3]", product),
        loop("product", 4, "", "f32[3]", "f32[4,3]", product, reverse=True),
        loop("product", 5, "", "f32[]", "f32[5]", product, unroll=2),
        loop("product", 3, "", "f32[]", "f32[3]", product, reverse=True, unroll=7),
        loop("product", 0, "", "f32[2]", "f32[0,2]", product),
        loop("product", 1, "", "f32[2]", "f32[1,2]", product),
        loop("row", 3, "f32[2,2]", "f32[2]", "f32[3,2]", row),
        loop("row", 3, "f32[2,2]", "f32[2]", "f32[3,2]", row, reverse=True, unroll=2),
        loop("map", 3, "f32[]", "", "f32[3,2]", lambda s, x: [Mul()(Exp()(x), Broadcast((2,), ())(Exp()(s)))]),
        loop("iterate", 3, "", "f32[3]", "", lambda c: [Sin()(c)]),
        loop("swap", 3, "", "f32[2] f32[2]", "", lambda a, b: [b, Mul()(a, b), a]),
        loop("forget", 3, "f32[2]", "f32[2]", "", lambda k, c: [Sin()(k), Mul()(c, k)]),
        loop("hand_on", 3, "f32[2]", "f32[2]", "f32[3,2]", lambda k, c, x: [c, x, k, x, c]),
        loop(
            "count",
            3,
            "",
            "i32[] f32[]",
            "",
            lambda n, c: [Add()(n, _number(1, "i32")), Mul()(c, Convert(np.dtype(np.float32))(n)), n],
        ),
        loop("integers", 4, "i8[2]", "i8[2]", "i8[4,2]", lambda k, c, x: [Add()(Mul()(c, k), x), c]),
        loop("booleans", 3, "", "bool[]", "bool[3]", lambda c, x: [Xor()(c, x), And()(c, x)]),
        loop("complex", 3, "", "c64[2]", "c64[3,2]", lambda c, x: [Mul()(c, x), Add()(c, x)]),
        loop("small", 3, "", "bf16[2]", "bf16[3,2]", lambda c, x: [Mul()(c, x), Neg()(c)]),
        loop("weak", 3, "", "f32[]~", "", lambda c: [Mul()(c, c), c]),
        loop("nested", 2, "f32[]", "f32[]", "", lambda k, c: [Mul()(*square(c), k)]),
        loop(
            "choose",
            3,
            "",
            "i32[] f32[3]",
            "",
            lambda n, c: [Add()(n, _number(1, "i32")), *pick(Rem()(Mul()(n, n), _number(2, "i32")), c)],
        ),
    ]


def while_cases() -> list[Case]:
    def loop(name: str, firsts: str, consts: str, carried: str, goes_on: Any, body: Any) -> Case:
        cond = _program(f"until_{name}", f"{firsts} {carried}", lambda *args: [goes_on(*args)])
        op = While(cond, _program(name, f"{consts} {carried}", body), len(firsts.split()), len(consts.split()))
        return case(op, f"{firsts} {consts} {carried}")

    def below(n: Any, limit: int) -> Any:
        return Compare("LT")(n, _number(limit, "i32"))

    def step(n: Any) -> Any:
        return Add()(n, _number(1, "i32"))

    return [
        loop("count", "", "", "i32[]", lambda n: below(n, 5), lambda n: [step(n)]),
        loop("never", "", "", "i32[] f32[2]", lambda n, c: below(n, -9), lambda n, c: [n, Mul()(c, c)]),
        loop("iterate", "", "", "i32[] f32[3]", lambda n, c: below(n, 2), lambda n, c: [step(n), Sin()(c)]),
        loop("scale", "", "f32[3]", "i32[] f32[3]", lambda n, c: below(n, -2), lambda k, n, c: [step(n), Mul()(c, k)]),
        loop(
            "to_a_bound",
            "i32[]",
            "f32[]",
            "i32[] f32[]",
            lambda m, n, c: Compare("LT")(n, m),
            lambda k, n, c: [step(n), Mul()(c, Sin()(k))],
        ),
        loop(
            "grow",
            "f32[]",
            "",
            "f32[3]",
            lambda a, c: Compare("LT")(Sum((0,))(Mul()(c, c)), Add()(Mul()(a, a), _number(30))),
            lambda c: [Add()(c, c)],
        ),
        loop(
            "swap", "", "", "i32[] f32[2] f32[2]", lambda n, a, b: below(n, 0), lambda n, a, b: [step(n), b, Sin()(a)]
        ),
        loop("boolean", "", "", "bool[] i32[]", lambda go, n: go, lambda go, n: [below(n, 3), step(n)]),
    ]


def conv_cases() -> list[Case]:
    def conv(names: str, types: str, windows: Sequence[tuple[int, int, int, int, int]], result: str = "f32") -> Case:
        """`windows`: for each spatial dim the stride, low and high padding, and the dilations of array and kernel."""
        columns = tuple(zip(*windows, strict=True)) or ((),) * 5
        return case(Conv(*names.replace(" ->", ",").split(", "), *columns, dtype(result)), types)

    plain_row, row = (1, 0, 0, 1, 1), "bi0, oi0 -> bo0"
    images, same = "bi01, oi01 -> bo01", (1, 1, 1, 1, 1)
    return [
        conv(row, "f32[3,2,7] f32[2,2,3]", [plain_row]),
        conv(row, "f32[2,3,8] f32[2,3,3]", [same]),
        conv(row, "f32[2,1,9] f32[2,1,2]", [(2, 1, 0, 1, 1)]),
        conv(row, "f32[1,2,7] f32[2,2,3]", [(3, 2, 3, 1, 2)]),
        conv(row, "f32[1,2,5] f32[1,2,3]", [(1, 2, 1, 2, 1)]),  # as the transpose of a stride of 2
        conv(row, "f32[1,1,7] f32[1,1,3]", [(1, 0, 2, 3, 1)]),
        conv(row, "f32[1,1,6] f32[1,1,3]", [(2, 3, 1, 3, 2)]),
        conv(row, "f32[2,2,9] f32[2,2,3]", [(1, -2, -1, 1, 1)]),
        conv(row, "f32[1,2,6] f32[2,2,2]", [(2, -1, 2, 2, 1)]),
        conv(row, "f32[2,2,8] f32[2,2,1]", [plain_row]),
        conv(row, "f32[2,2,7] f32[2,2,1]", [(2, 0, 0, 1, 1)]),
        # The kernel is longer than the result, and is sharded too.
        conv(row, "f32[2,2,9] f32[2,2,7]", [plain_row]),
        conv(row, "f32[1,2,8] f32[2,2,8]", [same]),
        conv(row, "f32[1,1,13] f32[1,1,6]", [(2, 1, 0, 1, 2)]),
        conv(row, "f32[1,1,5] f32[1,1,7]", [(3, 2, 1, 2, 1)]),
        conv(images, "f32[2,2,5,4] f32[3,2,3,3]", [same, same]),
        conv(images, "f32[1,2,6,5] f32[2,2,3,2]", [(2, 1, 1, 1, 1), (1, 0, 1, 1, 2)]),
        conv(images, "f32[1,1,5,6] f32[2,1,4,5]", [plain_row, same]),
        conv("b01i, 01io -> b01o", "f32[2,4,5,3] f32[2,3,3,2]", [same, (2, 1, 0, 1, 1)]),
        conv("01bi, o1i0 -> 1b0o", "f32[4,3,2,2] f32[3,2,2,2]", [same, plain_row]),
        conv("bi012, oi012 -> bo012", "f32[1,2,3,4,3] f32[2,2,2,2,2]", [same, (2, 0, 1, 1, 1), plain_row]),
        conv("bi, oi -> bo", "f32[3,4] f32[2,4]", []),
        # Groups; then with one more letter, as vmap adds it.
        conv("bgi0, goi0 -> bgo0", "f32[2,2,3,6] f32[2,2,3,3]", [same]),
        conv("bgi0, goi0 -> bgo0", "f32[2,4,1,6] f32[4,1,1,3]", [(2, 1, 1, 1, 1)]),
        conv("gbi0, goi0 -> bgo0", "f32[2,2,3,6] f32[2,2,3,3]", [same]),
        conv("bgi0, bgo0 -> goi0", "f32[2,3,2,6] f32[2,3,2,6]", [same]),
        conv("bagi0, goai0 -> abgo0", "f32[2,2,2,1,5] f32[2,2,2,1,3]", [same]),
        conv("abi0, oi0 -> aob0", "f32[2,2,3,5] f32[2,3,3]", [same]),
        conv("bi0, aoi0 -> boa0", "f32[2,3,5] f32[2,2,3,3]", [same]),
        conv(row, "f32[0,2,7] f32[2,2,3]", [plain_row]),
        conv(row, "f32[2,0,7] f32[2,0,3]", [plain_row]),
        conv(row, "f32[2,2,2] f32[2,2,3]", [plain_row]),
        conv(row, "f32[2,2,0] f32[2,2,3]", [(1, 2, 2, 1, 1)]),
        *(conv(row, f"{name}[2,2,6] {name}[2,2,3]", [same], name) for name in ("f16", "bf16", "f64", *COMPLEX)),
        *(conv(row, f"{name}[2,2,6] {name}[2,2,3]", [same], name) for name in (*INTEGERS, *SMALL)),
        *(conv(row, f"{name}[2,2,6] {name}[2,2,3]", [same], "f32") for name in ("bf16", "f16")),
        conv(row, "i8[2,2,6] i8[2,2,3]", [same], "i32"),
        conv(row, "f32[2,2,6]~ f32[2,2,3]~", [same]),
    ]


def window_cases() -> list[Case]:
    rows: list[tuple[str, list[tuple[int, ...]]]] = [
        ("[7]", [(3, 1, 1, 1, 1, 1)]),
        ("[9]", [(2, 2, 0, 1, 1, 1)]),
        ("[8]", [(2, 3, 1, 0, 1, 2)]),
        ("[7]", [(3, 1, 0, 1, 1, 2)]),
        ("[9]", [(3, 2, -1, -2, 1, 1)]),
        ("[5,4]", [(3, 2, 1, 1, 1, 1), (2, 1, 0, 0, 1, 1)]),
        ("[2,6]", [(1, 1, 0, 0, 1, 1), (3, 3, 0, 0, 1, 1)]),
        ("[3,2,4]", [(2, 1, 0, 1, 1, 1), (2, 1, 0, 0, 1, 1), (4, 1, 0, 0, 1, 1)]),
        ("[5]", [(3, 1, 1, 1, 2, 1)]),
        ("[5]", [(4, 2, 0, 1, 3, 1)]),
    ]
    cases = [
        case(ReduceWindow(reduction, *zip(*windows, strict=True)), f"f32{shape}")  # type: ignore[arg-type]
        for reduction in (SUM, PROD, MAX, MIN)
        for shape, windows in rows
    ]
    pair = ((2,), (1,), (1,), (0,), (1,), (1,))
    kinds = {SUM: (*FLOATS, *COMPLEX, *INTEGERS, *SMALL), PROD: ("bf16", "c64", "i32", "u8")}
    kinds |= dict.fromkeys((MAX, MIN), (*FLOATS, *INTEGERS, *SMALL, "bool"))
    cases += [
        case(ReduceWindow(reduction, *pair), f"{name}[7]") for reduction, names in kinds.items() for name in names
    ]
    cases += [case(ReduceWindow(reduction, *pair), "f32[33]", special=True) for reduction in (MAX, MIN)]
    cases += [
        case(ReduceWindow(SUM, (), (), (), (), (), ()), "f32[]"),
        case(ReduceWindow(MAX, *pair), "f32[3]~"),
        case(ReduceWindow(SUM, *pair), "f32[0]"),
        case(ReduceWindow(SUM, (3,), (1,), (0,), (0,), (1,), (1,)), "f32[2]"),
        case(ReduceWindow(MIN, (3,), (1,), (2,), (2,), (1,), (1,)), "i32[0]"),
    ]
    for shape, windows in rows:
        dim = len(windows) - 1
        x = parse_type(f"f32{shape}")
        for wins in ("GT", "LT"):
            cases.append(Case(WindowArgExtremum(dim, *windows[-1], wins), (x,)))
        pick, add = GatherFromWindow(dim, *windows[-1]), ScatterAddToWindow(dim, *windows[-1])
        cases.append(Case(pick, (x, ArrayType(pick.windowed_type(x).shape, np.int32))))
        cases.append(Case(add, (x, ArrayType(x.shape, np.int32))))
    sliding = (4, 1, 1, 2, 1, 1)
    cases += [case(WindowArgExtremum(0, *sliding, wins), "f32[33]", special=True) for wins in ("GT", "LT")]
    cases += [case(ScatterAddToWindow(0, *sliding), f"{name}[5] i32[5]") for name in ("bf16", "f64", "c64", "i32")]
    cases += [case(GatherFromWindow(0, *sliding), f"{name}[5] i32[5]") for name in ("bf16", "f64", "c64", "i32")]
    return cases


@lru_cache(maxsize=1)
def random_cases() -> list[Case]:
    cases = [case(RandomBits((5, 3), (3, 1), width), "u32[2] u64[]") for width in (8, 16, 32, 64)]
    cases += [
        case(RandomBits((), (), 32), "u32[2] u64[]"),
        case(RandomBits((7,), (1,), 32), "u32[3,2] u64[3]"),
        case(RandomBits((3, 0), (0, 1), 32), "u32[2] u64[]"),
        # Counters of more than 32 bits: within a shard, or at its start.
        case(RandomBits((3, 2), (2**33, 2**31), 32), "u32[2] u64[]"),
        case(RandomBits((5,), (2**30,), 64), "u32[2] u64[]", special=True),
        case(RandomKeys((), ()), "u32[2] u64[]"),
        case(RandomKeys((4,), (1,)), "u32[3,2] u64[3]"),
        case(RandomKeys((2, 3), (2**40, 2**32)), "u32[2] u64[]"),
    ]
    cases += [case(RandomGamma(log), f"u32{shape[:-1]},2] f32{shape}") for log in (False, True) for shape in ("[5]",)]
    cases += [case(RandomGamma(False), "u32[2,3,2] f32[2,3]"), case(RandomGamma(True), "u32[2] f32[]")]
    for kind, types in (("poisson", "f32[{}]"), ("binomial", "f32[{}] f32[{}]")):
        cases += [
            case(WaitingTimeSampler(kind, (1,)), f"u32[2] u64[] {types.format(5, 5)}"),
            case(WaitingTimeSampler(kind, ()), f"u32[3,2] u64[3] {types.format(3, 3)}"),
            case(RejectionSampler(kind, (1,)), f"u32[2] u64[] i32[] bool[7] {types.format(7, 7)}"),
            case(RejectionSampler(kind, ()), f"u32[3,2] u64[3] i32[3] bool[3] {types.format(3, 3)}"),
        ]
    return cases


@cache
def op_cases() -> tuple[Case, ...]:
    """Return the cases of all ops except collectives, which have tests of their own."""
    return (
        *nullary_cases(),
        *movement_cases(),
        *slicing_cases(),
        *dynamic_cases(),
        *indexed_cases(),
        *elementwise_cases(),
        *function_cases(),
        *special_cases(),
        *number_cases(),
        *bitwise_cases(),
        *convert_cases(),
        *reduction_cases(),
        *cumulative_cases(),
        *sort_cases(),
        *dot_cases(),
        *fft_cases(),
        *attention_cases(),
        *kernel_cases(),
        *linalg_cases(),
        *conv_cases(),
        *window_cases(),
        *random_cases(),
        *constrain_cases(),
        *reshard_cases(),
        *solve_cases(),
        *call_cases(),
        *cond_cases(),
        *scan_cases(),
        *while_cases(),
    )

"""How elementwise ops of a Pallas kernel are computed in Triton IR. Operands are blocks of one shape."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ir.op import Op
from shardwise.compiler.kernels.pallas.tile import OutsideSubset
from shardwise.compiler.kernels.triton_ir import F32, I1, Block, TritonBuilder
from shardwise.compiler.ops.elementwise.powers import IntegerPow
from shardwise.compiler.ops.elementwise.rounding import Round

Rule = Callable[[TritonBuilder, Any, Sequence[Block]], Block]

# Functions of CUDA's libdevice, for float32; `__nv_` and `f` are added.
_LIBDEVICE = {
    **{name: name for name in ("tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh")},
    **{name: name for name in ("atanh", "cbrt", "expm1", "log1p", "pow", "nextafter", "erf", "erfc")},
    "rem": "fmod",
    "erf_inv": "erfinv",
    "lgamma": "lgamma",
}
# Ops of MLIR for float32.
_MATH = {
    "exp": "math.exp",
    "exp2": "math.exp2",
    "log": "math.log",
    "log2": "math.log2",
    "sin": "math.sin",
    "cos": "math.cos",
    "sqrt": "math.sqrt",
    "rsqrt": "math.rsqrt",
    "floor": "math.floor",
    "ceil": "math.ceil",
}
_SAME_IN_NARROW_FLOATS = frozenset(
    {"add", "sub", "mul", "neg", "max", "min", "relu", "clamp", "abs", "select", "compare"}
)
_IDENTITIES = frozenset({"stop_gradient", "barrier", "checkpoint_name", "in_memory"})


def emit_elementwise(
    kernel: TritonBuilder, op: Op, operands: Sequence[Block], dtype: DType, divides: bool = False
) -> Block:
    """Compute an elementwise op, with a result of `dtype`. `divides` is whether it is a division by positive integers.

    Floats narrower than 32 bits are computed as float32, unless the op has the same result in both.
    """
    if op.name in _IDENTITIES:
        return operands[0]
    if op.name == "convert":
        return _convert(kernel, operands[0], dtype)
    if op.name == "bitcast_convert":
        if operands[0].dtype.itemsize != dtype.itemsize or I1 in (operands[0].dtype, dtype):
            raise OutsideSubset("bitcast_convert of booleans, or to elements of another size")
        return kernel.bitcast(operands[0], dtype)
    rule = _POSITIVE_DIVISIONS[op.name] if divides else _RULES.get(op.name)
    first = operands[-1].dtype
    if rule is None and is_float(first):
        rule = _function_rule(op.name)
    if rule is None:
        raise OutsideSubset(f"the op {op.name} of {first}")
    is_wide = first == F32 or not is_float(first)
    if op.name == "nextafter" and not is_wide:
        raise OutsideSubset(f"the op nextafter of {first}")
    if is_wide or (op.name in _SAME_IN_NARROW_FLOATS and first.itemsize == 2):
        return rule(kernel, op, operands)
    wide = [x.to(F32) if is_float(x.dtype) else x for x in operands]
    result = rule(kernel, op, wide)
    return result.to(dtype) if is_float(result.dtype) else result


def _function_rule(name: str) -> Rule | None:
    if name in _MATH:
        return lambda kernel, op, xs: kernel.unary(_MATH[name], xs[0])
    if name in _LIBDEVICE:
        return lambda kernel, op, xs: kernel.function(f"__nv_{_LIBDEVICE[name]}f", *xs)
    return None


def _convert(kernel: TritonBuilder, x: Block, dtype: DType) -> Block:
    """Convert, through float32 between float8 and integers, and through int32 from floats to narrow integers.

    Floats become the nearest integer of the dtype, and NaN becomes 0: the GPU does so for integers of 32 bits or more.
    """
    if dtype == I1 and is_float(x.dtype):
        return kernel.compare("ne", x.to(F32), 0.0)
    if is_float(x.dtype) and not is_float(dtype) and dtype.itemsize < 4:
        limits = np.iinfo(dtype)
        inside = kernel.binary("arith.maximumf", x.to(F32), float(limits.min), F32)
        inside = kernel.binary("arith.minimumf", inside, float(limits.max), F32)
        return inside.to(np.dtype(np.int32)).to(dtype)
    if x.dtype.itemsize == 1 and dtype.itemsize == 1 and is_float(x.dtype) and is_float(dtype):
        return x.to(F32).to(dtype)
    if is_float(x.dtype) != is_float(dtype) and 1 in (x.dtype.itemsize, dtype.itemsize):
        return x.to(F32).to(dtype)
    return x.to(dtype)


def _combined(boolean: str, other: str, floats: str | None = None) -> Rule:
    """Return the rule of an op of two operands: "and" or "or" of booleans, another one of numbers."""

    def rule(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
        x, y = xs
        if x.dtype == I1:
            return kernel.binary(f"arith.{boolean}i", x, y, I1)
        if floats is not None and is_float(x.dtype):
            return kernel.binary(floats, x, y, x.dtype)
        return kernel.arithmetic(other, x, y)

    return rule


_maximum = _combined("or", "maxs", "arith.maximumf")
_minimum = _combined("and", "mins", "arith.minimumf")


def _bits(name: str) -> Rule:
    return lambda kernel, op, xs: kernel.binary(f"arith.{name}", xs[0], xs[1], xs[0].dtype)


def _shift(name: str) -> Rule:
    """Return the rule of a shift: of as many bits as an element has or more, all bits are shifted out."""

    def rule(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
        x, count = xs
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        bits = 8 * x.dtype.itemsize
        inside = kernel.compare("lt", count.to(unsigned), bits)
        if name == "shrsi":
            return kernel.binary("arith.shrsi", x, kernel.where(inside, count, bits - 1), x.dtype)
        shifted = kernel.binary(f"arith.{name}", x, kernel.where(inside, count, 0), x.dtype)
        return kernel.where(inside, shifted, 0)

    return rule


def _not(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    return kernel.binary("arith.xori", xs[0], 1 if xs[0].dtype == I1 else -1, xs[0].dtype)


def _div(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    """Divide; the quotient by the integer 0 is -1, and that of the least integer and -1 is the least integer."""
    x, y = xs
    if is_float(x.dtype):
        return kernel.arithmetic("div", x, y)
    is_zero, overflows = _undefined_divisions(kernel, x, y)
    quotient = kernel.arithmetic("divs", x, kernel.where(is_zero | overflows, 1, y))
    return kernel.where(is_zero, -1 if x.dtype.kind == "i" else np.iinfo(x.dtype).max, quotient)


def _rem(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    """Return the remainder of `_div`; that of a division by the integer 0 is the dividend."""
    x, y = xs
    if is_float(x.dtype):
        return kernel.function("__nv_fmodf", x, y)
    is_zero, overflows = _undefined_divisions(kernel, x, y)
    return kernel.where(is_zero, x, kernel.arithmetic("rems", x, kernel.where(is_zero | overflows, 1, y)))


def _undefined_divisions(kernel: TritonBuilder, x: Block, y: Block) -> tuple[Block, Block]:
    """Return where a divisor is 0, and where a quotient overflows. LLVM may assume that neither happens."""
    is_zero = y.equals(0)
    if x.dtype.kind == "u":
        return is_zero, is_zero
    return is_zero, y.equals(-1) & x.equals(int(np.iinfo(x.dtype).min))


def _neg(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    return xs[0] * -1.0 if is_float(xs[0].dtype) else kernel.arithmetic("sub", xs[0] * 0, xs[0])


def _abs(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    if is_float(xs[0].dtype):
        return kernel.unary("math.absf", xs[0])
    return (
        xs[0]
        if xs[0].dtype.kind == "u"
        else kernel.arithmetic("maxs", xs[0], kernel.arithmetic("sub", xs[0] * 0, xs[0]))
    )


def _sign(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    (x,) = xs
    if x.dtype.kind == "u":
        return kernel.arithmetic("mins", x, 1)
    one = kernel.full(x.shape, 1, x.dtype)
    negative = kernel.where(kernel.compare("lt", x, 0), one * -1, x)  # zeros and NaN stay
    return kernel.where(kernel.compare("gt", x, 0), one, negative)


def _clamp(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    low, x, high = xs
    return _minimum(kernel, op, [_maximum(kernel, op, [low, x]), high])


def _integer_pow(kernel: TritonBuilder, op: IntegerPow, xs: Sequence[Block]) -> Block:
    (x,) = xs
    result, power, rest = None, x, abs(op.y)
    while rest:
        if rest % 2:
            result = power if result is None else result * power
        power, rest = (power * power, rest // 2) if rest > 1 else (power, 0)
    if result is None:
        return kernel.full(x.shape, 1, x.dtype)
    return kernel.full(x.shape, 1, x.dtype) / result if op.y < 0 else result


def _round(kernel: TritonBuilder, op: Round, xs: Sequence[Block]) -> Block:
    return kernel.function("__nv_rintf" if op.half == "even" else "__nv_roundf", xs[0])


def _logistic(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    return kernel.reciprocal(kernel.fast_exp2(xs[0] * -math.log2(math.e)) + 1.0)


def _is_finite(kernel: TritonBuilder, op: Op, xs: Sequence[Block]) -> Block:
    return kernel.compare("lt", kernel.unary("math.absf", xs[0]), np.inf)


_RULES: dict[str, Rule] = {
    "add": _combined("or", "add"),
    "mul": _combined("and", "mul"),
    "sub": lambda kernel, op, xs: kernel.arithmetic("sub", *xs),
    "div": _div,
    "rem": _rem,
    "neg": _neg,
    "max": _maximum,
    "min": _minimum,
    "relu": lambda kernel, op, xs: _maximum(kernel, op, [xs[0], kernel.full(xs[0].shape, 0, xs[0].dtype)]),
    "clamp": _clamp,
    "abs": _abs,
    "sign": _sign,
    "square": lambda kernel, op, xs: xs[0] * xs[0],
    "one_minus_square": lambda kernel, op, xs: (1.0 - xs[0]) * (xs[0] + 1.0),
    "integer_pow": _integer_pow,
    "round": _round,
    "logistic": _logistic,
    "is_finite": _is_finite,
    "and": _bits("andi"),
    "or": _bits("ori"),
    "xor": _bits("xori"),
    "not": _not,
    "shift_left": _shift("shli"),
    "shift_right_logical": _shift("shrui"),
    "shift_right_arithmetic": _shift("shrsi"),
    "select": lambda kernel, op, xs: kernel.where(*xs),
    "compare": lambda kernel, op, xs: kernel.compare(op.direction.lower(), *xs),
}

_POSITIVE_DIVISIONS: dict[str, Rule] = {
    "div": lambda kernel, op, xs: kernel.arithmetic("divs", *xs),
    "rem": lambda kernel, op, xs: kernel.arithmetic("rems", *xs),
}

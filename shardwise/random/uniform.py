"""Random bits, uniform floats and integers, and coins."""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import DType, integer_range, is_float, is_integer
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.bitwise import bit_width
from shardwise.compiler.ops.draws import mantissa_bits, subkeys, uniform_between
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Mul, Rem, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.operands import as_operand, astype_weak, stretch, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.random import WIDTHS, random_bits
from shardwise.compiler.ops.shape import full
from shardwise.random.draw import Shape, draw, fitting, float_dtype, integer_dtype, one_of, parameter, sizes
from shardwise.random.keys import words


def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Random unsigned integers, all equally likely.

    >>> jax.random.bits(jax.random.key(0), (3,), "uint8")
    Array([167, 146,  40], dtype=uint8)
    """
    found = canonical_dtype(np.uint64) if dtype is None else canonical_dtype(dtype)
    if found not in WIDTHS.values():
        raise ValueError(f"bits: dtype should be one of {', '.join(map(str, WIDTHS.values()))}, not {found}")
    shape = sizes("bits", shape)
    return draw(random_bits, words("bits", key), shape=shape, width=8 * found.itemsize, out_sharding=out_sharding)


def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Any:
    """Floats from `minval` to below `maxval`, all equally likely.

    >>> jax.random.uniform(jax.random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    kind, shape = float_dtype("uniform", dtype), sizes("uniform", shape)
    fitting("uniform", shape, type_of(minval, "uniform").shape, type_of(maxval, "uniform").shape)
    key = words("uniform", key)
    return draw(between, key, minval, maxval, shape=shape, dtype=kind, out_sharding=out_sharding)


def between(key: Any, low: Any, high: Any, *, shape: Shape, dtype: DType) -> Any:
    """Uniform floats from `low` to below `high`."""
    low, high = (parameter(as_operand(end), shape, dtype) for end in (low, high))
    return uniform_between(draws.uniform(key, shape, dtype), low, high)


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Integers from `minval` to below `maxval`; where there are none, `minval`.

    Each is twice as many random bits as the dtype has, modulo the range: large ranges are all but equally likely.

    >>> jax.random.randint(jax.random.key(0), (4,), 0, 10)
    Array([9, 0, 2, 3], dtype=int32)
    """
    kind, shape = integer_dtype("randint", dtype), sizes("randint", shape)
    fitting("randint", shape, type_of(minval, "randint").shape, type_of(maxval, "randint").shape)
    key = words("randint", key)
    return draw(integers, key, minval, maxval, shape=shape, dtype=kind, out_sharding=out_sharding)


def integers(key: Any, low: Any, high: Any, *, shape: Shape, dtype: DType) -> Any:
    """Uniform integers from `low` to below `high`."""
    ends = [_integer(end) for end in (low, high)]
    low, high = ends
    kind = dtype
    if bit_width(dtype) < 32:  # drawn in 32 bits, so that all are equally likely
        kind, (least, most) = np.dtype(np.int32), integer_range(dtype)
        low, high = (astype_weak(end, kind, False) for end in ends)
        low, high = _clipped(low, least, most), _clipped(high, least, most + 1)
    past = Compare("GT")(high, like(high, min(integer_range(kind)[1], integer_range(high.type.dtype)[1])))
    low, high = (stretch(_within(end, kind), shape) for end in (low, high))
    past, is_range = stretch(past, shape), Compare("GT")(high, low)
    word = WIDTHS[bit_width(kind)]
    span = Convert(word)(Sub()(high, low))
    span = Select()(is_range, span, like(span, 1))
    span = Select()(past & is_range, Add()(span, like(span, 1)), span)
    upper, lower = (random_bits(part, shape, bit_width(kind)) for part in subkeys(key, 2))
    half = Rem()(like(span, 2 ** (bit_width(kind) // 2)), span)
    weight = Rem()(Mul()(half, half), span)
    found = Rem()(Add()(Mul()(Rem()(upper, span), weight), Rem()(lower, span)), span)
    return astype_weak(Add()(low, Convert(kind)(found)), dtype, False)


def _integer(x: Any) -> Any:
    x = as_operand(x)
    return x if is_integer(x.type.dtype) else astype_weak(x, default_dtype("int*"), False)


def _clipped(x: Any, low: int, high: int) -> Any:
    return Clamp()(like(x, low), x, like(x, high))


def _within(x: Any, dtype: DType) -> Any:
    """Integers as another dtype; those past its range become the end of it."""
    (low, high), (least, most) = integer_range(x.type.dtype), integer_range(dtype)
    return astype_weak(_clipped(x, max(low, least), min(high, most)), dtype, False)


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low", *, out_sharding: Any = None) -> Any:
    """Booleans that are true with chance `p`. `mode="high"` draws twice the bits, for small chances.

    >>> jax.random.bernoulli(jax.random.key(0), 0.5, (4,))
    Array([False, False,  True,  True], dtype=bool)
    """
    one_of("bernoulli", "mode", mode, ("high", "low"))
    kind = type_of(p, "bernoulli")
    if not is_float(kind.dtype):
        raise TypeError(f"bernoulli: the chance p should be a float, not {kind}")
    shape = fitting("bernoulli", shape, kind.shape)
    key = words("bernoulli", key)
    return draw(coins, key, p, shape=shape, mode=mode, out_sharding=out_sharding)


def coins(key: Any, p: Any, *, shape: Shape, mode: str = "low") -> Any:
    """Booleans that are true with chance `p`."""
    p = as_operand(p)
    p = parameter(p, shape, p.type.dtype)
    if mode == "low":
        return Compare("LT")(draws.uniform(key, shape, p.type.dtype), p)
    pair = draws.uniform(key, (2, *shape), p.type.dtype)
    return pair[1] * 2.0 ** -mantissa_bits(p.type.dtype) < p - pair[0]


def rademacher(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """1 and -1, equally likely.

    >>> jax.random.rademacher(jax.random.key(0), (4,))
    Array([-1, -1,  1,  1], dtype=int32)
    """
    kind = default_dtype("int*") if dtype is None else canonical_dtype(dtype)
    key, shape = words("rademacher", key), sizes("rademacher", shape)
    return draw(signs, key, shape=shape, dtype=kind, out_sharding=out_sharding)


def signs(key: Any, *, shape: Shape, dtype: DType) -> Any:
    """1 and -1."""
    is_up = coins(key, full((), 0.5, default_dtype("float*")), shape=shape)
    up = Convert(dtype)(is_up)
    return Sub()(Mul()(like(up, 2), up), like(up, 1))

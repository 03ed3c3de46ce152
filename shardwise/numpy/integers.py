"""Integers: what divides them, and their bits."""

import operator
from typing import Any

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.compiler.ir.types import is_integer
from shardwise.compiler.ops.bitwise import And, PopulationCount, ShiftRightLogical, bit_width
from shardwise.compiler.ops.elementwise import Compare, Convert, Div, Mul, Rem, Select, like
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.numeric import absolute, truth
from shardwise.compiler.ops.operands import aligned, as_operand, composed, type_of
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.shape import Broadcast, Reshape, full
from shardwise.compiler.ops.slicing import Concatenate, Pad, along


def _integers(name: str, *operands: Any) -> list[Any]:
    for operand in operands:
        kind = type_of(operand, name)
        if not is_integer(kind.dtype):
            raise ValueError(f"{name}: needs integers, not {kind}")
    return aligned(name, operands)


def gcd(x1: Any, x2: Any) -> Any:
    """The largest number that divides both; of 0 and another, the other's magnitude.

    >>> jnp.gcd(jnp.array([12, 7]), 18)
    Array([6, 1], dtype=int32)
    """
    return _gcd(x1, x2)


@composed
def _gcd(x1: Any, x2: Any) -> Any:
    return _common_divisor(*_integers("gcd", x1, x2))


def _common_divisor(x: Any, y: Any) -> Any:
    """Euclid's way. Each second remainder is less than half: so many turns are enough for all, and none waits for
    another device to be ready."""

    def turn(_: Any, pair: Any) -> Any:
        larger, smaller = pair
        is_done = Compare("EQ")(smaller, like(smaller, 0))
        left = Rem()(larger, Select()(is_done, like(smaller, 1), smaller))
        return Select()(is_done, larger, smaller), Select()(is_done, like(smaller, 0), left)

    turns = int(bit_width(x.type.dtype) * 1.4405) + 2  # of two Fibonacci numbers it takes the most
    return absolute(fori_loop(0, turns, turn, (x, y))[0])


def lcm(x1: Any, x2: Any) -> Any:
    """The least number that both divide; of 0 and another, 0.

    >>> jnp.lcm(jnp.array([12, 7]), 18)
    Array([ 36, 126], dtype=int32)
    """
    return _lcm(x1, x2)


@composed
def _lcm(x1: Any, x2: Any) -> Any:
    x, y = _integers("lcm", x1, x2)
    divisor = _common_divisor(x, y)
    is_none = Compare("EQ")(divisor, like(divisor, 0))
    parts = Div()(y, Select()(is_none, like(divisor, 1), divisor))
    return Select()(is_none, like(x, 0), absolute(Mul()(x, parts)))


@composed
def bitwise_count(x: Any, /) -> Any:
    """How many bits of the magnitude of each integer are set.

    >>> jnp.bitwise_count(jnp.array([7, -8]))
    Array([3, 1], dtype=uint8)
    """
    x = as_operand(x, "bitwise_count")
    if x.type.dtype == np.bool_:
        return Convert(np.dtype(np.uint8))(x)
    if not is_integer(x.type.dtype):
        raise TypeError(f"bitwise_count: needs integers or booleans, not {x.type}")
    return Convert(np.dtype(np.uint8))(PopulationCount()(absolute(x)))


def _bit_order(name: str, bitorder: str) -> tuple[int, ...]:
    if bitorder not in ("big", "little"):
        raise ValueError(f"{name}: bitorder is 'big' or 'little', not {bitorder!r}")
    return tuple(range(8) if bitorder == "little" else reversed(range(8)))


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements along `axis`, 1 where they differ from 0, as the bits of one byte; 0 follows the last.

    `bitorder`: whether the first is the highest ("big") or the lowest bit ("little"). Without an axis, of all in a row.

    >>> jnp.packbits(jnp.array([1, 0, 0, 0, 0, 0, 1, 1, 1]))
    Array([131, 128], dtype=uint8)
    """
    kind = type_of(a, "packbits")
    if not (is_integer(kind.dtype) or kind.dtype == np.bool_):
        raise TypeError(f"packbits: needs integers or booleans, not {kind}")
    dim = None if axis is None else dim_of("packbits", axis, kind.ndim)
    return _packed(a, dim=dim, order=_bit_order("packbits", bitorder))


@composed
def _packed(a: Any, *, dim: int | None, order: tuple[int, ...]) -> Any:
    x = truth(a, "packbits")
    if dim is None:
        x, dim = Reshape((x.type.size,))(x), 0
    shape = x.type.shape
    count = -(-shape[dim] // 8)
    zeros = (0,) * len(shape)
    high = (*zeros[:dim], 8 * count - shape[dim], *zeros[dim + 1 :])
    bits = Convert(np.dtype(np.uint8))(Pad(zeros, high, zeros)(x, full((), False, np.bool_)))
    parts = Reshape((*shape[:dim], count, 8, *shape[dim + 1 :]))(bits)
    return Sum((dim + 1,))(Mul()(parts, _bit_values(parts.type.shape, dim + 1, order)))


def _bit_values(shape: tuple[int, ...], dim: int, order: tuple[int, ...]) -> Any:
    """What the bit at each place along `dim` stands for."""
    values = Concatenate(0)(*(full((1,), 1 << place, np.uint8) for place in order))
    return Broadcast(shape, (dim,))(values)


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of bytes along `axis`: eight elements, 0 or 1, for each.

    `count`: how many to give; 0 follows the last, and of a negative number so many are left out at the end.

    >>> jnp.unpackbits(jnp.array([131], dtype=jnp.uint8))
    Array([1, 0, 0, 0, 0, 0, 1, 1], dtype=uint8)
    """
    kind = type_of(a, "unpackbits")
    if kind.dtype != np.uint8:
        raise TypeError(f"unpackbits: needs bytes (uint8), not {kind}")
    dim = None if axis is None else dim_of("unpackbits", axis, kind.ndim)
    wanted = None if count is None else operator.index(count)
    return _unpacked(a, dim=dim, count=wanted, order=_bit_order("unpackbits", bitorder))


@composed
def _unpacked(a: Any, *, dim: int | None, count: int | None, order: tuple[int, ...]) -> Any:
    x = as_operand(a)
    if dim is None:
        x, dim = Reshape((x.type.size,))(x), 0
    shape = x.type.shape
    dims = tuple(d + (d > dim) for d in range(len(shape)))
    parts = Broadcast((*shape[: dim + 1], 8, *shape[dim + 1 :]), dims)(x)
    steps = Concatenate(0)(*(full((1,), place, np.uint8) for place in order))
    bits = ShiftRightLogical()(parts, Broadcast(parts.type.shape, (dim + 1,))(steps))
    bits = And()(bits, like(bits, 1))
    found = Reshape((*shape[:dim], 8 * shape[dim], *shape[dim + 1 :]))(bits)
    whole = found.type.shape[dim]
    size = whole if count is None else count if count >= 0 else max(whole + count, 0)
    if size <= whole:
        return along(found, dim, 0, size)
    zeros = (0,) * len(shape)
    return Pad(zeros, (*zeros[:dim], size - whole, *zeros[dim + 1 :]), zeros)(found, full((), 0, np.uint8))

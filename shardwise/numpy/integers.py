"""Functions of integers: gcd, lcm, bitwise_count, packbits and unpackbits."""

import operator
from typing import Any

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.arithmetic import absolute, as_bool
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, as_strong, compiled_function, promote_and_broadcast, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.elementwise.arithmetic import Mul, Rem
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, PopulationCount, ShiftRightLogical, bit_width
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, slice_along
from shardwise.numpy.families import NOT_BROADCASTABLE
from shardwise.typing import ArrayLike

_INTEGERS = Family(
    {"x1, x2": "the integers, which broadcast."},
    raises=[NOT_BROADCASTABLE, "ValueError: if the promoted dtype of the arguments is not an integer."],
)


def _promote_integers(name: str, *operands: ArrayLike) -> list[Any]:
    """Promote and broadcast operands. A promoted dtype that is not an integer is an error of the function `name`."""
    types = [type_of(operand, name) for operand in operands]
    if not is_integer(promote_dtypes(name, types)[0]):
        raise ValueError(f"{name}: operands must be integers, not {' and '.join(map(str, types))}")
    x, y = promote_and_broadcast(name, operands)
    return [as_strong(x), as_strong(y)] if x.type.ndim else [x, y]  # as in JAX, where constants have dims


@compiled_function
@documented(_INTEGERS, returns="The greatest common divisors, in the promoted dtype.")
def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Compute the greatest common divisor, elementwise.

    The result is not negative. The greatest common divisor of 0 and y is the absolute value of y.

    Example:
        >>> jnp.gcd(jnp.array([12, 7]), 18)
        Array([6, 1], dtype=int32)
    """
    return _euclid(*_promote_integers("gcd", x1, x2))


def _euclid(x: Array, y: Array) -> Any:
    """Compute the greatest common divisor by Euclid's algorithm.

    The loop has a static trip count, the worst case of the dtype, so that no device waits for a condition of another.
    """

    def step(_: Any, pair: Any) -> Any:
        larger, smaller = pair
        is_done = Compare("EQ")(smaller, full_like(smaller, 0))
        remainder = Rem()(larger, Select()(is_done, full_like(smaller, 1), smaller))
        return Select()(is_done, larger, smaller), Select()(is_done, full_like(smaller, 0), remainder)

    steps = int(bit_width(x.type.dtype) * 1.4405) + 2  # the worst case is two consecutive Fibonacci numbers
    return absolute(fori_loop(0, steps, step, (x, y))[0])


@compiled_function
@documented(_INTEGERS, returns="The least common multiples, in the promoted dtype.")
def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Compute the least common multiple, elementwise.

    The result is not negative. The least common multiple of 0 and y is 0.

    Example:
        >>> jnp.lcm(jnp.array([12, 7]), 18)
        Array([ 36, 126], dtype=int32)
    """
    x, y = _promote_integers("lcm", x1, x2)
    divisor = _euclid(x, y)
    divisor = Expr(divisor)
    both_zero = divisor == 0
    quotient = Expr(y) / where(both_zero, 1, divisor)
    return where(both_zero, 0, Expr(absolute((Expr(x) * quotient).array))).array


@compiled_function
def bitwise_count(x: ArrayLike, /) -> Array:
    """Count the set bits of the absolute value of each integer.

    Args:
        x: the integers or booleans.

    Returns:
        The counts, as uint8.

    Raises:
        TypeError: if `x` does not hold integers or booleans.

    Example:
        >>> jnp.bitwise_count(jnp.array([7, -8]))
        Array([3, 1], dtype=uint8)
    """
    x = as_operand(x, "bitwise_count")
    if x.type.dtype == np.bool_:
        return Convert(np.dtype(np.uint8))(x)
    if not is_integer(x.type.dtype):
        raise TypeError(f"bitwise_count: x must hold integers or booleans, not {x.type}")
    return Convert(np.dtype(np.uint8))(PopulationCount()(absolute(x)))


def _bit_shifts(name: str, bitorder: str) -> tuple[int, ...]:
    """Return the position of each of the eight bits of a byte, in the order of the unpacked elements."""
    if bitorder not in ("big", "little"):
        raise ValueError(f"{name}: bitorder must be 'big' or 'little', not {bitorder!r}")
    return tuple(range(8) if bitorder == "little" else reversed(range(8)))


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Pack groups of eight elements into the bits of bytes.

    An element other than 0 becomes a set bit. The last group is padded with zeros.

    Args:
        a: the integers or booleans.
        axis: the axis to pack along. None packs the flattened array.
        bitorder: "big" if the first element of a group is the most significant bit, "little" if it is the least
            significant one.

    Returns:
        An array of uint8, with an eighth of the size along `axis`, rounded up.

    Raises:
        TypeError: if `a` does not hold integers or booleans.
        ValueError: if `axis` does not exist, or if `bitorder` is unknown.

    Example:
        >>> jnp.packbits(jnp.array([1, 0, 0, 0, 0, 0, 1, 1, 1]))
        Array([131, 128], dtype=uint8)
    """
    a_type = type_of(a, "packbits")
    if not (is_integer(a_type.dtype) or a_type.dtype == np.bool_):
        raise TypeError(f"packbits: a must hold integers or booleans, not {a_type}")
    dim = None if axis is None else canonical_axis("packbits", axis, a_type.ndim)
    return _packbits(a, dim=dim, shifts=_bit_shifts("packbits", bitorder))


@compiled_function
def _packbits(a: ArrayLike, *, dim: int | None, shifts: tuple[int, ...]) -> Any:
    x = as_bool(a, "packbits")
    if dim is None:
        x, dim = Reshape((x.type.size,))(x), 0
    shape = x.type.shape
    count = -(-shape[dim] // 8)
    zeros = (0,) * len(shape)
    high = (*zeros[:dim], 8 * count - shape[dim], *zeros[dim + 1 :])
    bits = Convert(np.dtype(np.uint8))(Pad(zeros, high, zeros)(x, full((), False, np.bool_)))
    groups = Reshape((*shape[:dim], count, 8, *shape[dim + 1 :]))(bits)
    return Sum((dim + 1,))(Mul()(groups, _bit_values(groups.type.shape, dim + 1, shifts)))


def _bit_values(shape: tuple[int, ...], dim: int, shifts: tuple[int, ...]) -> Any:
    """Return the value of the bit at each index along `dim`, broadcast to `shape`."""
    values = Concatenate(0)(*(full((1,), 1 << shift, np.uint8) for shift in shifts))
    return Broadcast(shape, (dim,))(values)


def unpackbits(a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """Unpack the bits of bytes into eight elements each, 0 or 1.

    Args:
        a: the bytes, of dtype uint8.
        axis: the axis to unpack along. None unpacks the flattened array.
        count: the size of the result along `axis`, padded with zeros. A negative number removes as many elements at the
            end. None keeps all.
        bitorder: "big" if the most significant bit comes first, "little" if the least significant one does.

    Returns:
        An array of uint8, with eight times the size along `axis`, or `count`.

    Raises:
        TypeError: if `a` does not have the dtype uint8, or if `count` is not an integer.
        ValueError: if `axis` does not exist, or if `bitorder` is unknown.

    Example:
        >>> jnp.unpackbits(jnp.array([131], dtype=jnp.uint8))
        Array([1, 0, 0, 0, 0, 0, 1, 1], dtype=uint8)
    """
    a_type = type_of(a, "unpackbits")
    if a_type.dtype != np.uint8:
        raise TypeError(f"unpackbits: a must have the dtype uint8, not {a_type}")
    dim = None if axis is None else canonical_axis("unpackbits", axis, a_type.ndim)
    static_count = None if count is None else operator.index(count)
    return _unpackbits(a, dim=dim, count=static_count, shifts=_bit_shifts("unpackbits", bitorder))


@compiled_function
def _unpackbits(a: ArrayLike, *, dim: int | None, count: int | None, shifts: tuple[int, ...]) -> Any:
    x = as_operand(a)
    if dim is None:
        x, dim = Reshape((x.type.size,))(x), 0
    shape = x.type.shape
    dims = tuple(d + (d > dim) for d in range(len(shape)))
    groups = Broadcast((*shape[: dim + 1], 8, *shape[dim + 1 :]), dims)(x)
    shift = Concatenate(0)(*(full((1,), each, np.uint8) for each in shifts))
    bits = ShiftRightLogical()(groups, Broadcast(groups.type.shape, (dim + 1,))(shift))
    bits = And()(bits, full_like(bits, 1))
    unpacked = Reshape((*shape[:dim], 8 * shape[dim], *shape[dim + 1 :]))(bits)
    full_size = unpacked.type.shape[dim]
    size = full_size if count is None else count if count >= 0 else max(full_size + count, 0)
    if size <= full_size:
        return slice_along(unpacked, dim, 0, size)
    zeros = (0,) * len(shape)
    return Pad(zeros, (*zeros[:dim], size - full_size, *zeros[dim + 1 :]), zeros)(unpacked, full((), 0, np.uint8))

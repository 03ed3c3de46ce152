"""Operators and methods of Array and Tracer, and the functions behind them, composed of ops.

The functions accept arrays, numpy arrays and Python scalars, promote and broadcast like numpy and JAX, and apply ops.
Positional arguments are arrays, keyword arguments are static. Outside every frame a function runs as one compiled
program (`compiled_function`); inside a frame its ops are staged one by one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from shardwise.base.config import config
from shardwise.compiler.arrays.arithmetic import (
    absolute,
    add,
    around,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    divide,
    floor_divide,
    invert,
    left_shift,
    multiply,
    negative,
    power,
    remainder,
    right_shift,
    subtract,
)
from shardwise.compiler.arrays.device_attributes import DeviceAttributes
from shardwise.compiler.arrays.dynamic_index import has_dynamic_slices, read_dynamic_slices
from shardwise.compiler.arrays.indexing import gather_by_index, parse_index
from shardwise.compiler.arrays.namespace import NamespaceMethods
from shardwise.compiler.arrays.operands import (
    PYTHON_SCALARS,
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    canonical_axes,
    compiled_function,
    promote_and_broadcast,
    static_integer,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.arrays.reductions import sometrue
from shardwise.compiler.arrays.views import byteswap_elements, view_as
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.dispatch import resolves_shardings
from shardwise.compiler.ir.jax_checks import check_equal_batches
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.movement import Reshape, permute

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike, Index

_BLOCK = 32  # the number of rows that iteration over an array slices at once


def is_array_like(x: object) -> "TypeGuard[ArrayLike]":
    """Return whether `x` is an array, a numpy array or scalar, or a Python scalar."""
    return isinstance(x, (Array, np.ndarray, np.generic, *PYTHON_SCALARS))


@compiled_function
def where(condition: "ArrayLike", x: "ArrayLike", y: "ArrayLike") -> Any:
    """Select `x` where `condition` is true, else `y`. All three broadcast."""
    dtype, weak = promote_dtypes("where", (type_of(x, "where"), type_of(y, "where")))
    shape = broadcast_shapes("where", *(type_of(z, "where").shape for z in (condition, x, y)))
    mask = as_operand(condition, "where")
    if mask.type.dtype != np.bool_:
        mask = Compare("NE")(*promote_and_broadcast("where", (mask, 0)))
    cases = [broadcast_to_shape(z, shape) for z in promote_and_broadcast("where", (x, y), dtype, weak)]
    return Select()(broadcast_to_shape(mask, shape), *cases)


@compiled_function
def compare(x: "ArrayLike", y: "ArrayLike", *, direction: str) -> Any:
    """Compare two arrays. `direction` is EQ, NE, LT, LE, GT or GE."""
    return Compare(direction)(*promote_and_broadcast(f"comparison {direction}", (x, y)))


@compiled_function
def astype(x: "ArrayLike", *, dtype: DTypeLike) -> Any:
    """Convert `x` to `dtype`."""
    x = as_operand(x, "astype")
    return astype_weak(x, canonical_dtype(dtype), False)


def static_sizes(name: str, shape: Any) -> list[int]:
    """Return the sizes of a shape, which is an integer or a sequence of integers."""
    sizes = (shape,) if isinstance(shape, (int, float, str)) or not np.iterable(shape) else shape
    return [static_integer(name, f"every size of the shape {shape!r}", size) for size in sizes]


@compiled_function
def reshape(x: "ArrayLike", *, shape: int | Sequence[int]) -> Any:
    """Reshape `x`. One size may be -1 and is inferred."""
    x = as_operand(x, "reshape")
    sizes = static_sizes("reshape", shape)
    if sizes.count(-1) > 1:
        raise TypeError(f"reshape: only one size can be -1, shape {tuple(sizes)} has {sizes.count(-1)}")
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0 or x.type.size % rest:
            raise TypeError(f"reshape: {x.type} has {x.type.size} elements, which shape {tuple(sizes)} cannot hold")
        sizes[sizes.index(-1)] = x.type.size // rest
    target = tuple(sizes)
    return x if target == x.type.shape else Reshape(target)(x)


@compiled_function
def transpose(x: "ArrayLike", *, axes: Sequence[int] | None = None) -> Any:
    """Permute the dims to the order `axes`; reverse them if `axes` is None."""
    x = as_operand(x, "transpose")
    order = tuple(reversed(range(x.type.ndim))) if axes is None else canonical_axes("transpose", axes, x.type)
    if sorted(order) != list(range(x.type.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the dims of {x.type}")
    return permute(x, order)


@compiled_function
def broadcast_to(x: "ArrayLike", *, shape: Sequence[int]) -> Any:
    """Broadcast `x` to `shape` by numpy's rule."""
    x = as_operand(x, "broadcast_to")
    target = tuple(static_sizes("broadcast_to", shape))
    if broadcast_shapes("broadcast_to", x.type.shape, target) != target:
        raise TypeError(f"broadcast_to: {x.type} does not broadcast to {target}")
    return broadcast_to_shape(x, target)


@compiled_function
def matmul(x: "ArrayLike", y: "ArrayLike") -> Any:
    """Compute the matrix product. Leading dims are batch dims and broadcast."""
    types = [type_of(x, "matmul"), type_of(y, "matmul")]
    if not all(type.ndim for type in types):
        raise ValueError(f"matmul: needs arrays of rank 1 or more, not {types[0]} and {types[1]}; use `*` for scalars")
    dtype, weak = promote_dtypes("matmul", types)
    a, b = (astype_weak(as_operand(z, "matmul"), dtype, weak) for z in (x, y))
    row, column = a.type.ndim == 1, b.type.ndim == 1
    inner = (a.type.shape[-1], b.type.shape[0 if column else -2])
    if inner[0] != inner[1]:
        raise TypeError(
            f"matmul: {a.type} @ {b.type}: the last dim of the left, {inner[0]}, must equal "
            f"the {'only' if column else 'second last'} dim of the right, {inner[1]}"
        )
    if config.is_exact and not resolves_shardings():
        check_equal_batches("matmul", a.type, b.type)
    lead_a, lead_b = a.type.shape[:-2], b.type.shape[:-2]
    if not lead_b:  # one matrix for the entire batch, which need not be broadcast
        return Dot(((a.type.ndim - 1,), (0,)))(a, b)
    batch = broadcast_shapes("matmul", lead_a, lead_b)
    dims = tuple(range(len(batch)))
    b = broadcast_to_shape(b, (*batch, *b.type.shape[-2:]))
    if row:
        return Dot(((0,), (len(batch),)))(a, b)
    a = broadcast_to_shape(a, (*batch, *a.type.shape[-2:]))
    return Dot(((len(batch) + 1,), (len(batch),)), (dims, dims))(a, b)


@compiled_function
def dot(x: "ArrayLike", y: "ArrayLike") -> Any:
    """Compute numpy's dot: contract the last dim of `x` with the second last (or only) dim of `y`.

    If one operand is a scalar, multiply.
    """
    types = [type_of(x, "dot"), type_of(y, "dot")]
    if not all(type.ndim for type in types):
        return multiply(x, y)
    dtype, weak = promote_dtypes("dot", types)
    a, b = (astype_weak(as_operand(z, "dot"), dtype, weak) for z in (x, y))
    right = max(b.type.ndim - 2, 0)
    if a.type.shape[-1] != b.type.shape[right]:
        raise TypeError(
            f"dot: {a.type} and {b.type}: the last dim of the left, {a.type.shape[-1]}, must equal "
            f"dim {right} of the right, {b.type.shape[right]}"
        )
    return Dot(((a.type.ndim - 1,), (right,)))(a, b)


def _operator(function: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[["Array", Any], "Array"]:
    def operate(self: "Array", other: object) -> Any:
        if not is_array_like(other):
            if not hasattr(other, "__jax_array__"):
                return NotImplemented
            other = other.__jax_array__()
        return function(other, self) if swapped else function(self, other)

    return operate


def _comparison(direction: str) -> Callable[["Array", Any], "Array"]:
    return _operator(lambda x, y: compare(x, y, direction=direction))


class Array(NamespaceMethods, DeviceAttributes):
    """Base class of arrays and tracers: their operators and methods. A subclass has an attribute `type`.

    Example:
        >>> isinstance(jnp.arange(3), jax.Array), isinstance(np.arange(3), jax.Array)
        (True, False)
    """

    __module__ = "shardwise"  # the module from which users import it, for its repr
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100  # numpy's operators defer to ours

    @property
    def aval(self) -> ArrayType:
        """The type: shape, dtype, whether it is weak, and the axes over which it varies."""
        return self.type

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return int(self.type.dtype.itemsize)

    @property
    def flat(self) -> Any:
        """Not supported, because arrays are immutable."""
        raise NotImplementedError("arrays have no `flat`; use `x.flatten()`")

    def __len__(self) -> int:
        if not self.type.ndim:
            raise TypeError("a 0-d array has no length")
        return self.type.shape[0]

    def __getitem__(self, index: "Index") -> "Array":
        if has_dynamic_slices(index):
            window, index = read_dynamic_slices(self, index)
            return window[index]
        indexer, arrays = parse_index(index, self.type, check_bounds=config.check_static_indices)
        return self if indexer.is_identity else gather_by_index(self, *arrays, indexer=indexer)

    def __setitem__(self, index: object, values: object) -> None:
        raise TypeError("arrays are immutable: use `x = x.at[index].set(values)` instead of item assignment")

    def __contains__(self, x: "ArrayLike") -> bool:
        if self.type.ndim != 1 or type_of(x, "in").shape:
            raise ValueError(
                f"`in` finds a scalar in a 1-d array, not {type_of(x, 'in')} in {self.type}: use `(array == x).any()`"
            )
        return bool(sometrue(compare(self, x, direction="EQ")))

    def __iter__(self) -> "Iterator[Array]":
        if not self.type.ndim:
            raise TypeError("a 0-d array cannot be iterated over")
        return self._rows()

    def _rows(self) -> "Iterator[Array]":
        """Yield the rows along dim 0. Outside a frame, blocks of equal shape share their programs."""
        if len(self) <= _BLOCK:
            yield from (self[index] for index in range(len(self)))
        else:
            for start in range(0, len(self), _BLOCK):
                yield from self[start : start + _BLOCK]

    __add__ = _operator(add)
    __radd__ = _operator(add, swapped=True)
    __sub__ = _operator(subtract)
    __rsub__ = _operator(subtract, swapped=True)
    __mul__ = _operator(multiply)
    __rmul__ = _operator(multiply, swapped=True)
    __truediv__ = _operator(divide)
    __rtruediv__ = _operator(divide, swapped=True)
    __floordiv__ = _operator(floor_divide)
    __rfloordiv__ = _operator(floor_divide, swapped=True)
    __mod__ = _operator(remainder)
    __rmod__ = _operator(remainder, swapped=True)
    __pow__ = _operator(power)
    __rpow__ = _operator(power, swapped=True)
    __and__ = _operator(bitwise_and)
    __rand__ = _operator(bitwise_and, swapped=True)
    __or__ = _operator(bitwise_or)
    __ror__ = _operator(bitwise_or, swapped=True)
    __xor__ = _operator(bitwise_xor)
    __rxor__ = _operator(bitwise_xor, swapped=True)
    __lshift__ = _operator(left_shift)
    __rlshift__ = _operator(left_shift, swapped=True)
    __rshift__ = _operator(right_shift)
    __rrshift__ = _operator(right_shift, swapped=True)
    __matmul__ = _operator(matmul)
    __rmatmul__ = _operator(matmul, swapped=True)
    __lt__ = _comparison("LT")
    __le__ = _comparison("LE")
    __gt__ = _comparison("GT")
    __ge__ = _comparison("GE")

    def __eq__(self, other: object) -> "Array":  # type: ignore[override]
        return compare(self, other, direction="EQ") if is_array_like(other) else NotImplemented

    def __ne__(self, other: object) -> "Array":  # type: ignore[override]
        return compare(self, other, direction="NE") if is_array_like(other) else NotImplemented

    def __neg__(self) -> "Array":
        return negative(self)

    def __pos__(self) -> "Array":
        return self

    def __abs__(self) -> "Array":
        return absolute(self)

    def __invert__(self) -> "Array":
        return invert(self)

    def __divmod__(self, other: "ArrayLike") -> "tuple[Array, Array]":
        return floor_divide(self, other), remainder(self, other)

    def __rdivmod__(self, other: "ArrayLike") -> "tuple[Array, Array]":
        return floor_divide(other, self), remainder(other, self)

    def __round__(self, ndigits: int | None = None) -> "Array":
        rounded = around(self, decimals=ndigits or 0)
        return astype(rounded, dtype=default_dtype("int*")) if ndigits is None else rounded

    def view(self, dtype: DTypeLike | None = None, type: None = None) -> "Array":
        """Reinterpret the bytes of the last dim as another dtype."""
        if type is not None:
            raise NotImplementedError("view: the parameter `type` is not supported")
        return self if dtype is None else view_as(self, dtype=requested_dtype("view", dtype))

    def byteswap(self) -> "Array":
        """Reverse the bytes of each element."""
        return byteswap_elements(self)

"""Sequences of numbers, coordinate grids, and the objects that create them by indexing: `mgrid[0:3]`, `r_[1, 2:5]`."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, SupportsIndex, final, overload

import numpy as np

from shardwise.api.meshes.placement import device_put
from shardwise.api.transformations.vmap import vmap
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import arithmetic, methods
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, inexact_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.rounding import Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import move_dim
from shardwise.numpy.creation import arange, array
from shardwise.numpy.elementwise import log10, sign
from shardwise.numpy.joining import concatenate, stack
from shardwise.numpy.shapes import broadcast_arrays
from shardwise.typing import ArrayLike, DTypeLike, Placement, Shape

_INTERVAL = Family(
    {
        "num": "the number of elements.",
        "axis": "the position of the new dim in the result.",
    },
    raises=[
        "ValueError: if `num` is negative or `axis` is out of bounds.",
        "TypeError: if `start` or `stop` is not an array or a number, or if their shapes do not broadcast.",
    ],
)


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Placement = None,
) -> Array: ...


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Placement = None,
) -> Any: ...


@documented(_INTERVAL, returns="The numbers, or a tuple of the numbers and the step.")
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Placement = None,
) -> Any:
    """Return evenly spaced numbers over an interval.

    Args:
        start, stop: the ends of the interval: numbers, or arrays that broadcast.
        endpoint: whether `stop` is the last element; if not, the last element is one step before it.
        retstep: whether to return the step too.
        dtype: the dtype of the result; the promoted float or complex dtype if None. Integer results are rounded down.
        device: the device or sharding to move the result to.

    Example:
        >>> jnp.linspace(0, 1, 5)
        Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = _check_count("linspace", num)
    compute_dtype = _inexact_dtype("linspace", start, stop)
    out_dtype = compute_dtype if dtype is None else requested_dtype("linspace", dtype)
    rank = len(broadcast_shapes("linspace", type_of(start).shape, type_of(stop).shape))
    dim = canonical_axis("linspace", axis, rank + 1)
    endpoint = bool(endpoint)
    result = _linspace(
        start, stop, count=count, endpoint=endpoint, compute_dtype=compute_dtype, dtype=out_dtype, dim=dim
    )
    result = result if device is None else device_put(result, device)
    return (
        (result, _step(start, stop, count=count, endpoint=endpoint, compute_dtype=compute_dtype)) if retstep else result
    )


def _check_count(name: str, num: SupportsIndex) -> int:
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"{name}: num, the number of elements, must not be negative: {count}")
    return count


def _inexact_dtype(name: str, *ends: ArrayLike) -> Any:
    """Return the promoted dtype of the ends, or the default float dtype if it is not float or complex."""
    dtype, _ = promote_dtypes(name, [type_of(end, name) for end in ends])
    return inexact_dtype(dtype)


@compiled_function
def _linspace(
    start: ArrayLike,
    stop: ArrayLike,
    *,
    count: int,
    endpoint: bool,
    compute_dtype: np.dtype[Any],
    dtype: np.dtype[Any],
    dim: int,
) -> Any:
    ends = [astype_weak(as_operand(end), compute_dtype, False) for end in (start, stop)]
    sizes = broadcast_shapes("linspace", *(end.type.shape for end in ends))
    shape = (count, *sizes)
    low, high = (Broadcast(shape, tuple(range(1, len(shape))))(broadcast_to_shape(end, sizes)) for end in ends)
    steps = count - endpoint
    if steps < 1:
        result = low
    else:
        real_dtype = full_like(low, 0).real.type.dtype if compute_dtype.kind == "c" else compute_dtype
        index = Iota(shape, 0, np.dtype(np.int32))()
        weight = Convert(compute_dtype)(arithmetic.divide(Convert(real_dtype)(index), steps))
        result = low * (1 - weight) + high * weight
        if endpoint:  # the last element equals `stop` exactly
            result = Select()(Compare("EQ")(index, full(shape, steps, np.int32)), high, result)
    if is_integer(dtype) and compute_dtype.kind != "c":
        result = Floor()(result)
    return astype_weak(move_dim(result, 0, dim), dtype, False)


@compiled_function
def _step(start: ArrayLike, stop: ArrayLike, *, count: int, endpoint: bool, compute_dtype: np.dtype[Any]) -> Any:
    low, high = (astype_weak(as_operand(end), compute_dtype, False) for end in (start, stop))
    steps = count - endpoint
    return arithmetic.divide(arithmetic.subtract(high, low), steps if steps > 0 else float("nan"))


@documented(_INTERVAL, returns="The powers of `base`.")
def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Return numbers that are evenly spaced on a logarithmic scale.

    Args:
        start, stop: the exponents of the first and the last element: numbers, or arrays that broadcast.
        endpoint: whether `base**stop` is the last element.
        base: the base of the powers.
        dtype: the dtype of the result; the promoted float or complex dtype of the exponents if None.

    Example:
        >>> jnp.logspace(0, 2, 3)
        Array([  1.,  10., 100.], dtype=float32)
    """
    compute_dtype, out_dtype = _inexact_dtype("logspace", start, stop), requested_dtype("logspace", dtype)
    exponents = linspace(start, stop, num, endpoint, dtype=compute_dtype, axis=axis)
    return methods.astype(arithmetic.power(base, exponents), dtype=out_dtype or compute_dtype)


@documented(_INTERVAL, returns="The progression.")
def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Return a geometric progression: each number is a constant multiple of the one before.

    Args:
        start, stop: the first and the last number: numbers, or arrays that broadcast. They must not be 0, and real ones
            must have the same sign.
        endpoint: whether `stop` is the last element.
        dtype: the dtype of the result; the promoted float or complex dtype if None.

    Example:
        >>> jnp.geomspace(1, 8, 4).round(3)
        Array([1., 2., 4., 8.], dtype=float32)
    """
    count = _check_count("geomspace", num)
    compute_dtype, out_dtype = _inexact_dtype("geomspace", start, stop), requested_dtype("geomspace", dtype)
    first, last = (methods.astype(end, dtype=compute_dtype) for end in (start, stop))
    dim = canonical_axis("geomspace", axis, len(broadcast_shapes("geomspace", first.type.shape, last.type.shape)) + 1)
    first_sign = sign(first)  # dividing by it makes the logarithm of the first number real
    low, high = (log10(arithmetic.divide(end, first_sign)) for end in (first, last))
    inexact = arithmetic.multiply(logspace(low, high, count, endpoint), first_sign)
    end_indices = ((0, count - 1) if endpoint else (0,)) if count else ()
    result = _with_exact_ends(inexact, first, last, end_indices=end_indices, dim=dim)
    return methods.astype(result, dtype=out_dtype or compute_dtype)


@compiled_function
def _with_exact_ends(numbers: Array, *ends: Array, end_indices: tuple[int, ...], dim: int) -> Any:
    """Replace the first and the last number, which rounding may have changed, and move dim 0 to `dim`."""
    shape = numbers.type.shape
    index = Iota(shape, 0, np.dtype(np.int32))()
    for end_index, end in zip(end_indices, ends, strict=False):
        exact = broadcast_to_shape(astype_weak(as_operand(end), numbers.type.dtype, False), shape)
        numbers = Select()(Compare("EQ")(index, full(shape, end_index, np.int32)), exact, numbers)
    return move_dim(numbers, 0, dim)


def meshgrid(*xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Array]:
    """Return coordinate arrays of a grid from 1-D coordinate vectors.

    Args:
        *xi: the 1-D coordinates along each axis of the grid.
        copy: must be True: arrays never share memory.
        sparse: whether each array has size 1 in all dims but its own, instead of the shape of the grid.
        indexing: "xy" if the first vector runs along dim 1 and the second along dim 0, "ij" if vector i runs along
            dim i.

    Returns:
        A list with one array per vector.

    Raises:
        ValueError: if a vector is not 1-D, `indexing` is unknown, or `copy` is false.

    Example:
        >>> jnp.meshgrid(jnp.array([1, 2]), jnp.array([3, 4]))
        [Array([[1, 2],
               [1, 2]], dtype=int32), Array([[3, 3],
               [4, 4]], dtype=int32)]
    """
    types = [type_of(x, "meshgrid") for x in xi]
    if not copy:
        raise ValueError("meshgrid: copy=False is not supported, because arrays never share memory; leave `copy` out")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}")
    if any(type.ndim != 1 for type in types):
        raise ValueError(f"meshgrid: needs 1-D arrays of coordinates, not {', '.join(map(str, types))}")
    dims = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        dims[:2] = [1, 0]
    rows = [
        methods.reshape(x, shape=tuple(-1 if d == dim else 1 for d in range(len(xi))))
        for x, dim in zip(xi, dims, strict=True)
    ]
    return rows if sparse else broadcast_arrays(*rows)


@overload
def indices(dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: Literal[False] = False) -> Array: ...


@overload
def indices(dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: bool = False) -> Any: ...


def indices(dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: bool = False) -> Any:
    """Return the indices of all elements of an array of a given shape.

    Args:
        dimensions: the shape.
        dtype: the dtype of the indices; the default integer dtype if None.
        sparse: whether to return one array per dim, with size 1 in all other dims.

    Returns:
        An array of shape `(len(dimensions), *dimensions)`, or a tuple of arrays if `sparse`.

    Raises:
        TypeError: if a size is not an integer.

    Example:
        >>> jnp.indices((2, 2))
        Array([[[0, 0],
                [1, 1]],
        <BLANKLINE>
               [[0, 1],
                [0, 1]]], dtype=int32)
    """
    out_dtype = default_dtype("int*") if dtype is None else requested_dtype("indices", dtype)
    sizes = tuple(map(operator.index, dimensions))
    rows = [arange(size, dtype=out_dtype) for size in sizes]
    if sparse:
        return tuple(meshgrid(*rows, sparse=True, indexing="ij"))
    return stack(meshgrid(*rows, indexing="ij")) if rows else full((0,), 0, out_dtype)


def fromfunction(function: Callable[..., Any], shape: Shape, *, dtype: DTypeLike = float, **kwargs: Any) -> Any:
    """Create an array by calling a function with the indices of each element.

    The function is traced once and vectorized with `vmap`.

    Args:
        function: a function of one scalar index per dim.
        shape: the shape, or the size of a 1-D array.
        dtype: the dtype of the indices.
        **kwargs: keyword arguments passed to `function`.

    Returns:
        The array of results; a pytree of arrays if `function` returns one.

    Raises:
        TypeError: if a size is not an integer.

    Example:
        >>> jnp.fromfunction(lambda i, j: i + 10 * j, (2, 3), dtype=int)
        Array([[ 0, 10, 20],
               [ 1, 11, 21]], dtype=int32)
    """
    sizes = (operator.index(shape),) if not isinstance(shape, Sequence) else tuple(map(operator.index, shape))

    def on_indices(*index: Array) -> Any:
        return function(*index, **kwargs)

    mapped: Callable[..., Any] = on_indices
    for dim in reversed(range(len(sizes))):
        mapped = vmap(mapped, in_axes=tuple(0 if d == dim else None for d in range(len(sizes))))
    return mapped(*(arange(size, dtype=dtype) for size in sizes))


def _expand_slice(name: str, part: slice) -> Any:
    """Return the numbers of a slice. An imaginary step is the number of points, as in `linspace`."""
    low, high, step = 0 if part.start is None else part.start, part.stop, 1 if part.step is None else part.step
    if high is None:
        raise ValueError(f"{name}: a slice needs a stop: {part}")
    if isinstance(step, complex):
        return linspace(low, high, int(abs(step)))
    return arange(low, high, step)


@final
class _Grid:
    """The class of `mgrid` and `ogrid`."""

    def __init__(self, name: str, sparse: bool, text: str) -> None:
        self.name, self.sparse, self.__doc__ = name, sparse, text

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Any:
        if isinstance(key, slice):
            return _expand_slice(self.name, key)
        rows = [_expand_slice(self.name, part) for part in key]
        dtype = promote_dtypes(self.name, [row.type for row in rows])[0]
        arrays = meshgrid(*(methods.astype(row, dtype=dtype) for row in rows), sparse=self.sparse, indexing="ij")
        return arrays if self.sparse else stack(arrays)

    def __repr__(self) -> str:
        return f"shardwise.numpy.{self.name}"


mgrid = _Grid(
    "mgrid",
    False,
    "`mgrid[0:2, 0:3]`: dense coordinates of a grid, stacked. An imaginary step `nj` means n points.",
)
ogrid = _Grid(
    "ogrid",
    True,
    "`ogrid[0:2, 0:3]`: open coordinates of a grid, one array per dim. An imaginary step `nj` means n points.",
)


@final
class _Concatenator:
    """The class of `r_` and `c_`.

    A string before the parts is a directive: 'r', 'c', or "axis,rank,first". The parts are concatenated along `axis`,
    each with at least `rank` dims, of which its own dims start at position `first`.
    """

    def __init__(self, name: str, axis: int, rank: int, first: int, text: str) -> None:
        self.name, self.axis, self.rank, self.first, self.__doc__ = name, axis, rank, first, text

    def __getitem__(self, key: Any) -> Array:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, rank, first, is_column = self.axis, self.rank, self.first, False
        if parts and isinstance(parts[0], str):
            directive = parts.pop(0)
            if directive in ("r", "c"):
                rank, is_column = 2, directive == "c"
            else:
                axis, rank, first = self._parse(directive)
        if not parts:
            raise IndexError(f"{self.name}: needs at least one number, slice or array")
        arrays = [self._expand_rank(part, rank, first) for part in parts]
        result = concatenate(arrays, axis)
        is_column = is_column and all(np.ndim(part) < 2 for part in parts if not isinstance(part, slice))
        return result.T if is_column else result

    def _parse(self, directive: str) -> tuple[int, int, int]:
        try:
            numbers = [int(word) for word in directive.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ValueError(
                f"{self.name}: the directive must be 'r', 'c' or up to three integers separated by commas, "
                f"not {directive!r}"
            )
        axis, rank, first = [*numbers, *(self.axis, self.rank, self.first)[len(numbers) :]]
        return axis, rank, first

    def _expand_rank(self, part: Any, rank: int, first: int) -> Any:
        """Return a part as an array, with dims of size 1 added up to `rank`."""
        x = _expand_slice(self.name, part) if isinstance(part, slice) else array(part, copy=False)
        missing = rank - x.type.ndim
        if missing <= 0:
            return x
        before = missing if first == -1 else first if first >= 0 else missing + first + 1
        return methods.reshape(x, shape=(1,) * before + x.type.shape + (1,) * (missing - before))

    def __repr__(self) -> str:
        return f"shardwise.numpy.{self.name}"


r_ = _Concatenator("r_", 0, 1, -1, "`r_[1, 2:5, x]`: concatenate numbers, slices and arrays along dim 0.")
c_ = _Concatenator("c_", -1, 2, 0, "`c_[1:3, x]`: stack numbers, slices and 1-D arrays as the columns of a matrix.")

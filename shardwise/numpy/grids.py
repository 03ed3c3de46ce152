"""Numbers in steps, grids of them, and the objects that make such by indexing: `mgrid[0:3]`, `r_[1, 2:5]`."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.api.placement import device_put
from shardwise.api.vectorize import vmap
from shardwise.compiler.ir.types import is_inexact, is_integer
from shardwise.compiler.ops import methods, numeric
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Mul, Select, Sub, like
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype, meet
from shardwise.compiler.ops.rounding import Floor
from shardwise.compiler.ops.shape import Broadcast, Iota, full, move_dim
from shardwise.numpy.creation import arange, array
from shardwise.numpy.elementwise import log10, sign
from shardwise.numpy.joining import concatenate, stack
from shardwise.numpy.shapes import broadcast_arrays


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers at equal distances from `start` to `stop`, along a new dim `axis`.

    Without `endpoint` the last stops one step before `stop`. With `retstep` the step comes too. Integers are rounded
    down.

    >>> jnp.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = _count("linspace", num)
    kind = _between("linspace", start, stop)
    wanted = kind if dtype is None else canonical_dtype(dtype)
    rank = len(broadcast_shapes("linspace", type_of(start).shape, type_of(stop).shape))
    dim = dim_of("linspace", axis, rank + 1)
    found = _line(start, stop, count=count, closed=bool(endpoint), kind=kind, dtype=wanted, dim=dim)
    found = found if device is None else device_put(found, device)
    return (found, _step(start, stop, count=count, closed=bool(endpoint), kind=kind)) if retstep else found


def _count(name: str, num: Any) -> int:
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"{name}: the count of numbers cannot be negative: {count}")
    return count


def _between(name: str, *ends: Any) -> Any:
    """What numbers between these are computed in: floats, unless they are complex."""
    dtype, _ = meet(name, [type_of(end, name) for end in ends])
    return dtype if is_inexact(dtype) else default_dtype("float*")


@composed
def _line(start: Any, stop: Any, *, count: int, closed: bool, kind: Any, dtype: Any, dim: int) -> Any:
    ends = [astype_weak(as_operand(end), kind, False) for end in (start, stop)]
    sizes = broadcast_shapes("linspace", *(end.type.shape for end in ends))
    shape = (count, *sizes)
    low, high = (Broadcast(shape, tuple(range(1, len(shape))))(stretch(end, sizes)) for end in ends)
    steps = count - closed
    if steps < 1:
        found = low
    else:
        real = like(low, 0).real.type.dtype if kind.kind == "c" else kind
        number = Iota(shape, 0, np.dtype(np.int32))()
        share = Convert(kind)(numeric.divide(Convert(real)(number), steps))
        found = Add()(Mul()(low, Sub()(like(share, 1), share)), Mul()(high, share))
        if closed:  # to the bit
            found = Select()(Compare("EQ")(number, full(shape, steps, np.int32)), high, found)
    if is_integer(dtype) and kind.kind != "c":
        found = Floor()(found)
    return astype_weak(move_dim(found, 0, dim), dtype, False)


@composed
def _step(start: Any, stop: Any, *, count: int, closed: bool, kind: Any) -> Any:
    low, high = (astype_weak(as_operand(end), kind, False) for end in (start, stop))
    steps = count - closed
    return numeric.divide(numeric.subtract(high, low), steps if steps > 0 else float("nan"))


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """The powers of `base` whose exponents lie at equal distances from `start` to `stop`.

    >>> jnp.logspace(0, 2, 3)
    Array([  1.,  10., 100.], dtype=float32)
    """
    kind = _between("logspace", start, stop)
    exponents = linspace(start, stop, num, endpoint, dtype=kind, axis=axis)
    return methods.astype(numeric.power(base, exponents), dtype=kind if dtype is None else dtype)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """`num` numbers from `start` to `stop`, each the one before times the same.

    >>> jnp.geomspace(1, 8, 4).round(3)
    Array([1., 2., 4., 8.], dtype=float32)
    """
    count = _count("geomspace", num)
    kind = _between("geomspace", start, stop)
    first, last = (methods.astype(end, dtype=kind) for end in (start, stop))
    dim = dim_of("geomspace", axis, len(broadcast_shapes("geomspace", first.type.shape, last.type.shape)) + 1)
    turn = sign(first)  # the first is seen as positive: its logarithm is real
    low, high = (log10(numeric.divide(end, turn)) for end in (first, last))
    found = numeric.multiply(logspace(low, high, count, endpoint), turn)
    places = ((0, count - 1) if endpoint else (0,)) if count else ()
    ended = _with_ends(found, first, last, places=places, dim=dim)
    return methods.astype(ended, dtype=kind if dtype is None else dtype)


@composed
def _with_ends(found: Any, *ends: Any, places: tuple[int, ...], dim: int) -> Any:
    """The numbers, with their ends to the bit."""
    shape = found.type.shape
    number = Iota(shape, 0, np.dtype(np.int32))()
    for at, end in zip(places, ends, strict=False):
        there = stretch(astype_weak(as_operand(end), found.type.dtype, False), shape)
        found = Select()(Compare("EQ")(number, full(shape, at, np.int32)), there, found)
    return move_dim(found, 0, dim)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Rows of coordinates as a grid: for each row an array with its coordinate of every point.

    With `indexing` "xy" the first row runs along dim 1 and the second along dim 0, with "ij" each along its own.
    With `sparse` other dims have size 1.

    >>> jnp.meshgrid(jnp.array([1, 2]), jnp.array([3, 4]))
    [Array([[1, 2],
           [1, 2]], dtype=int32), Array([[3, 3],
           [4, 4]], dtype=int32)]
    """
    kinds = [type_of(x, "meshgrid") for x in xi]
    if not copy:
        raise ValueError("meshgrid: arrays never share memory: leave `copy` out")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is 'xy' or 'ij', not {indexing!r}")
    if any(kind.ndim != 1 for kind in kinds):
        raise ValueError(f"meshgrid: needs rows of coordinates, not {', '.join(map(str, kinds))}")
    dims = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        dims[:2] = [1, 0]
    rows = [
        methods.reshape(x, shape=tuple(-1 if d == dim else 1 for d in range(len(xi))))
        for x, dim in zip(xi, dims, strict=True)
    ]
    return rows if sparse else broadcast_arrays(*rows)


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """The index of every element of an array of this shape: one array for each dim, stacked, or `sparse` ones apart.

    >>> jnp.indices((2, 2))
    Array([[[0, 0],
            [1, 1]],
    <BLANKLINE>
           [[0, 1],
            [0, 1]]], dtype=int32)
    """
    wanted = default_dtype("int*") if dtype is None else canonical_dtype(dtype)
    sizes = tuple(map(operator.index, dimensions))
    rows = [arange(size, dtype=wanted) for size in sizes]
    if sparse:
        return tuple(meshgrid(*rows, sparse=True, indexing="ij"))
    return stack(meshgrid(*rows, indexing="ij")) if rows else full((0,), 0, wanted)


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """An array whose elements `function` makes of their indices; it is mapped over them.

    >>> jnp.fromfunction(lambda i, j: i + 10 * j, (2, 3), dtype=int)
    Array([[ 0, 10, 20],
           [ 1, 11, 21]], dtype=int32)
    """
    sizes = (operator.index(shape),) if not isinstance(shape, Sequence) else tuple(map(operator.index, shape))

    def mapped(*index: Any) -> Any:
        return function(*index, **kwargs)

    found: Callable[..., Any] = mapped
    for dim in reversed(range(len(sizes))):
        found = vmap(found, in_axes=tuple(0 if d == dim else None for d in range(len(sizes))))
    return found(*(arange(size, dtype=dtype) for size in sizes))


def _steps(name: str, part: slice) -> Any:
    """The numbers of a slice: by a step, or so many where that is imaginary."""
    low, high, step = 0 if part.start is None else part.start, part.stop, 1 if part.step is None else part.step
    if high is None:
        raise ValueError(f"{name}: a slice needs its end: {part}")
    if isinstance(step, complex):
        return linspace(low, high, int(abs(step)))
    return arange(low, high, step)


@final
class _Grid:
    """What `mgrid` and `ogrid` are."""

    def __init__(self, name: str, sparse: bool, text: str) -> None:
        self.name, self.sparse, self.__doc__ = name, sparse, text

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _steps(self.name, key)
        rows = [_steps(self.name, part) for part in key]
        dtype = meet(self.name, [row.type for row in rows])[0]
        found = meshgrid(*(methods.astype(row, dtype=dtype) for row in rows), sparse=self.sparse, indexing="ij")
        return found if self.sparse else stack(found)

    def __repr__(self) -> str:
        return f"shardwise.numpy.{self.name}"


mgrid = _Grid(
    "mgrid", False, "`mgrid[0:2, 0:3]`: the coordinates of the points of a grid, stacked. 3j: so many points."
)
ogrid = _Grid("ogrid", True, "`ogrid[0:2, 0:3]`: the coordinates of the points of a grid, each along its own dim.")


@final
class _Joiner:
    """What `r_` and `c_` are. A text before the parts says along which axis, how many dims each has at least, and at
    which of these its own begin.
    """

    def __init__(self, name: str, axis: int, rank: int, first: int, text: str) -> None:
        self.name, self.axis, self.rank, self.first, self.__doc__ = name, axis, rank, first, text

    def __getitem__(self, key: Any) -> Any:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, rank, first, column = self.axis, self.rank, self.first, False
        if parts and isinstance(parts[0], str):
            words = parts.pop(0)
            if words in ("r", "c"):
                rank, column = 2, words == "c"
            else:
                axis, rank, first = self._directive(words)
        if not parts:
            raise IndexError(f"{self.name}: needs at least one number, slice or array")
        arrays = [self._raised(part, rank, first) for part in parts]
        found = concatenate(arrays, axis)
        return found.T if column and all(np.ndim(part) < 2 for part in parts if not isinstance(part, slice)) else found

    def _directive(self, words: str) -> tuple[int, int, int]:
        try:
            numbers = [int(word) for word in words.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"{self.name}: a text is 'r', 'c' or up to three integers with commas, not {words!r}")
        axis, rank, first = [*numbers, *(self.axis, self.rank, self.first)[len(numbers) :]]
        return axis, rank, first

    def _raised(self, part: Any, rank: int, first: int) -> Any:
        x = _steps(self.name, part) if isinstance(part, slice) else array(part, copy=False)
        more = rank - x.type.ndim
        if more <= 0:
            return x
        before = more if first == -1 else first if first >= 0 else more + first + 1
        return methods.reshape(x, shape=(1,) * before + x.type.shape + (1,) * (more - before))

    def __repr__(self) -> str:
        return f"shardwise.numpy.{self.name}"


r_ = _Joiner("r_", 0, 1, -1, "`r_[1, 2:5, x]`: numbers, slices and arrays one after the other along dim 0.")
c_ = _Joiner("c_", -1, 2, 0, "`c_[1:3, x]`: numbers, slices and rows as the columns of a matrix.")

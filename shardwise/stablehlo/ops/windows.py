"""Reductions of windows, and the derivative of pooling."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise import lax
from shardwise.api.transformations.differentiate import vjp
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.monoids import constant_value, monoids
from shardwise.stablehlo.operation import Operation

_COMPUTATIONS = {"add": lax.add, "multiply": lax.mul, "maximum": lax.max, "minimum": lax.min}
_BOOLEAN = {"add": lax.bitwise_or, "multiply": lax.bitwise_and, "maximum": lax.bitwise_or, "minimum": lax.bitwise_and}
_CUMULATIVE = {"add": lax.cumsum, "multiply": lax.cumprod, "maximum": lax.cummax, "minimum": lax.cummin}
_STARTS = {"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


def _reduce_window(op: Operation, *operands: Array) -> Any:
    count = len(operands) // 2
    names = monoids(op.regions[0])
    if names is None or not all(name in _COMPUTATIONS for name in names):
        return _accumulate(op, operands[:count], operands[count:])
    pairs = zip(names, operands[:count], operands[count:], strict=True)
    return [_reduce_windows_of(op, name, x, init) for name, x, init in pairs]


def _reduce_windows_of(op: Operation, name: str, x: Array, init: Array) -> Any:
    windows, value = _Windows(op, x.ndim), constant_value(init)
    along = windows.cumulative_dim(x.shape)
    if along is not None and value == _STARTS[name] and x.dtype != np.bool_:
        dim, is_reverse = along
        return _CUMULATIVE[name](x, dim, reverse=is_reverse)
    computation = (_BOOLEAN if x.dtype == np.bool_ else _COMPUTATIONS)[name]
    return lax.reduce_window(
        x,
        init if value is None else value,
        computation,
        windows.sizes,
        windows.strides,
        windows.padding,
        windows.base_dilations,
        windows.window_dilations,
    )


def _accumulate(op: Operation, arrays: Sequence[Array], inits: Sequence[Array]) -> Any:
    """Apply a cumulative reduction by any function, such as that of `cumlogsumexp`."""
    shape, count = arrays[0].shape, len(arrays)
    along = _Windows(op, len(shape)).cumulative_dim(shape)
    if along is None:
        raise UnsupportedError("the region must be a sum, product, maximum or minimum, unless the op is cumulative")
    region = op.region()

    def combine(xs: Sequence[Array], ys: Sequence[Array]) -> list[Any]:
        flat = [lax.reshape(x, (x.size,)) for x in (*xs, *ys)]
        return [lax.reshape(z, xs[0].shape) for z in vmap(region)(*flat)]

    totals = lax.associative_scan(combine, list(arrays), reverse=along[1], axis=along[0])
    starts = [lax.broadcast_in_dim(init, shape, ()) for init in inits]
    return combine(starts, totals)[:count]


@final
class _Windows:
    """The windows of an op."""

    def __init__(self, op: Operation, ndim: int):
        self._ones = (1,) * ndim
        self.sizes = op.integers("window_dimensions", self._ones)
        self.strides = op.integers("window_strides", self._ones)
        self.base_dilations = op.integers("base_dilations", self._ones)
        self.window_dilations = op.integers("window_dilations", self._ones)
        self.padding = op.padding(ndim)

    def cumulative_dim(self, shape: Sequence[int]) -> tuple[int, bool] | None:
        """Return the dim along which the windows are all elements up to each one, and whether from the end; or None."""
        along = [dim for dim, size in enumerate(self.sizes) if size != 1 or self.padding[dim] != (0, 0)]
        if not self.strides == self.base_dilations == self.window_dilations == self._ones or len(along) != 1:
            return None
        (dim,) = along
        before = self.sizes[dim] - 1
        if self.sizes[dim] != shape[dim] or self.padding[dim] not in ((before, 0), (0, before)):
            return None
        return dim, self.padding[dim] == (0, before)


def _select_and_scatter(op: Operation, x: Array, source: Array, init: Array) -> Any:
    """Apply the transpose of a maximum or minimum over windows: the form in which modules have its derivative."""
    select, scatter = op.regions
    direction = _comparison_direction(op, select)
    if direction not in ("GE", "LE") or monoids(scatter) != ["add"]:
        raise UnsupportedError("the regions must select by GE or LE, and add")
    computation, start = (lax.max, -np.inf) if direction == "GE" else (lax.min, np.inf)
    if x.dtype.kind != "f":
        raise UnsupportedError(f"only floats are supported, not {x.dtype}")
    windows, lowest = _Windows(op, x.ndim), x.dtype.type(start)

    def pool(x: Array) -> Any:
        return lax.reduce_window(x, lowest, computation, windows.sizes, windows.strides, windows.padding)

    _, transpose = vjp(pool, x)
    (scattered,) = transpose(source)
    return lax.add(scattered, lax.broadcast_in_dim(init, x.shape, ())) if constant_value(init) != 0 else scattered


def _comparison_direction(op: Operation, block: Any) -> str:
    """Return the direction of a region that compares its two arguments; empty for other regions."""
    comparison = block.operations[0].operation
    is_comparison = (
        comparison.name == "stablehlo.compare"
        and list(comparison.operands) == list(block.arguments)
        and list(block.operations[1].operation.operands) == list(comparison.results)
    )
    return op.inner(comparison).enum("comparison_direction") if is_comparison else ""


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}

"""Reductions of windows, and the derivative of pooling."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.api.transformations.differentiate import vjp
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
        raise UnsupportedError("the region must be a sum, product, maximum or minimum of its arguments")
    pairs = zip(names, operands[:count], operands[count:], strict=True)
    return [_reduce_windows_of(op, name, x, init) for name, x, init in pairs]


def _reduce_windows_of(op: Operation, name: str, x: Array, init: Array) -> Any:
    ones = (1,) * x.ndim
    window, strides = op.integers("window_dimensions"), op.integers("window_strides", ones)
    base, dilation = op.integers("base_dilations", ones), op.integers("window_dilations", ones)
    padding = op.table("padding") or [(0, 0)] * x.ndim
    value = constant_value(init)
    if value is not None and value == _STARTS[name] and strides == base == dilation == ones and x.dtype != np.bool_:
        along = [dim for dim, size in enumerate(window) if size != 1 or padding[dim] != (0, 0)]
        if len(along) == 1 and window[along[0]] == x.shape[along[0]]:
            before = window[along[0]] - 1
            if padding[along[0]] in ((before, 0), (0, before)):
                return _CUMULATIVE[name](x, along[0], reverse=padding[along[0]] == (0, before))
    computation = (_BOOLEAN if x.dtype == np.bool_ else _COMPUTATIONS)[name]
    return lax.reduce_window(x, init if value is None else value, computation, window, strides, padding, base, dilation)


def _select_and_scatter(op: Operation, x: Array, source: Array, init: Array) -> Any:
    """Apply the transpose of a maximum or minimum over windows: the form in which modules have its derivative."""
    select, scatter = op.regions
    comparison = select.operations[0].operation
    direction = Operation(comparison, op.module, op.source, op.evaluate).enum("comparison_direction") if (
        comparison.name == "stablehlo.compare"
        and list(comparison.operands) == list(select.arguments)
        and list(select.operations[1].operation.operands) == list(comparison.results)
    ) else ""
    if direction not in ("GE", "LE") or monoids(scatter) != ["add"]:
        raise UnsupportedError("the regions must select by GE or LE, and add")
    computation, start = (lax.max, -np.inf) if direction == "GE" else (lax.min, np.inf)
    if x.dtype.kind != "f":
        raise UnsupportedError(f"only floats are supported, not {x.dtype}")
    window, strides = op.integers("window_dimensions", (1,) * x.ndim), op.integers("window_strides", (1,) * x.ndim)
    padding = op.table("padding") or [(0, 0)] * x.ndim
    _, transpose = vjp(lambda x: lax.reduce_window(x, x.dtype.type(start), computation, window, strides, padding), x)
    (scattered,) = transpose(source)
    return lax.add(scattered, lax.broadcast_in_dim(init, x.shape, ())) if constant_value(init) != 0 else scattered


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}

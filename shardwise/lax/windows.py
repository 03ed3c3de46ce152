"""Reductions of windows: close to the op of `reduce_window.py`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reduce_window import KINDS, ReduceWindow
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.trace.build import build
from shardwise.lax.padding import integers, padding_pairs

_PAIRS: dict[Reduction, Op] = {SUM: Add(), PROD: Mul(), MAX: Max(), MIN: Min()}
_REDUCTIONS: dict[type[Op], Reduction] = {type(op): reduction for reduction, op in _PAIRS.items()}
_LOGICAL: dict[type[Op], Reduction] = {Add: MAX, Or: MAX, Max: MAX, Mul: MIN, And: MIN, Min: MIN}


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """What `computation` (a sum, product, maximum or minimum of two scalars) makes of each window and `init_value`.

    Windows have `window_dimensions` elements, `window_dilation` apart, and lie `window_strides` apart. `padding`: for
    each dim how much comes before and after, or "SAME", "SAME_LOWER" or "VALID"; none of it counts.

    >>> lax.reduce_window(jnp.arange(5), 0, lax.add, (2,))
    Array([1, 3, 5, 7], dtype=int32)
    """
    name = "reduce_window"
    x = type_of(operand, name)
    window = integers(name, "window_dimensions", window_dimensions, x.ndim)
    strides, base, dilation = (
        (1,) * x.ndim if given is None else integers(name, what, given, x.ndim)
        for what, given in (
            ("window_strides", window_strides),
            ("base_dilation", base_dilation),
            ("window_dilation", window_dilation),
        )
    )
    pads = padding_pairs(name, padding, x.shape, window, strides, dilation)
    low, high = (tuple(pair[i] for pair in pads) for i in range(2))
    op = ReduceWindow(_reduction_of(computation, x.dtype), window, strides, low, high, base, dilation)
    start = type_of(init_value, name)
    if start.shape or promote_dtypes(name, (x, start))[0] != x.dtype:
        raise TypeError(f"{name}: init_value must be a scalar that {x} can hold, not {start}")
    if _is_neutral(init_value, op.start(x.dtype), x.dtype):
        return op(as_operand(operand, name))
    return _from(operand, init_value, op=op)


@compiled_function
def _from(operand: Any, start: Any, *, op: ReduceWindow) -> Any:
    """Windows with `start` in each."""
    found = op(as_operand(operand))
    first = astype_weak(as_operand(start), found.type.dtype, found.type.weak)
    return _PAIRS[op.reduction](Broadcast(found.type.shape, ())(first), found)


def _is_neutral(start: Any, neutral: Any, dtype: DType) -> bool:
    """Whether a number that is known now changes nothing."""
    return isinstance(start, (*PYTHON_SCALARS, np.generic, np.ndarray)) and bool(
        np.asarray(start).astype(dtype) == np.asarray(neutral).astype(dtype)
    )


def _reduction_of(computation: Callable[[Any, Any], Any], dtype: DType) -> Reduction:
    """Return the reduction that a function of two scalars computes."""
    scalar = ArrayType((), dtype)
    program, captured = build(lambda x, y: [computation(x, y)], [scalar, scalar], "computation")
    equations = program.equations
    if len(equations) == 1 and not captured and program.outputs == tuple(equations[0].outputs):
        kinds = _LOGICAL if dtype == np.bool_ else _REDUCTIONS
        reduction = kinds.get(type(equations[0].op))
        if reduction is not None and sorted(map(program.inputs.index, equations[0].inputs)) == [0, 1]:
            return reduction
    name = getattr(computation, "__name__", computation)
    raise NotImplementedError(
        f"reduce_window: {name!r} is not the {', '.join(map(str, KINDS))} of two scalars, which are all that windows "
        "are reduced by; see lax.add, lax.mul, lax.max and lax.min"
    )

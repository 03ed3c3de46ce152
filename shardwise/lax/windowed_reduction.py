"""`reduce_window`: reductions over sliding windows."""

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
from shardwise.compiler.ops.reduce.reduce_window import ACCEPTED_DTYPES, ReduceWindow
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.trace.build import build
from shardwise.lax.padding import integers, padding_pairs

_BINARY_OPS: dict[Reduction, Op] = {SUM: Add(), PROD: Mul(), MAX: Max(), MIN: Min()}
_REDUCTIONS: dict[type[Op], Reduction] = {type(op): reduction for reduction, op in _BINARY_OPS.items()}
_LOGICAL_REDUCTIONS: dict[type[Op], Reduction] = {Add: MAX, Or: MAX, Max: MAX, Mul: MIN, And: MIN, Min: MIN}


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
    """Reduce each window of an array to one element.

    Args:
        operand: an array.
        init_value: the initial value of each reduction, a scalar.
        computation: a binary function of scalars: `lax.add`, `lax.mul`, `lax.max`, `lax.min`, or an equivalent.
        window_dimensions: the window size along each dim.
        window_strides: the stride of the window along each dim. None means 1.
        padding: the padding (low, high) of each dim, or "SAME", "SAME_LOWER" or "VALID". Padding does not affect the
            results.
        base_dilation: the dilation of the operand along each dim. None means 1.
        window_dilation: the dilation of the window along each dim. None means 1.

    Returns:
        An array with one element for each window.

    Raises:
        NotImplementedError: if `computation` is not a sum, product, maximum or minimum of its arguments.
        TypeError: if `init_value` is not a scalar that the dtype can hold, or a window size, stride or dilation is less
            than 1.
        ValueError: if the numbers do not agree with the rank, or the padding name is unknown.

    Example:
        >>> lax.reduce_window(jnp.arange(5), 0, lax.add, (2,))
        Array([1, 3, 5, 7], dtype=int32)
    """
    name = "reduce_window"
    x = type_of(operand, name)
    window = integers(name, "window_dimensions", window_dimensions, x.ndim)
    strides, base, dilation = (
        (1,) * x.ndim if values is None else integers(name, argument, values, x.ndim)
        for argument, values in (
            ("window_strides", window_strides),
            ("base_dilation", base_dilation),
            ("window_dilation", window_dilation),
        )
    )
    pads = padding_pairs(name, padding, x.shape, window, strides, dilation)
    low, high = (tuple(pair[i] for pair in pads) for i in range(2))
    op = ReduceWindow(_reduction_of(computation, x.dtype), window, strides, low, high, base, dilation)
    init = type_of(init_value, name)
    if init.shape or promote_dtypes(name, (x, init))[0] != x.dtype:
        raise TypeError(f"{name}: init_value must be a scalar that {x} can hold, not {init}")
    if _is_neutral(init_value, op.neutral(x.dtype), x.dtype):
        return op(as_operand(operand, name))
    return _reduce_from(operand, init_value, op=op)


@compiled_function
def _reduce_from(operand: Any, init: Any, *, op: ReduceWindow) -> Any:
    """Reduce windows with a non-neutral initial value."""
    reduced = op(as_operand(operand))
    init = astype_weak(as_operand(init), reduced.type.dtype, reduced.type.weak)
    return _BINARY_OPS[op.reduction](Broadcast(reduced.type.shape, ())(init), reduced)


def _is_neutral(init: Any, neutral: Any, dtype: DType) -> bool:
    """Whether a concrete initial value is the neutral element of the reduction."""
    return isinstance(init, (*PYTHON_SCALARS, np.generic, np.ndarray)) and bool(
        np.asarray(init).astype(dtype) == np.asarray(neutral).astype(dtype)
    )


def _reduction_of(computation: Callable[[Any, Any], Any], dtype: DType) -> Reduction:
    """Return the reduction that a binary function of scalars computes."""
    scalar = ArrayType((), dtype)
    program, captured = build(lambda x, y: [computation(x, y)], [scalar, scalar], "computation")
    equations = program.equations
    if len(equations) == 1 and not captured and program.outputs == tuple(equations[0].outputs):
        reductions = _LOGICAL_REDUCTIONS if dtype == np.bool_ else _REDUCTIONS
        reduction = reductions.get(type(equations[0].op))
        if reduction is not None and sorted(map(program.inputs.index, equations[0].inputs)) == [0, 1]:
            return reduction
    raise NotImplementedError(
        f"reduce_window: the computation {getattr(computation, '__name__', computation)!r} is not supported: it must "
        f"be a {', '.join(map(str, ACCEPTED_DTYPES))} of two scalars, such as lax.add, lax.mul, lax.max or lax.min"
    )

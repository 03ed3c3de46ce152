"""`reduce_window`: reductions over sliding windows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.trace.build import build
from shardwise.lax.generic_reduce import Computation, init_scalar
from shardwise.lax.padding import integers, padding_pairs
from shardwise.lax.windowed_generic_reduction import reduce_windows

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
    """Reduce each window of an array, or of several arrays together, to one element.

    Args:
        operand: an array, or a pytree of arrays of the same shape.
        init_value: the initial value of each reduction, a scalar; for a pytree of arrays, a pytree of scalars.
        computation: an associative function of two scalars, or of two pytrees of scalars. `lax.add`, `lax.mul`,
            `lax.max`, `lax.min` and equivalents are one op; others are applied to slices of the arrays.
        window_dimensions: the window size along each dim.
        window_strides: the stride of the window along each dim. None means 1.
        padding: the padding (low, high) of each dim, or "SAME", "SAME_LOWER" or "VALID". Padding does not affect the
            results.
        base_dilation: the dilation of the operand along each dim. None means 1.
        window_dilation: the dilation of the window along each dim. None means 1.

    Returns:
        An array with one element for each window, or a pytree of such arrays.

    Raises:
        TypeError: if `init_value` is not a scalar that the dtype can hold, the shapes of the arrays differ, a window
            size, stride or dilation is less than 1, or `computation` returns other types than it is given.
        ValueError: if the numbers do not agree with the rank, the structures differ, or the padding name is unknown.

    Example:
        >>> lax.reduce_window(jnp.arange(5), 0, lax.add, (2,))
        Array([1, 3, 5, 7], dtype=int32)
    """
    name = "reduce_window"
    leaves, structure = tree.flatten(operand)
    if tree.structure(init_value) != structure:
        raise ValueError(f"{name}: init_value must have the structure of the operand, {structure}")
    types = [type_of(leaf, name) for leaf in leaves]
    if len({type.shape for type in types}) != 1:
        raise TypeError(
            f"{name}: operands must be one or more arrays of the same shape, not {', '.join(map(str, types)) or 'none'}"
        )
    x = types[0]
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
    reduction = _reduction_of(computation, x.dtype) if leaves[0] is operand else None
    op = ReduceWindow(reduction or SUM, window, strides, low, high, base, dilation)
    if reduction is None:
        arrays = [as_operand(leaf, name) for leaf in leaves]
        inits = [init_scalar(name, *pair) for pair in zip(tree.leaves(init_value), arrays, strict=True)]
        combine = Computation(name, structure, computation, arrays)
        return structure.unflatten(reduce_windows(combine, arrays, inits, op))
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


def _reduction_of(computation: Callable[[Any, Any], Any], dtype: DType) -> Reduction | None:
    """Return the reduction that a binary function of scalars computes, or None if there is no op for it."""
    scalar = ArrayType((), dtype)
    program, captured = build(lambda x, y: [computation(x, y)], [scalar, scalar], "computation")
    equations = program.equations
    if len(equations) == 1 and not captured and program.outputs == tuple(equations[0].outputs):
        reductions = _LOGICAL_REDUCTIONS if dtype == np.bool_ else _REDUCTIONS
        reduction = reductions.get(type(equations[0].op))
        if reduction is not None and sorted(map(program.inputs.index, equations[0].inputs)) == [0, 1]:
            return reduction
    return None

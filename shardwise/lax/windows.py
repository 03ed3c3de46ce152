"""Reductions of windows: close to the op of `reduce_window.py`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType, DType
from shardwise.compiler.ops.bitwise import And, Or
from shardwise.compiler.ops.elementwise import Add, Mul
from shardwise.compiler.ops.extremum import Max, Min
from shardwise.compiler.ops.operands import PYTHON_SCALARS, as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.promote import meet
from shardwise.compiler.ops.reduce_window import HOWS, ReduceWindow
from shardwise.compiler.ops.shape import Broadcast
from shardwise.compiler.trace.build import build
from shardwise.lax.padding import integers, padding_pairs

_PAIRS: dict[str, Op] = {"sum": Add(), "prod": Mul(), "max": Max(), "min": Min()}
_HOWS: dict[type[Op], str] = {type(op): how for how, op in _PAIRS.items()}
_LOGICAL: dict[type[Op], str] = {Add: "max", Or: "max", Max: "max", Mul: "min", And: "min", Min: "min"}


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
    op = ReduceWindow(_how(computation, x.dtype), window, strides, low, high, base, dilation)
    start = type_of(init_value, name)
    if start.shape or meet(name, (x, start))[0] != x.dtype:
        raise TypeError(f"{name}: init_value must be a scalar that {x} can hold, not {start}")
    if _is_neutral(init_value, op.start(x.dtype), x.dtype):
        return op(as_operand(operand, name))
    return _from(operand, init_value, op=op)


@composed
def _from(operand: Any, start: Any, *, op: ReduceWindow) -> Any:
    """Windows with `start` in each."""
    found = op(as_operand(operand))
    first = astype_weak(as_operand(start), found.type.dtype, found.type.weak)
    return _PAIRS[op.how](Broadcast(found.type.shape, ())(first), found)


def _is_neutral(start: Any, neutral: Any, dtype: DType) -> bool:
    """Whether a number that is known now changes nothing."""
    return isinstance(start, (*PYTHON_SCALARS, np.generic, np.ndarray)) and bool(
        np.asarray(start).astype(dtype) == np.asarray(neutral).astype(dtype)
    )


def _how(computation: Callable[[Any, Any], Any], dtype: DType) -> str:
    """The name of what a function does with two scalars."""
    scalar = ArrayType((), dtype)
    program, captured = build(lambda x, y: [computation(x, y)], [scalar, scalar], "computation")
    equations = program.equations
    if len(equations) == 1 and not captured and program.outputs == tuple(equations[0].outputs):
        kinds = _LOGICAL if dtype == np.bool_ else _HOWS
        how = kinds.get(type(equations[0].op))
        if how is not None and sorted(map(program.inputs.index, equations[0].inputs)) == [0, 1]:
            return how
    raise NotImplementedError(
        f"reduce_window: {getattr(computation, '__name__', computation)!r} is not the {', '.join(HOWS)} of two "
        "scalars, which are all that windows are reduced by; see lax.add, lax.mul, lax.max and lax.min"
    )

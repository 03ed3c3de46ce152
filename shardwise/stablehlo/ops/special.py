"""Special functions and broadcasting arithmetic of CHLO."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax, numpy
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops import elementwise
from shardwise.stablehlo.ops.elementwise import apply


def _broadcasting(name: str) -> Callable[..., Any]:
    """Return the rule of a CHLO op that broadcasts the operands of an op of StableHLO."""
    rule = elementwise.OPS[f"stablehlo.{name}"]

    def broadcast(op: Operation, x: Array, y: Array) -> Any:
        return rule(op, *_broadcast(op, x, y))

    return broadcast


def _broadcast(op: Operation, *operands: Array) -> list[Any]:
    """Broadcast operands to the shape of the result: those of lower rank at `broadcast_dimensions`, or at the end."""
    shape = op.out_type.shape
    stated = op.integers("broadcast_dimensions")

    def dims(x: Array) -> tuple[int, ...]:
        aligned = tuple(range(len(shape) - x.ndim, len(shape)))
        return stated if op.has("broadcast_dimensions") and len(stated) == x.ndim < len(shape) else aligned

    return [lax.broadcast_in_dim(x, shape, dims(x)) for x in operands]


def _top_k(op: Operation, x: Array) -> Any:
    return lax.top_k(x, op.integer("k"))


def _is_infinite(sign: str) -> Callable[..., Any]:
    functions = {"": numpy.isinf, "+": numpy.isposinf, "-": numpy.isneginf}
    return apply(functions[sign])


def _compare(op: Operation, x: Array, y: Array) -> Any:
    return Compare(str(op.attribute("comparison_direction")).rstrip(">").split()[-1])(*_broadcast(op, x, y))


def _select(op: Operation, condition: Array, x: Array, y: Array) -> Any:
    return Select()(*_broadcast(op, condition, x, y))


def _constant_like(op: Operation, x: Array) -> Any:
    value = np.array(op.attribute("value").value).astype(x.dtype)
    return Broadcast(x.shape, ())(lax.full((), value, x.dtype))


OPS: dict[str, Callable[..., Any]] = {
    **{
        f"chlo.{name}": apply(getattr(lax, ours))
        for name, ours in {
            "acos": "acos",
            "acosh": "acosh",
            "asin": "asin",
            "asinh": "asinh",
            "atan": "atan",
            "atanh": "atanh",
            "bessel_i1e": "bessel_i1e",
            "conj": "conj",
            "cosh": "cosh",
            "digamma": "digamma",
            "erf": "erf",
            "erf_inv": "erf_inv",
            "erfc": "erfc",
            "lgamma": "lgamma",
            "next_after": "nextafter",
            "polygamma": "polygamma",
            "sinh": "sinh",
            "square": "square",
            "tan": "tan",
            "zeta": "zeta",
        }.items()
    },
    **{
        f"chlo.broadcast_{name}": _broadcasting(name)
        for name in (
            *("add", "and", "atan2", "complex", "divide", "maximum", "minimum", "multiply", "or", "power", "remainder"),
            *("shift_left", "shift_right_arithmetic", "shift_right_logical", "subtract", "xor"),
        )
    },
    "chlo.broadcast_compare": _compare,
    "chlo.broadcast_select": _select,
    "chlo.constant_like": _constant_like,
    "chlo.is_inf": _is_infinite(""),
    "chlo.is_neg_inf": _is_infinite("-"),
    "chlo.is_pos_inf": _is_infinite("+"),
    "chlo.top_k": _top_k,
}

"""Elementwise ops of StableHLO."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.stablehlo.operation import Operation


def apply(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of an op without attributes."""
    return lambda op, *operands: function(*operands)


def _logical_for_booleans(name: str, logical: str) -> Callable[..., Any]:
    """Return the rule of an arithmetic op that is a logical op on booleans."""

    def rule(op: Operation, *operands: Array) -> Any:
        return primitive_named(logical if operands[0].dtype == np.bool_ else name).bind(*operands)

    return rule


def total_order_key(x: Array) -> Array:
    """Return signed integers that are ordered as floats by IEEE's total order: -NaN < -inf < -0 < +0 < inf < NaN."""
    integer = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, integer)
    magnitude = full(bits.shape, np.iinfo(integer).max, integer)
    return lax.select(lax.lt(bits, full(bits.shape, 0, integer)), lax.bitwise_xor(bits, magnitude), bits)


def _compare(op: Operation, x: Array, y: Array) -> Any:
    if op.enum("compare_type") == "TOTALORDER" and is_float(x.dtype):
        x, y = total_order_key(x), total_order_key(y)
    return Compare(op.enum("comparison_direction"))(x, y)


def _select(op: Operation, condition: Array, x: Array, y: Array) -> Any:
    return Select()(condition if condition.shape == x.shape else Broadcast(x.shape, ())(condition), x, y)


def _clamp(op: Operation, low: Array, x: Array, high: Array) -> Any:
    return lax.clamp(low, x, high)


def _convert(op: Operation, x: Array) -> Any:
    return x if x.dtype == op.out_type.dtype else Convert(op.out_type.dtype)(x)


def _reduce_precision(op: Operation, x: Array) -> Any:
    return lax.reduce_precision(x, op.integer("exponent_bits"), op.integer("mantissa_bits"))


OPS: dict[str, Callable[..., Any]] = {
    **{
        f"stablehlo.{name}": apply(primitive_named(ours).bind)
        for name, ours in {
            "abs": "abs",
            "and": "and",
            "atan2": "atan2",
            "cbrt": "cbrt",
            "ceil": "ceil",
            "complex": "complex",
            "cosine": "cos",
            "count_leading_zeros": "clz",
            "divide": "div",
            "exponential": "exp",
            "exponential_minus_one": "expm1",
            "floor": "floor",
            "imag": "imag",
            "is_finite": "is_finite",
            "log": "log",
            "log_plus_one": "log1p",
            "logistic": "logistic",
            "negate": "neg",
            "not": "not",
            "or": "or",
            "popcnt": "population_count",
            "power": "pow",
            "real": "real",
            "remainder": "rem",
            "rsqrt": "rsqrt",
            "shift_left": "shift_left",
            "shift_right_arithmetic": "shift_right_arithmetic",
            "shift_right_logical": "shift_right_logical",
            "sign": "sign",
            "sine": "sin",
            "sqrt": "sqrt",
            "subtract": "sub",
            "tan": "tan",
            "tanh": "tanh",
            "xor": "xor",
        }.items()
    },
    "stablehlo.add": _logical_for_booleans("add", "or"),
    "stablehlo.bitcast_convert": lambda op, x: lax.bitcast_convert_type(x, op.out_type.dtype),
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.convert": _convert,
    "stablehlo.maximum": _logical_for_booleans("max", "or"),
    "stablehlo.minimum": _logical_for_booleans("min", "and"),
    "stablehlo.multiply": _logical_for_booleans("mul", "and"),
    "stablehlo.reduce_precision": _reduce_precision,
    "stablehlo.round_nearest_afz": lambda op, x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "stablehlo.round_nearest_even": lambda op, x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "stablehlo.select": _select,
}

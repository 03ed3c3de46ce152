"""Elementwise primitives and products."""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.compiler.arrays.methods import Array


def _mul(x: Array, y: Array, *, out_dtype: Any = None) -> Array:
    product = primitive_named("mul").bind(x, y)
    return product if out_dtype is None else lax.convert_element_type(product, out_dtype)


def _dot_general(
    x: Array, y: Array, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any, out_sharding: Any
) -> Array:
    return lax.dot_general(x, y, dimension_numbers, precision, preferred_element_type)


def _scaled_dot(
    *operands: Array, dimension_numbers: Any, preferred_element_type: Any, **_: Any
) -> Array:
    lhs, rhs, lhs_scale, rhs_scale = operands
    return lax.scaled_dot(
        lhs,
        rhs,
        lhs_scale=lhs_scale,
        rhs_scale=rhs_scale,
        dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type,
    )


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add_any": primitive_named("add").bind,
    "bitcast_convert_type": lax.bitcast_convert_type,
    "conj": lambda x, *, input_dtype: lax.conj(x),
    "conv_general_dilated": lax.conv_general_dilated,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "dot_general": _dot_general,
    "mul": _mul,
    "pow": lax.pow,
    "ragged_dot_general": lax.ragged_dot_general,
    "reduce_precision": lax.reduce_precision,
    "regularized_incomplete_beta": lax.betainc,
    "round": lax.round,
    "scaled_dot": _scaled_dot,
    "select_n": lax.select_n,
}

"""Elementwise primitives and products."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.compiler.arrays.methods import Array


def _mul(x: Array, y: Array, *, out_dtype: Any = None) -> Array:
    product = primitive_named("mul").bind(x, y)
    return product if out_dtype is None else lax.convert_element_type(product, out_dtype)


def _conj(x: Array, *, input_dtype: object) -> Array:
    return lax.conj(x)


def _dot_general(
    x: Array, y: Array, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any, out_sharding: Any
) -> Array:
    return lax.dot_general(x, y, dimension_numbers, precision, preferred_element_type)


def _scaled_dot(*operands: Array, dimension_numbers: Any, preferred_element_type: Any, **_: Any) -> Array:
    lhs, rhs, lhs_scale, rhs_scale = operands
    return lax.scaled_dot(
        lhs,
        rhs,
        lhs_scale=lhs_scale,
        rhs_scale=rhs_scale,
        dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type,
    )


def _in_total_order(compare: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a comparison of floats in IEEE's total order: by sign, then by the bits. -0 is less than 0."""

    def key(x: Array) -> Array:
        if not np.issubdtype(x.dtype, np.floating) and x.dtype.kind != "V":  # numpy's kind of bfloat16 is "V"
            return x
        bits = lax.bitcast_convert_type(x, np.dtype(f"int{8 * x.dtype.itemsize}"))
        largest = lax.full_like(bits, np.iinfo(bits.dtype).max)
        return lax.select(bits < 0, lax.bitwise_xor(bits, largest), bits)

    return lambda x, y: compare(key(x), key(y))


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add_any": primitive_named("add").bind,
    "conj": _conj,
    "conv_general_dilated": lax.conv_general_dilated,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "dot_general": _dot_general,
    "eq_to": _in_total_order(lax.eq),
    "le_to": _in_total_order(lax.le),
    "lt_to": _in_total_order(lax.lt),
    "mul": _mul,
    "pow": lax.pow,
    "ragged_dot_general": lax.ragged_dot_general,
    "reduce_precision": lax.reduce_precision,
    "regularized_incomplete_beta": lax.betainc,
    "round": lax.round,
    "scaled_dot": _scaled_dot,
    "select_n": lax.select_n,
}

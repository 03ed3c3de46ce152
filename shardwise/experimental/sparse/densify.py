"""todense: conversion of any sparse format to a dense array, which `sparsify` sees as a primitive."""

from collections.abc import Sequence
from typing import Any

from shardwise.api.jaxprs.primitive import (
    Primitive,
    instantiate_zeros,
    lowerings,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
)
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.trace.tracer import Tracer
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.typing import ArrayLike


def todense(arr: JAXSparse | ArrayLike) -> Array:
    """Convert a sparse array to a dense one; return a dense one unchanged.

    Inside of a function that `sparsify` transforms, it also converts arguments that are sparse outside.

    Args:
        arr: the array.

    Returns:
        The dense array.

    Raises:
        TypeError: if `arr` is not an array.

    Example:
        >>> jax.experimental.sparse.todense(jax.experimental.sparse.eye(2))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    if isinstance(arr, JAXSparse):
        return arr.todense()
    dense = as_operand(arr, "todense")
    return todense_p.bind(dense) if isinstance(dense, Tracer) else dense


# It does nothing to dense arrays; a rule of `sparsify` converts sparse ones.
todense_p = Primitive("todense")
todense_p.def_impl(lambda x: x)
todense_p.def_abstract_eval(lambda type: type)
lowerings[todense_p] = lambda x: x


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return todense_p.bind(*primals), todense_p.bind(instantiate_zeros(tangents[0]))


def _batch(operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int | None]:
    return todense_p.bind(*operands), dims[0]


primitive_jvps[todense_p] = _jvp
primitive_batchers[todense_p] = _batch
primitive_transposes[todense_p] = lambda cotangent, x: [cotangent]

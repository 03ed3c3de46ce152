"""Constants, and ops that move elements."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.stablehlo.elements import constant_elements
from shardwise.stablehlo.operation import Operation


def _constant(op: Operation) -> Any:
    type, elements = op.out_type, constant_elements(op.raw)
    first = elements if elements.shape == () or not elements.size else elements.flat[0]
    if first.tobytes() * elements.size == elements.tobytes() and elements.size:  # not `==`: -0 is no 0
        return full(type.shape, first, type.dtype)
    return as_operand(np.ascontiguousarray(elements))


def _broadcast_in_dim(op: Operation, x: Array) -> Any:
    dims = op.integers("broadcast_dimensions")
    order = sorted(range(x.ndim), key=dims.__getitem__)  # the dims of StableHLO may be in any order
    ordered = x if order == list(range(x.ndim)) else lax.transpose(x, order)
    return lax.broadcast_in_dim(ordered, op.out_type.shape, sorted(dims))


def _broadcast(op: Operation, x: Array) -> Any:
    shape = op.out_type.shape
    return Broadcast(shape, tuple(range(len(shape) - x.ndim, len(shape))))(x)


def _iota(op: Operation) -> Any:
    return Iota(op.out_type.shape, op.integer("iota_dimension"), op.out_type.dtype)()


def _pad(op: Operation, x: Array, value: Array) -> Any:
    low, high = op.integers("edge_padding_low"), op.integers("edge_padding_high")
    return lax.pad(x, value, list(zip(low, high, op.integers("interior_padding"), strict=True)))


def _slice(op: Operation, x: Array) -> Any:
    return lax.slice(x, op.integers("start_indices"), op.integers("limit_indices"), op.integers("strides"))


def _concatenate(op: Operation, *operands: Array) -> Any:
    return operands[0] if len(operands) == 1 else Concatenate(op.integer("dimension"))(*operands)


def _get_dimension_size(op: Operation, x: Array) -> Any:
    return full((), x.shape[op.integer("dimension")], np.dtype(np.int32))


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.broadcast": _broadcast,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _constant,
    "stablehlo.get_dimension_size": _get_dimension_size,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": lambda op, x: lax.reshape(x, op.out_type.shape),
    "stablehlo.reverse": lambda op, x: lax.rev(x, op.integers("dimensions")),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda op, x: lax.transpose(x, op.integers("permutation")),
}

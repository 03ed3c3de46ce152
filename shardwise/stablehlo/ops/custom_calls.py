"""Custom calls whose targets have a meaning for every compiler."""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops import lapack


def _custom_call(op: Operation, *operands: Array) -> Any:
    target = op.text("call_target_name")
    if target not in _TARGETS:
        raise UnsupportedError(
            f"the target {target!r} is not supported: it is code outside of the module. Compute this part outside of "
            "the module, or with ops of StableHLO."
        )
    return _TARGETS[target](op, *operands)


def _top_k(op: Operation, x: Array) -> Any:
    attributes = op.attribute("mhlo.attributes")
    if "largest" in attributes and not attributes["largest"].value:
        raise UnsupportedError("the smallest elements are not supported: negate the operand and the result")
    return lax.top_k(x, attributes["k"].value)


def _annotate_device_placement(op: Operation, x: Array) -> Any:
    kind = op.attribute("mhlo.frontend_attributes")["_xla_buffer_placement"].value
    return x if kind == "device" else InMemory(kind)(x)


_TARGETS: dict[str, Callable[..., Any]] = {
    **lapack.TARGETS,
    "Sharding": lambda op, x: x,  # its attribute states the sharding
    "annotate_device_placement": _annotate_device_placement,
    "mhlo.erf": lambda op, x: lax.erf(x),
    "mhlo.topk": _top_k,
}
OPS: dict[str, Callable[..., Any]] = {"stablehlo.custom_call": _custom_call}

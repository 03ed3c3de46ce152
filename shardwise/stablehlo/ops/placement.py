"""Shardings and memories: ops of Shardy."""

from collections.abc import Callable
from typing import Any

from shardwise.api.meshes.shard_map import shard_map
from shardwise.base._jaxlib import mlir_dialects
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.annotations import Pin
from shardwise.stablehlo.operation import Operation


def _sharding_constraint(op: Operation, x: Array) -> Any:
    return op.module.annotations.shardy_pin(op.attribute("sharding")).apply(x)


def _manual_computation(op: Operation, *operands: Array) -> Any:
    sdy = mlir_dialects["sdy"]
    axes = [op.module.annotations.axis(axis) for axis in sdy.ManualAxesAttr(op.attribute("manual_axes"))]
    ins, outs = (_pins(op, name) for name in ("in_shardings", "out_shardings"))
    meshes = {pin.mesh for pin in (*ins, *outs)}
    if len(meshes) != 1:
        raise UnsupportedError(f"a manual computation must have one mesh, not {len(meshes)}")
    region = op.region()
    mapped: Any = shard_map(
        lambda *shards: tuple(region(*shards)),
        mesh=meshes.pop(),
        in_specs=tuple(pin.spec(axes) for pin in ins),
        out_specs=tuple(pin.spec(axes) for pin in outs),
        axis_names=axes,
        check_vma=False,
    )
    return mapped(*operands)


def _pins(op: Operation, name: str) -> list[Pin]:
    shardings = mlir_dialects["sdy"].TensorShardingPerValueAttr(op.attribute(name)).shardings
    return [op.module.annotations.shardy_pin(sharding) for sharding in shardings]


OPS: dict[str, Callable[..., Any]] = {
    "sdy.manual_computation": _manual_computation,
    "sdy.propagation_barrier": lambda op, x: x,
    "sdy.reshard": _sharding_constraint,
    "sdy.sharding_constraint": _sharding_constraint,
}

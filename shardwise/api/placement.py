"""Where arrays live: make_mesh, device_put, with_sharding_constraint."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise._jaxlib import Device
from shardwise._jaxlib import block_until_ready as wait_for
from shardwise.api.execute import as_array, moved
from shardwise.api.jit import constrain
from shardwise.compiler.ops.operands import as_operand, type_of
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ShardingError
from shardwise.runtime.array import Array, place, signature
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.sharding import NamedSharding, Sharding, SingleDeviceSharding


def make_mesh(axis_shapes: Sequence[int], axis_names: Sequence[str], *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of these sizes and names over the first devices (or over `devices`)."""
    sizes = AbstractMesh(axis_shapes, axis_names).axis_sizes  # sizes and names that do not fit are an error here
    count = math.prod(sizes)
    found = list(all_devices() if devices is None else devices)
    if count > len(found):
        raise ShardingError(
            f"make_mesh{(sizes, tuple(axis_names))} needs {count} devices, and there are {len(found)}. "
            "More virtual CPU devices: config.update('num_cpu_devices', …) before the first use of a device."
        )
    grid = np.empty(count, object)
    grid[:] = found[:count]
    return Mesh(grid.reshape(sizes), tuple(axis_names))


def device_put(x: Any, device: Any = None) -> Any:
    """The arrays of a tree, moved to `device`: a Sharding, a device, a tree prefix of these, or None for any device."""
    leaves, structure = tree.flatten(x)
    given = _spread("device_put", "device", device, x)
    return structure.unflatten([_put(leaf, _sharding(where)) for leaf, where in zip(leaves, given, strict=True)])


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """The arrays of a tree, pinned to shardings (a tree prefix): the planner never overrules them."""
    leaves, structure = tree.flatten(x)
    out = []
    for leaf, where in zip(leaves, _spread("with_sharding_constraint", "shardings", shardings, x), strict=True):
        if not isinstance(where, Sharding):
            raise TypeError(
                f"with_sharding_constraint needs shardings, such as NamedSharding(mesh, spec), not {where!r}"
            )
        _check("with_sharding_constraint", leaf, where)
        out.append(constrain(as_operand(leaf), where))
    return structure.unflatten(out)


def _spread(name: str, parameter: str, given: Any, x: Any) -> list[Any]:
    def is_leaf(node: Any) -> bool:
        return node is None or isinstance(node, (Sharding, Device, PartitionSpec))

    try:
        return tree.broadcast_prefix(given, x, is_leaf)
    except tree.TreeMismatch as mismatch:
        where = tree.keystr(mismatch.difference.path)
        text = mismatch.difference.of_prefix(parameter + where, f"x{where}")
        raise ShardingError(f"{name}: `{parameter}` is no tree prefix of x.\n  {text}") from None


def _sharding(where: Any) -> Sharding | None:
    if where is None or isinstance(where, Sharding):
        return where
    if isinstance(where, Device):
        return SingleDeviceSharding(where)
    raise TypeError(f"device_put needs a Sharding or a device, not {where!r}")


def _check(name: str, leaf: Any, where: Sharding) -> None:
    kind = type_of(leaf, name)
    try:
        where.pin(kind.shape)
    except ShardingError as error:
        raise ShardingError(f"{name}: cannot lay out {kind}.\n  {error}") from None


def _put(leaf: Any, where: Sharding | None) -> Any:
    if where is None:
        return leaf if isinstance(leaf, Tracer) else as_array(leaf, "device_put")
    _check("device_put", leaf, where)
    if isinstance(leaf, Tracer):
        return constrain(leaf, where)
    if isinstance(where, NamedSharding) and any(entry is PartitionSpec.UNCONSTRAINED for entry in where.spec):
        raise ShardingError(f"device_put: {where.spec} leaves dims open, and only a planner can close them")
    if isinstance(leaf, Array):
        there = moved(leaf, where)
        return Array(there.buffers, signature(there.type, where, True))
    kind = type_of(leaf, "device_put")
    return place(np.asarray(leaf), kind, where, committed=True)


def device_get(x: Any) -> Any:
    """The arrays of a tree as numpy arrays on the host; other leaves as they are."""
    return tree.map(lambda leaf: leaf.numpy() if isinstance(leaf, Array) else leaf, x)


def block_until_ready(x: Any) -> Any:
    """`x`, once the elements of all its arrays are there."""
    wait_for([leaf.buffers for leaf in tree.leaves(x) if isinstance(leaf, Array)])
    return x

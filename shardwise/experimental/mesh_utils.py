"""Devices in the grid of a mesh, so that neighbours in the grid are close."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.shardings.mesh import grid_of
from shardwise.errors import ShardingError
from shardwise.runtime.client import devices as all_devices

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray[Any, Any]:
    """All devices (or `devices`) in a grid of this shape.

    CPU devices, and the GPUs of a host, are all as far from each other: they come in their order. The keywords are
    about devices in a torus, and change nothing here.

    >>> jax.experimental.mesh_utils.create_device_mesh((4, 2)).shape
    (4, 2)
    """
    return _grid("create_device_mesh", mesh_shape, list(all_devices() if devices is None else devices))


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray[Any, Any]:
    """A grid for groups of devices with fast links inside and slow ones between.

    `mesh_shape` is the grid of each group, `dcn_mesh_shape` the grid of groups; along each dim the result is as long as
    their product, the groups apart. A group is a slice where devices have a `slice_index`, else a process.

    >>> groups = [type("Device", (), {"slice_index": number // 4})() for number in range(8)]
    >>> jax.experimental.mesh_utils.create_hybrid_device_mesh((4, 1), (1, 2), groups).shape
    (4, 2)
    """
    if len(mesh_shape) != len(dcn_mesh_shape):
        raise ShardingError(
            f"create_hybrid_device_mesh: mesh_shape {tuple(mesh_shape)} and dcn_mesh_shape {tuple(dcn_mesh_shape)} "
            "need the same number of dims"
        )
    key = "process_index"
    found = list(all_devices() if devices is None else devices)
    if not process_is_granule and all(hasattr(device, "slice_index") for device in found):
        key = "slice_index"
    groups: dict[int, list[Any]] = {}
    for device in found:
        groups.setdefault(getattr(device, key), []).append(device)
    numbers = sorted(groups) if should_sort_granules_by_key else list(groups)
    if len(groups) != math.prod(dcn_mesh_shape):
        raise ShardingError(
            f"create_hybrid_device_mesh: dcn_mesh_shape {tuple(dcn_mesh_shape)} needs {math.prod(dcn_mesh_shape)} "
            f"groups of devices, and by {key} there are {len(groups)}"
        )
    grids = [_grid("create_hybrid_device_mesh", mesh_shape, groups[number]) for number in numbers]
    rank = len(mesh_shape)
    joined = np.stack(grids).reshape(*dcn_mesh_shape, *mesh_shape)
    side_by_side = joined.transpose([axis for dim in range(rank) for axis in (dim, rank + dim)])
    return side_by_side.reshape([slow * fast for slow, fast in zip(dcn_mesh_shape, mesh_shape, strict=True)])


def _grid(name: str, shape: Sequence[int], devices: list[Any]) -> np.ndarray[Any, Any]:
    if math.prod(shape) != len(devices):
        raise ShardingError(
            f"{name}: a grid of shape {tuple(shape)} needs {math.prod(shape)} devices, not {len(devices)}: "
            "pass as many as `devices`"
        )
    return grid_of(devices, tuple(shape))

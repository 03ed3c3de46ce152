"""Arrays of devices for meshes, ordered so that neighbours in the mesh have fast links."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.base.lazy import publish
from shardwise.compiler.shardings.mesh import device_grid
from shardwise.errors import ShardingError
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.torus_order import is_in_torus, torus_grid


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray[Any, Any]:
    """Arrange devices in an array of the shape of a mesh.

    CPU devices, and the GPUs of one host, are equally far from each other, so they keep their order. TPUs are arranged
    by their coordinates, so that neighbours in the mesh have links: each axis of the mesh is one or several axes of
    their torus.

    Args:
        mesh_shape: the shape of the mesh. The last axes get the best links.
        devices: the devices; by default all.
        contiguous_submeshes: whether the TPUs of each process must be a contiguous block of the array.
        allow_split_physical_axes: whether an axis of the mesh may be a part of an axis of the torus of TPUs.

    Returns:
        An object array of devices of shape `mesh_shape`.

    Raises:
        ShardingError: if the size of `mesh_shape` is not the number of devices, or if it does not fit the torus.

    Example:
        >>> jax.experimental.mesh_utils.create_device_mesh((4, 2)).shape
        (4, 2)
    """
    device_list = list(all_devices() if devices is None else devices)
    return _device_array("create_device_mesh", mesh_shape, device_list, contiguous_submeshes, allow_split_physical_axes)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray[Any, Any]:
    """Arrange granules of devices, with fast links within and slow links between them, in an array for a mesh.

    A granule is a slice if the devices have a `slice_index`, else a process. Along each dim, the size of the result is
    the product of the sizes in `mesh_shape` and `dcn_mesh_shape`, and the devices of a granule are contiguous.

    Args:
        mesh_shape: the mesh shape of each granule.
        dcn_mesh_shape: the shape of the array of granules, connected by the data-center network.
        devices: the devices; by default all.
        process_is_granule: whether a process is a granule even if the devices have a `slice_index`.
        should_sort_granules_by_key: whether granules are sorted by index, instead of in the order of their first
            devices.
        allow_split_physical_axes: as in `create_device_mesh`, within each granule.

    Returns:
        An object array of devices.

    Raises:
        ShardingError: if the two shapes have different ranks, or if a size does not match the number of granules or the
            number of devices in a granule.

    Example:
        >>> groups = [type("Device", (), {"slice_index": number // 4})() for number in range(8)]
        >>> jax.experimental.mesh_utils.create_hybrid_device_mesh((4, 1), (1, 2), groups).shape
        (4, 2)
    """
    if len(mesh_shape) != len(dcn_mesh_shape):
        raise ShardingError(
            f"create_hybrid_device_mesh: mesh_shape {tuple(mesh_shape)} and dcn_mesh_shape {tuple(dcn_mesh_shape)} "
            "must have the same number of dims"
        )
    key = "process_index"
    device_list = list(all_devices() if devices is None else devices)
    if not process_is_granule and all(hasattr(device, "slice_index") for device in device_list):
        key = "slice_index"
    granules: dict[int, list[Any]] = {}
    for device in device_list:
        granules.setdefault(getattr(device, key), []).append(device)
    indices = sorted(granules) if should_sort_granules_by_key else list(granules)
    if len(granules) != math.prod(dcn_mesh_shape):
        raise ShardingError(
            f"create_hybrid_device_mesh: dcn_mesh_shape {tuple(dcn_mesh_shape)} needs {math.prod(dcn_mesh_shape)} "
            f"granules of devices, but by {key} there are {len(granules)}"
        )
    meshes = [
        _device_array("create_hybrid_device_mesh", mesh_shape, granules[index], split_axes=allow_split_physical_axes)
        for index in indices
    ]
    rank = len(mesh_shape)
    stacked = np.stack(meshes).reshape(*dcn_mesh_shape, *mesh_shape)
    interleaved = stacked.transpose([axis for dim in range(rank) for axis in (dim, rank + dim)])
    return interleaved.reshape([slow * fast for slow, fast in zip(dcn_mesh_shape, mesh_shape, strict=True)])


def _device_array(
    name: str, shape: Sequence[int], devices: list[Any], contiguous_submeshes: bool = False, split_axes: bool = False
) -> np.ndarray[Any, Any]:
    if math.prod(shape) != len(devices):
        raise ShardingError(
            f"{name}: a mesh of shape {tuple(shape)} needs {math.prod(shape)} devices, not {len(devices)}: pass that "
            "many as `devices`"
        )
    if not is_in_torus(devices):
        return device_grid(devices, tuple(shape))
    return torus_grid(shape, devices, contiguous_submeshes=contiguous_submeshes, split_axes=split_axes)


publish(__name__)

"""torus_order: the order of TPUs in a mesh, by their coordinates in a torus of links.

A TPU has links to its neighbours along the axes of a torus only. A mesh axis is fast if its devices are one or several
whole axes of the torus, so that neighbours along it have a link. `device.coords` are the coordinates of a chip, and
`device.core_on_chip` is the core. The orders are those of JAX, so that programs which rely on them stay fast.

    torus 4×4×4, mesh (16, 4)     the mesh axis of size 4 is one axis of the torus, that of size 16 the other two
    torus 4×8, mesh (2, 16)       no axes of the torus have the product 16: with splitting, 16 = 8·2 and 2 is the rest
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

from shardwise.compiler.shardings.mesh import device_grid
from shardwise.errors import ShardingError

Grid = np.ndarray[Any, np.dtype[np.object_]]

_V5E_KINDS = ("TPU v5 lite", "TPU v5e")  # `make_mesh` splits axes of their torus
_TWO_CORES_IN_PLANE = ("TPU v2", "TPU v3")  # chips in a plane, with two cores each
_CORE_AXIS_KINDS = ("TPU7x", "TPU7", "TPU8i")  # cores are an axis of the torus

# Orders that are rings in a small block of chips: a mesh axis over all chips then passes each link once.
_TRAY = (0, 1, 2, 3, 6, 7, 4, 5)  # 2×2 chips with two cores
_SQUARE_2 = (0, 1, 3, 2)
_SQUARE_4 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)
_V5E_2X4 = (0, 1, 2, 3, 7, 6, 5, 4)
_V5E_CUBE_2 = (0, 4, 2, 6, 1, 5, 3, 7)
_V5P_CUBE_2 = (0, 1, 3, 2, 6, 7, 5, 4)

# Torus → mesh shape → axes of the torus, transposed so that the devices of each process are a contiguous block.
_CONTIGUOUS = {
    (2, 2, 1): {(2, 2): (0, 1, 2)},
    (2, 2, 4): {(4, 4): (0, 1, 2)},
    (4, 4, 4): {(16, 4): (0, 2, 1)},
    (4, 8, 8): {(64, 4): (0, 2, 1), (4, 64): (0, 2, 1)},
    (8, 8, 8): {(64, 8): (0, 2, 1)},
    (8, 16, 16): {(256, 8): (0, 2, 1), (8, 256): (0, 2, 1)},
}


def is_in_torus(devices: Sequence[Any]) -> bool:
    """Return whether devices have coordinates in a torus: whether they are TPUs."""
    return bool(devices) and getattr(devices[-1], "platform", "") == "tpu"


def splits_by_default(devices: Sequence[Any]) -> bool:
    """Return whether `make_mesh` may assign a part of a torus axis to a mesh axis."""
    return devices[0].device_kind in _V5E_KINDS


def torus_grid(
    shape: Sequence[int], devices: Sequence[Any], *, contiguous_submeshes: bool = False, split_axes: bool = False
) -> Grid:
    """Arrange TPUs in an array of the shape of a mesh. The last axes get the best links.

    Args:
        shape: the shape of the mesh, whose size is the number of devices.
        devices: the devices of one slice.
        contiguous_submeshes: whether the devices of each process must be a contiguous block.
        split_axes: whether a mesh axis may be a part of an axis of the torus.

    Raises:
        ShardingError: if the devices are not all those of a cuboid, or if the shape is not possible with these options.
    """
    small = _small_grid(tuple(shape), list(devices))
    if small is not None:
        return small
    torus = _torus(devices)
    if contiguous_submeshes:
        torus = _transpose_to_contiguous(torus, shape)
    return _assign_whole_axes(torus, shape, split_axes)


def _small_grid(shape: tuple[int, ...], devices: list[Any]) -> Grid | None:
    """Return the known ring order of a small block of chips; None if there is none for this kind and number."""
    kind, count = devices[-1].device_kind, len(devices)
    if kind in _TWO_CORES_IN_PLANE:
        if count == len(_TRAY):
            return _in_order(devices, _TRAY, shape)
        grid = device_grid(devices, shape)
        return grid[..., list(_TRAY)] if shape[-1] == len(_TRAY) else grid
    if kind in ("TPU v4 lite", "TPU8i"):
        return _in_order(devices, _SQUARE_2, shape) if count == len(_SQUARE_2) else None
    if kind in ("TPU7x", "TPU7"):
        return _trays_along_z(shape, devices)
    if kind not in ("TPU v5 lite", "TPU v6 lite", "TPU v5p"):
        return None
    extent = tuple(largest + 1 for largest in max(_coords(device) for device in devices))
    sequential = sorted(devices, key=lambda device: _coords(device)[::-1])  # x varies fastest
    if kind == "TPU v5p":
        return _in_order(sequential, _V5P_CUBE_2, shape) if extent == (2, 2, 2) and count == 8 else None
    if extent == (2, 2, 1) and count == 4:
        return _in_order(sequential, _SQUARE_2, shape)
    if count == 8:
        return _in_order(sequential, _V5E_CUBE_2 if extent == (2, 2, 2) else _V5E_2X4, shape)
    if extent == (4, 4, 1) and max(shape) == count == 16:
        return _in_order(sequential, _SQUARE_4, shape)
    return None


def _in_order(devices: Sequence[Any], order: Sequence[int], shape: tuple[int, ...]) -> Grid:
    return device_grid([devices[index] for index in order], shape)


def _trays_along_z(shape: tuple[int, ...], devices: list[Any]) -> Grid | None:
    """Return up to four trays, each as a ring, one after the other; None if the chips are no column of trays."""
    count, size = len(devices), len(_TRAY)
    if count % size or count > 4 * size or max(_torus(devices).shape[:2]) > 2:
        return None
    return _in_order(devices, [start + index for start in range(0, count, size) for index in _TRAY], shape)


def _coords(device: Any) -> tuple[int, ...]:
    return tuple(getattr(device, "coords", (0, 0, 0)))


def _torus(devices: Sequence[Any]) -> Grid:
    """Return the devices in an array by their coordinates, and by core if cores are an axis of the torus.

    Raises:
        ShardingError: if the devices are not all those of a cuboid.
    """
    kind = devices[0].device_kind
    places = [(*_coords(device), device.core_on_chip) for device in devices]
    lowest = [min(along) for along in zip(*places, strict=True)]
    x, y, z, cores = (max(along) - low + 1 for along, low in zip(zip(*places, strict=True), lowest, strict=True))
    if kind in _TWO_CORES_IN_PLANE:
        axes = [0, 1, 3]
    elif kind in _CORE_AXIS_KINDS or (kind == "TPU v5p" and cores == 2):
        axes = [0, 1, 2, 3]
    else:
        axes = [0, 1, 2]
        if any(place[3] for place in places):
            raise ShardingError(f"devices of the kind {kind!r} must be one per chip, but some are a second core")
    torus = np.empty([(x, y, z, cores)[axis] for axis in axes], object)
    for device, place in zip(devices, places, strict=True):
        torus[tuple(place[axis] - lowest[axis] for axis in axes)] = device
    if len(devices) != torus.size or any(device is None for device in torus.flat):
        raise ShardingError(
            f"the coordinates of the {len(devices)} devices are not a cuboid without holes: pass all devices of a "
            "slice, or of a cuboid of it"
        )
    return torus


def _transpose_to_contiguous(torus: Grid, shape: Sequence[int]) -> Grid:
    shapes = _CONTIGUOUS.get(torus.shape, {})
    key = tuple(size for size in shape if size > 1)
    if key not in shapes:
        raise ShardingError(
            f"contiguous_submeshes: there is no contiguous order of a mesh of shape {tuple(shape)} on a torus of shape "
            f"{torus.shape}. Shapes that have one: {', '.join(map(str, shapes)) or 'none'}."
        )
    return torus.transpose(shapes[key])


def _assign_whole_axes(torus: Grid, shape: Sequence[int], split_axes: bool) -> Grid:
    """Assign axes of the torus to each mesh axis, the last mesh axis first, as many torus axes as possible."""
    free = list(range(torus.ndim))
    assigned: dict[int, tuple[int, ...]] = {}
    for mesh_axis in reversed(range(len(shape))):
        choices = (axes for count in range(torus.ndim, 0, -1) for axes in combinations(free, count))
        fitting = (axes for axes in choices if math.prod(torus.shape[axis] for axis in axes) == shape[mesh_axis])
        axes = next(fitting, ())
        if not axes and shape[mesh_axis] > 1:
            if split_axes:
                return _split_axes(torus, shape)
            raise ShardingError(
                f"a mesh of shape {tuple(shape)} does not fit the torus of shape {torus.shape}: axis {mesh_axis} of "
                f"size {shape[mesh_axis]} is not the product of whole axes of the torus that are left. Choose other "
                "sizes, or pass `mesh_utils.create_device_mesh(..., allow_split_physical_axes=True)` to `Mesh`."
            )
        assigned[mesh_axis] = axes
        free = [axis for axis in free if axis not in axes]
    order = [axis for mesh_axis in range(len(shape)) for axis in assigned[mesh_axis]]
    return torus.transpose([*order, *free]).reshape(*shape)


def _split_axes(torus: Grid, shape: Sequence[int]) -> Grid:
    """Assign a divisor of each axis of the torus to each mesh axis, the last mesh axis first."""
    divisors = np.ones((torus.ndim, len(shape)), int)
    for mesh_axis in reversed(range(len(shape))):
        taken = divisors.prod(axis=1)
        free = [size // used for size, used in zip(torus.shape, taken, strict=True)]
        choices = _factorizations(shape[mesh_axis], free)
        best = max(choices, key=lambda parts: _preference(parts, torus.shape, taken), default=None)
        if best is None:
            raise ShardingError(f"a mesh of shape {tuple(shape)} does not fit the torus of shape {torus.shape}")
        divisors[:, mesh_axis] = best
    # Within an axis of the torus, later mesh axes vary faster: their devices are closer to each other.
    split = torus.reshape(divisors.ravel())
    order = np.arange(divisors.size).reshape(divisors.shape).T.ravel()
    return split.transpose(order).reshape(*shape)


def _factorizations(size: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write `size` as a product with one factor for each limit, which it divides."""
    for parts in product(*([part for part in range(1, limit + 1) if limit % part == 0] for limit in limits)):
        if math.prod(parts) == size:
            yield parts


def _preference(parts: tuple[int, ...], torus: Sequence[int], taken: Sequence[int]) -> tuple[object, ...]:
    """Return the sort key of an assignment: whole axes first, then many of them, then axes that others use already."""
    whole = [part for part, size in zip(parts, torus, strict=True) if part == size]
    shared = math.prod(part for part, used in zip(parts, taken, strict=True) if used > 1)
    return math.prod(whole), sum(part > 1 for part in whole), shared, parts

"""A reference for manual regions: a loop over the devices in numpy, where a value is the list of its shards.

Nothing here comes from the package: arrays are sharded by hand, and collectives are written in numpy.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Shards = list[Array]
Spec = tuple[Any, ...]  # one entry per dim: None, an axis or a tuple of axes


def axes_of(entry: Any) -> tuple[str, ...]:
    """Return the axes of one entry of a spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def axes_in(spec: Spec) -> set[str]:
    """Return all axes of a spec."""
    return {axis for entry in spec for axis in axes_of(entry)}


class Devices:
    """The devices of a mesh, in the order of their coordinates."""

    def __init__(self, mesh: dict[str, int]):
        self.mesh = mesh
        self.coordinates = [dict(zip(mesh, coordinate, strict=True)) for coordinate in np.ndindex(*mesh.values())]

    def count(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def linear_index(self, coordinate: dict[str, int], axes: Sequence[str]) -> int:
        """Return the index of a device along `axes`; the first axis varies slowest."""
        result = 0
        for axis in axes:
            result = result * self.mesh[axis] + coordinate[axis]
        return result

    def axis_index(self, axes: Sequence[str]) -> Shards:
        return [np.int32(self.linear_index(coordinate, axes)) for coordinate in self.coordinates]

    def groups_along(self, axes: Sequence[str], groups: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """Return the groups of devices that take part in one collective along `axes`, each in order."""
        by_other_coordinates: dict[tuple[int, ...], dict[int, int]] = {}
        for device, coordinate in enumerate(self.coordinates):
            rest = tuple(coordinate[axis] for axis in self.mesh if axis not in axes)
            by_other_coordinates.setdefault(rest, {})[self.linear_index(coordinate, axes)] = device
        numbers = [range(self.count(axes))] if groups is None else groups
        return [[devices[index] for index in group] for devices in by_other_coordinates.values() for group in numbers]

    def map_groups(
        self, shards: Shards, axes: Sequence[str], groups: Any, combine: Callable[[list[Array]], list[Array]]
    ) -> Shards:
        """Apply `combine` to the shards of every group; it returns one result per member."""
        result: list[Any] = [None] * len(shards)
        for members in self.groups_along(axes, groups):
            for device, shard in zip(members, combine([shards[member] for member in members]), strict=True):
                result[device] = shard
        return result

    # Arrays and their shards.

    def shard(self, array: Array, spec: Spec) -> Shards:
        return [array[self._block(array.shape, spec, coordinate)] for coordinate in self.coordinates]

    def unshard(self, shards: Shards, spec: Spec) -> Array:
        """Assemble the array. Devices with the same block must have equal shards."""
        spec = (*spec, *[None] * (shards[0].ndim - len(spec)))
        shape = [size * self.count(axes_of(entry)) for size, entry in zip(shards[0].shape, spec, strict=True)]
        array = np.zeros(shape, shards[0].dtype)
        seen: set[Any] = set()
        for shard, coordinate in zip(shards, self.coordinates, strict=True):
            block = self._block(tuple(shape), spec, coordinate)
            key = tuple((part.start, part.stop) for part in block)
            if key in seen:
                np.testing.assert_array_equal(array[block], shard)
            seen.add(key)
            array[block] = shard
        return array

    def _block(self, shape: tuple[int, ...], spec: Spec, coordinate: dict[str, int]) -> tuple[slice, ...]:
        spec = (*spec, *[None] * (len(shape) - len(spec)))
        block = []
        for size, entry in zip(shape, spec, strict=True):
            axes = axes_of(entry)
            part = size // self.count(axes)
            start = self.linear_index(coordinate, axes) * part
            block.append(slice(start, start + part))
        return tuple(block)

    # Collectives.

    def reduce(self, reduction: str, shards: Shards, axes: Sequence[str], groups: Any = None) -> Shards:
        def combine(members: list[Array]) -> list[Array]:
            dtype = np.dtype(np.int32) if members[0].dtype == bool and reduction == "sum" else members[0].dtype
            stacked = np.stack(members)
            wide = np.float64 if is_float(dtype) else dtype
            with np.errstate(over="ignore"):
                result = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction].reduce(stacked.astype(wide))
            return [np.asarray(result).astype(dtype)] * len(members)

        return self.map_groups(shards, axes, groups, combine)

    def all_gather(self, shards: Shards, axes: Sequence[str], dim: int, tiled: bool, groups: Any = None) -> Shards:
        combine = np.concatenate if tiled else np.stack
        return self.map_groups(shards, axes, groups, lambda members: [combine(members, axis=dim)] * len(members))

    def psum_scatter(self, shards: Shards, axes: Sequence[str], dim: int, tiled: bool, groups: Any = None) -> Shards:
        def scattered(members: list[Array]) -> list[Array]:
            blocks = np.split(members[0], len(members), dim)
            return blocks if tiled else [np.squeeze(block, dim) for block in blocks]

        totals = self.reduce("sum", shards, axes, groups)
        return self.map_groups(totals, axes, groups, scattered)

    def all_to_all(
        self, shards: Shards, axes: Sequence[str], split: int, stack: int, tiled: bool, groups: Any = None
    ) -> Shards:
        def exchange(members: list[Array]) -> list[Array]:
            blocks = [np.split(shard, len(members), split) for shard in members]
            received = [[sent[member] for sent in blocks] for member in range(len(members))]
            if tiled:
                return [np.concatenate(mine, stack) for mine in received]
            return [np.stack([np.squeeze(block, split) for block in mine], stack) for mine in received]

        return self.map_groups(shards, axes, groups, exchange)

    def ppermute(self, shards: Shards, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Shards:
        def permuted(members: list[Array]) -> list[Array]:
            senders = {receiver: sender for sender, receiver in pairs}
            return [
                members[senders[member]] if member in senders else np.zeros_like(shard)
                for member, shard in enumerate(members)
            ]

        return self.map_groups(shards, axes, None, permuted)


def is_float(dtype: Any) -> bool:
    """Return whether a dtype is a float; numpy does not know that bfloat16 is one."""
    return np.dtype(dtype).kind == "f" or np.dtype(dtype).name == "bfloat16"

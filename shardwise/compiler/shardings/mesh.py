"""A mesh: devices in a grid whose axes have names.

`AbstractMesh` is names and sizes, all that the compiler reads. `Mesh` adds the devices, which stay opaque here.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.errors import ShardingError


@final
class AbstractMesh:
    """The names and sizes of a mesh's axes, in order."""

    def __init__(self, axis_sizes: Sequence[int], axis_names: Sequence[str]):
        self.axis_sizes = tuple(int(size) for size in axis_sizes)
        self.axis_names = tuple(axis_names)
        if len(self.axis_sizes) != len(self.axis_names):
            raise ShardingError(
                f"a mesh needs one name an axis: sizes {self.axis_sizes} have {len(self.axis_sizes)} axes, "
                f"names {self.axis_names} are {len(self.axis_names)}"
            )
        if repeated := {n for n in self.axis_names if self.axis_names.count(n) > 1}:
            raise ShardingError(f"mesh axis names must differ: {sorted(repeated)} repeat in {self.axis_names}")
        if any(size < 1 for size in self.axis_sizes):
            raise ShardingError(f"mesh axis sizes must be at least 1, not {self.axis_sizes}")
        self.shape = dict(zip(self.axis_names, self.axis_sizes, strict=True))
        self.size = math.prod(self.axis_sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.axis_sizes, self.axis_names

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.shape.items())

    def __repr__(self) -> str:
        return f"AbstractMesh({self})"

    def extent(self, axes: Iterable[str]) -> int:
        """The number of pieces that these axes cut a dim into."""
        return math.prod(self.shape[axis] for axis in axes)

    def coordinates(self, axes: Sequence[str]) -> np.ndarray[Any, Any]:
        """For every device, in mesh order: its position among the pieces that `axes` cut (first axis major)."""
        grid = np.indices(self.axis_sizes).reshape(len(self.axis_sizes), self.size)
        position = np.zeros(self.size, np.int64)
        for axis in axes:
            position = position * self.shape[axis] + grid[self.axis_names.index(axis)]
        return position

    def groups(self, axes: Sequence[str]) -> np.ndarray[Any, Any]:
        """Devices that differ only along `axes`: one row a group, ordered by position along `axes`."""
        rest = [axis for axis in self.axis_names if axis not in axes]
        order = [self.axis_names.index(axis) for axis in (*rest, *axes)]
        return np.arange(self.size).reshape(self.axis_sizes).transpose(order).reshape(-1, self.extent(axes))

    def unknown_axis(self, axis: str) -> str:
        """Why `axis` cannot be used here, with a suggestion."""
        near = get_close_matches(axis, self.axis_names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Its axes are {', '.join(map(repr, self.axis_names))}."
        return f"the mesh {self} has no axis {axis!r}. {hint}"


def parse_mesh(text: str) -> AbstractMesh:
    """The abstract mesh that prints as `text`: `data=4, model=2`."""
    axes = [part.partition("=") for part in text.split(", ") if part]
    return AbstractMesh([int(size) for _, _, size in axes], [name for name, _, _ in axes])


@final
class Mesh:
    """Devices in a grid with named axes: `Mesh(np.array(devices).reshape(4, 2), ("data", "model"))`."""

    def __init__(self, devices: Any, axis_names: str | Sequence[str]):
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = np.array(devices, dtype=object)  # a copy: the mesh's own is frozen below
        if grid.ndim == 1 and len(names) > 1:
            sizes = _even_factors(grid.size, len(names))
            warnings.warn(
                f"Mesh was given a flat list of {grid.size} devices and {len(names)} axis names: taken as "
                f"{' × '.join(map(str, sizes))}. Say so: Mesh(np.array(devices).reshape{sizes}, {names})",
                stacklevel=2,
            )
            grid = grid.reshape(sizes)
        self.abstract = AbstractMesh(grid.shape, names)
        if len(set(map(id, grid.flat))) != grid.size:
            raise ShardingError(f"a mesh cannot hold a device twice: {list(grid.flat)}")
        grid.flags.writeable = False
        self.devices = grid

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.abstract.axis_names

    @property
    def shape(self) -> dict[str, int]:
        return self.abstract.shape

    @property
    def size(self) -> int:
        return self.abstract.size

    @cached_property
    def flat_devices(self) -> tuple[Any, ...]:
        """The devices in mesh order; a device's place here is its replica index."""
        return tuple(self.devices.flat)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.abstract, self.flat_devices

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Mesh) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Mesh({self.abstract})"


def _even_factors(count: int, parts: int) -> tuple[int, ...]:
    """`count` as a product of `parts` factors, as even as it goes, largest first: 8 → 4 × 2, 2 × 2 × 2."""
    if parts == 1:
        return (count,)
    root = count ** (1 / parts)
    last = max(d for d in range(1, int(root + 1e-9) + 1) if count % d == 0)
    return tuple(sorted((*_even_factors(count // last, parts - 1), last), reverse=True))

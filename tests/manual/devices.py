"""What the devices of a manual region do, as a loop over them in numpy: a value is the list of their pieces.

Nothing here is taken from the package: pieces are cut by hand, and collectives are what their names say.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Pieces = list[Array]
Spec = tuple[Any, ...]  # an entry a dim: None, an axis or a tuple of axes


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def cutting(spec: Spec) -> set[str]:
    """All axes in a spec."""
    return {axis for entry in spec for axis in axes_of(entry)}


class Devices:
    """All devices of a mesh, by their places along its axes."""

    def __init__(self, mesh: dict[str, int]):
        self.mesh = mesh
        self.places = [dict(zip(mesh, place, strict=True)) for place in np.ndindex(*mesh.values())]

    def count(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def number(self, place: dict[str, int], axes: Sequence[str]) -> int:
        """A device's number along axes, the first of them slowest."""
        found = 0
        for axis in axes:
            found = found * self.mesh[axis] + place[axis]
        return found

    def axis_index(self, axes: Sequence[str]) -> Pieces:
        return [np.int32(self.number(place, axes)) for place in self.places]

    def teams(self, axes: Sequence[str], groups: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """The devices that compute together along axes, in order; where there are groups, each for itself."""
        together: dict[tuple[int, ...], dict[int, int]] = {}
        for device, place in enumerate(self.places):
            rest = tuple(place[axis] for axis in self.mesh if axis not in axes)
            together.setdefault(rest, {})[self.number(place, axes)] = device
        numbers = [range(self.count(axes))] if groups is None else groups
        return [[team[number] for number in group] for team in together.values() for group in numbers]

    def each_team(
        self, pieces: Pieces, axes: Sequence[str], groups: Any, join: Callable[[list[Array]], list[Array]]
    ) -> Pieces:
        found: list[Any] = [None] * len(pieces)
        for team in self.teams(axes, groups):
            for device, piece in zip(team, join([pieces[member] for member in team]), strict=True):
                found[device] = piece
        return found

    # Whole arrays and pieces.

    def cut(self, whole: Array, spec: Spec) -> Pieces:
        return [whole[self._block(whole.shape, spec, place)] for place in self.places]

    def join(self, pieces: Pieces, spec: Spec) -> Array:
        """The whole; devices that have the same block must have the same in it."""
        spec = (*spec, *[None] * (pieces[0].ndim - len(spec)))
        shape = [size * self.count(axes_of(entry)) for size, entry in zip(pieces[0].shape, spec, strict=True)]
        whole = np.zeros(shape, pieces[0].dtype)
        seen: set[Any] = set()
        for piece, place in zip(pieces, self.places, strict=True):
            block = self._block(tuple(shape), spec, place)
            key = tuple((part.start, part.stop) for part in block)
            if key in seen:
                np.testing.assert_array_equal(whole[block], piece)
            seen.add(key)
            whole[block] = piece
        return whole

    def _block(self, shape: tuple[int, ...], spec: Spec, place: dict[str, int]) -> tuple[slice, ...]:
        spec = (*spec, *[None] * (len(shape) - len(spec)))
        block = []
        for size, entry in zip(shape, spec, strict=True):
            axes = axes_of(entry)
            part = size // self.count(axes)
            start = self.number(place, axes) * part
            block.append(slice(start, start + part))
        return tuple(block)

    # Collectives.

    def reduced(self, how: str, pieces: Pieces, axes: Sequence[str], groups: Any = None) -> Pieces:
        def join(team: list[Array]) -> list[Array]:
            dtype = np.dtype(np.int32) if team[0].dtype == bool and how == "sum" else team[0].dtype
            stacked = np.stack(team)
            wide = np.float64 if is_float(dtype) else dtype
            with np.errstate(over="ignore"):
                found = {"sum": np.add, "max": np.maximum, "min": np.minimum}[how].reduce(stacked.astype(wide))
            return [np.asarray(found).astype(dtype)] * len(team)

        return self.each_team(pieces, axes, groups, join)

    def all_gather(self, pieces: Pieces, axes: Sequence[str], dim: int, tiled: bool, groups: Any = None) -> Pieces:
        join = np.concatenate if tiled else np.stack
        return self.each_team(pieces, axes, groups, lambda team: [join(team, axis=dim)] * len(team))

    def psum_scatter(self, pieces: Pieces, axes: Sequence[str], dim: int, tiled: bool, groups: Any = None) -> Pieces:
        def parts(team: list[Array]) -> list[Array]:
            blocks = np.split(team[0], len(team), dim)
            return blocks if tiled else [np.squeeze(block, dim) for block in blocks]

        totals = self.reduced("sum", pieces, axes, groups)
        return self.each_team(totals, axes, groups, parts)

    def all_to_all(
        self, pieces: Pieces, axes: Sequence[str], split: int, stack: int, tiled: bool, groups: Any = None
    ) -> Pieces:
        def exchanged(team: list[Array]) -> list[Array]:
            blocks = [np.split(piece, len(team), split) for piece in team]
            received = [[sent[member] for sent in blocks] for member in range(len(team))]
            if tiled:
                return [np.concatenate(mine, stack) for mine in received]
            return [np.stack([np.squeeze(block, split) for block in mine], stack) for mine in received]

        return self.each_team(pieces, axes, groups, exchanged)

    def ppermute(self, pieces: Pieces, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Pieces:
        def sent(team: list[Array]) -> list[Array]:
            senders = {receiver: sender for sender, receiver in pairs}
            return [
                team[senders[member]] if member in senders else np.zeros_like(piece)
                for member, piece in enumerate(team)
            ]

        return self.each_team(pieces, axes, None, sent)


def is_float(dtype: Any) -> bool:
    """Among those that the tests use; numpy does not know that bfloat16 is one."""
    return np.dtype(dtype).kind == "f" or np.dtype(dtype).name == "bfloat16"

"""Shardings of HLO, such as `{devices=[4,1,2]<=[8] last_tile_dim_replicate}`, as axes of one mesh.

Such a sharding names no mesh. It states how device numbers are distributed over the tiles of an array: the digits of a
device number, in some mixed radix. The mesh has one axis for each digit that some sharding of the module distinguishes.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import UnsupportedError

_TILED = re.compile(r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))(.*)\}")
_SUBGROUPS = re.compile(r"last_tile_dims=\{([a-z, ]*)\}")

Digit = tuple[int, int]  # (high, low): the factor of a device number between the strides `low` and `high`


@final
@dataclass(frozen=True)
class HloSharding:
    """A parsed sharding.

    Attributes:
        devices: the number of devices; 1 if it is replicated.
        dims: the digits of the device number that shard each dim of the array; empty if it is replicated.
    """

    devices: int
    dims: tuple[tuple[Digit, ...], ...]


def parse_hlo_sharding(text: str) -> HloSharding:
    """Parse a sharding of an array.

    Raises:
        UnsupportedError: if the sharding is manual, maximal or a tuple, or its devices are in no mesh order.
    """
    if text == "{replicated}":
        return HloSharding(1, ())
    match = _TILED.fullmatch(text)
    if match is None or "manual" in match[5]:
        raise UnsupportedError(f"the sharding {text} is not supported: only replicated and tiled arrays are")
    tiles = _integers(match[1])
    count = math.prod(tiles)
    reshape = _integers(match[2]) if match[2] else (count,)
    if match[4] and _integers(match[4]) != tuple(range(count)):
        raise UnsupportedError(f"the sharding {text} is not supported: its devices are not in the order of a mesh")
    order = _integers(match[3]) if match[3] else tuple(range(len(reshape)))
    if math.prod(reshape) != count or sorted(order) != list(range(len(reshape))) or count < 1:
        raise UnsupportedError(f"the sharding {text} is not valid: its tiles are not as many as its devices")
    subgroups = _SUBGROUPS.search(match[5])
    hidden = len(subgroups[1].split(",")) if subgroups else int("last_tile_dim_replicate" in match[5])
    digits = _digits(text, tiles, reshape, order)
    return HloSharding(count, tuple(map(tuple, digits[: len(tiles) - hidden])))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _digits(text: str, tiles: Sequence[int], reshape: Sequence[int], order: Sequence[int]) -> list[list[Digit]]:
    """Return the digits of the device number along each dim of the tiles."""
    strides = [math.prod(reshape[dim + 1 :]) for dim in range(len(reshape))]
    sources = [
        [reshape[dim], strides[dim]] for dim in order if reshape[dim] > 1
    ]  # what is left of each, and its stride
    digits: list[list[Digit]] = []
    for tile in tiles:
        dim: list[Digit] = []
        remaining = tile
        while remaining > 1:
            left, stride = sources[0]
            taken = min(left, remaining)
            if left % taken or remaining % taken:
                raise UnsupportedError(f"the sharding {text} is not supported: no mesh has its tiles")
            dim.append((stride * left, stride * left // taken))
            sources[0][0] //= taken
            remaining //= taken
            if sources[0][0] == 1:
                sources.pop(0)
        digits.append(dim)
    return digits


@final
class HloMesh:
    """The mesh of all shardings of a module. Its axes are `axis0`, `axis1`, and so on, the largest stride first."""

    def __init__(self, shardings: Iterable[HloSharding]):
        tiled = [sharding for sharding in shardings if sharding.devices > 1]
        counts = {sharding.devices for sharding in tiled}
        if len(counts) > 1:
            raise UnsupportedError(
                f"the shardings of the module are for different numbers of devices: {sorted(counts)}"
            )
        count = counts.pop() if counts else 1
        bounds = {1, count, *(bound for sharding in tiled for dim in sharding.dims for digit in dim for bound in digit)}
        self._bounds = sorted(bounds, reverse=True)
        sizes = [high // low for high, low in zip(self._bounds, self._bounds[1:], strict=False)]
        if any(high % low for high, low in zip(self._bounds, self._bounds[1:], strict=False)):
            raise UnsupportedError("no mesh has all shardings of the module: their tiles overlap")
        self.mesh = AbstractMesh(tuple(sizes), tuple(f"axis{index}" for index in range(len(sizes)))) if sizes else None

    def dims(self, sharding: HloSharding, ndim: int) -> tuple[tuple[str, ...], ...]:
        """Return the mesh axes that shard each dim of an array."""
        dims = sharding.dims or ((),) * ndim
        return tuple(tuple(axis for digit in dim for axis in self._axes(digit)) for dim in dims)

    def _axes(self, digit: Digit) -> list[str]:
        high, low = digit
        return [f"axis{index}" for index, bound in enumerate(self._bounds[1:]) if low <= bound < high]

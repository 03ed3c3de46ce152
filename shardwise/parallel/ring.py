"""The ring of devices along mesh axes: permutes, and loops in which blocks or sums travel while devices compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.control import scan
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import AxisRegion, MeshAxes, axis_region

_T = TypeVar("_T")
_Block = TypeVar("_Block")


@final
@dataclass(frozen=True)
class Ring:
    """The devices along `axes`, of which there are `size`, as a ring."""

    axes: tuple[str, ...]
    size: int

    def index(self) -> Array:
        """Return the number of this device."""
        return lax.axis_index(self.axes)

    def rotate(self, x: _T, shift: int = 1) -> _T:
        """Send the arrays of a pytree from each device to the device whose number is larger by `shift`."""
        return lax.ppermute(x, self.axes, [(source, (source + shift) % self.size) for source in range(self.size)])

    def visit_others(self, x: _Block, visit: Callable[[_T, _Block, Array], _T], carry: _T) -> _T:
        """Return the carry after `visit(carry, block, source)` for the block `x` of every other device `source`.

        Blocks travel in both directions, each to the devices that are nearer in that direction, while `visit` computes.
        """
        index, both = self.index(), (self.size - 1) // 2
        is_even = self.size % 2 == 0  # the block from the opposite device arrives in one direction only

        def visit_both(carry: _T, ahead: _Block, behind: _Block, number: int | Array) -> _T:
            carry = visit(carry, ahead, (index - number) % self.size)
            return visit(carry, behind, (index + number) % self.size)

        def step(state: tuple[_T, _Block, _Block], number: Array) -> tuple[_T, _Block, _Block]:
            carry, ahead, behind = state
            following = self.rotate(ahead), self.rotate(behind, -1)
            return visit_both(carry, ahead, behind, number), *following

        if self.size == 1:
            return carry
        ahead = self.rotate(x)
        if both:
            carry, last, behind = repeat_steps(step, (carry, ahead, self.rotate(x, -1)), 1, both)
            ahead = self.rotate(last) if is_even else last
            carry = visit_both(carry, last, behind, both)
        return visit(carry, ahead, (index - self.size // 2) % self.size) if is_even else carry

    def sum_terms(self, term: Callable[[Array], Array], dtype: DType) -> Array:
        """Return the sum over all devices of `term(target)`, where `target` is the number of this device.

        Sums travel to their target in both directions, in `dtype`, while the devices compute their next terms.
        """
        index, both = self.index(), (self.size - 1) // 2

        def of(distance: int | Array) -> Array:
            return term((index + distance) % self.size)

        def add(travelling: Array, distance: int | Array, shift: int) -> Array:
            return (self.rotate(travelling, shift) + of(distance)).astype(dtype)

        def step(state: tuple[Array, Array], number: Array) -> tuple[Array, Array]:
            ahead, behind = state
            return add(ahead, both - number, 1), add(behind, number - both, -1)

        if self.size == 1:
            return of(0).astype(dtype)
        ahead = of(self.size // 2).astype(dtype)
        if not both:
            return add(ahead, 0, 1)
        if self.size % 2 == 0:
            ahead = add(ahead, both, 1)
        ahead, behind = repeat_steps(step, (ahead, of(-both).astype(dtype)), 1, both)
        return (self.rotate(ahead) + of(0) + self.rotate(behind, -1)).astype(dtype)


def ring_region(name: str, axis: MeshAxes, mesh: Mesh | AbstractMesh | None) -> AxisRegion:
    """Return the region over `axis`, a name of a mesh axis or a tuple of names.

    Raises:
        StrategyError: if there is no mesh or no such axis. `name` is the public function, for messages.
    """
    region = axis_region(name, axis, mesh)
    if not region.axes:
        raise StrategyError(f"{name}: axis must be the name of a mesh axis, not {axis!r}")
    return region


def shard_spec(region: AxisRegion, dim: int) -> PartitionSpec:
    """Return the spec of an array whose dim the axes of a region shard."""
    return PartitionSpec(*[None] * dim, region.axes if len(region.axes) > 1 else region.axes[0])


def repeat_steps(step: Callable[[_T, Array], _T], carry: _T, start: int, stop: int) -> _T:
    """Return the carry after `step(carry, number)` for the numbers from `start` up to `stop`, which is excluded."""
    if start >= stop:
        return carry
    return scan(lambda carry, number: (step(carry, number), None), carry, jnp.arange(start, stop))[0]

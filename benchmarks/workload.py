"""Workload: a program for eight devices that is written once, and given to every side of a comparison.

A program is written for a library with JAX's names. Its arguments' layouts are all that ours and JAX are told; `pin`
marks where JAX's experts would add a constraint, and does something in their column alone, unless the program is about
that very constraint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from benchmarks.programs import Side

Spec = tuple[Any, ...]
Put = Callable[..., Any]  # a numpy array and its layout, an entry a dim → the array, in place
Pin = Callable[..., Any]  # a value and its layout, an entry a dim → the value
Mesh = tuple[tuple[int, ...], tuple[str, ...]]


@final
@dataclass(frozen=True)
class Workload:
    """`program` takes the library and `pin`; `arguments` takes `put`, and gives what the program is called with."""

    name: str
    mesh: Mesh
    program: Callable[[Any, Pin], Callable[..., Any]]
    arguments: Callable[[Put], tuple[Any, ...]]
    pins: Literal["experts", "everyone", "nobody"] = "experts"  # whose column has them

    def on(self, side: Side, expert: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function and its arguments, in place."""
        mesh = side.mesh(*self.mesh)
        pinned = self.pins == "everyone" or (self.pins == "experts" and expert)
        pin = (lambda x, *spec: side.constrain(x, mesh, spec)) if pinned else unpinned
        return self.program(side.library, pin), self.arguments(lambda value, *spec: side.put(value, mesh, spec))


def unpinned(value: Any, *spec: Any) -> Any:
    return value


def without(spec: Sequence[Any], axis: str | None) -> Spec:
    """A layout in which nothing is cut along `axis`."""
    return tuple(None if entry == axis else entry for entry in spec)

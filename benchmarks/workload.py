"""Workload: a program for eight devices, written once for any library with JAX's names.

Shardwise and JAX know the shardings of the arguments only. `pin` marks where a JAX expert would add a constraint. It is
a no-op except in the column of the experts, or if the constraint is the subject of the workload.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from benchmarks.programs import Side

Spec = tuple[Any, ...]
Put = Callable[..., Any]  # (numpy array, *spec) → sharded array
Pin = Callable[..., Any]  # (value, *spec) → value
Mesh = tuple[tuple[int, ...], tuple[str, ...]]


@final
@dataclass(frozen=True)
class Workload:
    """`program(library, pin)` returns the function, `arguments(put)` its arguments."""

    name: str
    mesh: Mesh
    program: Callable[[Any, Pin], Callable[..., Any]]
    arguments: Callable[[Put], tuple[Any, ...]]
    pins: Literal["experts", "everyone", "nobody"] = "experts"  # the columns in which `pin` constrains

    def on(self, side: Side, expert: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function and its sharded arguments."""
        mesh = side.mesh(*self.mesh)
        pinned = self.pins == "everyone" or (self.pins == "experts" and expert)
        pin = (lambda x, *spec: side.constrain(x, mesh, spec)) if pinned else no_pin
        return self.program(side.library, pin), self.arguments(lambda value, *spec: side.put(value, mesh, spec))


def no_pin(value: Any, *spec: Any) -> Any:
    return value


def without(spec: Sequence[Any], axis: str | None) -> Spec:
    """Return the spec without `axis`."""
    return tuple(None if entry == axis else entry for entry in spec)

"""Watch the functions that JAX compiles in this process, and plan each as Shardwise would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, final

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.hlo_wire import Collective, Wire, wire
from shardwise.explain.plan import Explanation
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.jit import call_of
from shardwise.inside_jax.plan import Call


@final
@dataclass(frozen=True)
class CompiledCall:
    """A function that JAX has compiled for several devices.

    Attributes:
        call: the function, with the shardings of its arguments.
        wire: the collectives in JAX's executable.
    """

    call: Call
    wire: Wire

    def explain(self, chip: Chip | None = None, advise: bool = True) -> Explanation:
        """Return the plan that Shardwise has for the function."""
        return Explanation(self.call.lower(chip)[0], chip, advise)

    def seconds(self, chip: Chip) -> float:
        """Return the predicted time of the collectives in JAX's executable, one after another.

        The size of a group determines its mesh axes. Of several possibilities, the fastest ring counts: the time is a
        lower bound.
        """
        mesh = translate.mesh(self.call.mesh)
        return sum(
            each.times * min(chip.collective_time(each.traffic, mesh, axes) for axes in _axes_of_group(each, mesh))
            for each in self.wire.collectives
        )


def _axes_of_group(collective: Collective, mesh: AbstractMesh) -> list[tuple[str, ...]]:
    """Return the sets of mesh axes along which a collective may communicate; all axes if none has its group size."""
    sets = [axes for count in range(1, len(mesh.axis_names) + 1) for axes in combinations(mesh.axis_names, count)]
    if collective.kind == "collective-permute":
        return sets
    return [axes for axes in sets if mesh.extent(axes) == collective.group] or [mesh.axis_names]


@contextmanager
def watch_compiles(on_compile: Callable[[CompiledCall], None]) -> Iterator[None]:
    """Call `on_compile` for every function that JAX compiles for several devices in this block, when it first runs."""

    def on_run(params: dict[str, Any], args: list[Any], names: tuple[str, ...], executable: Any) -> None:
        call = call_of(params, names).placed(args)
        if call.device_count > 1 and executable is not None:
            on_compile(CompiledCall(call, wire(executable.as_text())))

    with _jax.watch_runs(on_run):
        yield

"""Watch the functions that JAX compiles in this process, and plan each as Shardwise would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.plan.chip import Chip
from shardwise.explain.hlo_wire import Wire, wire
from shardwise.explain.plan import Explanation
from shardwise.inside_jax import _jax
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
        """Return the predicted time of the collectives in JAX's executable, one after another."""
        return sum(each.times * chip.ring_of(each.devices).time(each.traffic) for each in self.wire.collectives)


@contextmanager
def watch_compiles(on_compile: Callable[[CompiledCall], None]) -> Iterator[None]:
    """Call `on_compile` for every function that JAX compiles for several devices in this block, when it first runs."""

    def on_run(params: dict[str, Any], args: list[Any], names: tuple[str, ...], executable: Any) -> None:
        call = call_of(params, names).placed(args)
        if call.device_count > 1 and executable is not None:
            on_compile(CompiledCall(call, wire(executable.as_text())))

    with _jax.watch_runs(on_run):
        yield

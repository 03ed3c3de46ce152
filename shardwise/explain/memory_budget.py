"""memory_budget: assert a limit on the memory of the programs that are compiled or run in a block.

with sw.memory_budget(16e9):
    step(params, batch)
"""

from typing import final

from shardwise.compiler.report.report import Plan
from shardwise.execute.launch_hooks import LaunchedProgram
from shardwise.execute.plan_report import replan_report
from shardwise.explain.launch_budget import LaunchBudget
from shardwise.explain.text import human_bytes, memory_lines
from shardwise.runtime.memory_stats import MemoryStats


@final
class MemoryBudgetExceeded(AssertionError):
    """A program needs more memory per device than its budget allows. The message lists the largest live values."""


@final
class memory_budget(LaunchBudget):
    """Context manager that asserts a limit on the memory of each program that is compiled or run inside.

    The memory is that of XLA's executable, as in `Compiled.memory_analysis()`: arguments, outputs that reuse no donated
    argument, temporaries and code. An update of XLA may change it without a change of the plan. On platforms where XLA
    has no figures, it is the peak of the plan. Each program is checked by itself. Programs of other threads do not
    count, and arrays that a program does not use do not count either. As a decorator, it checks every call.

    Args:
        bytes: the most bytes that a program may hold per device.

    Raises:
        TypeError: if `bytes` is not a nonnegative number.
        MemoryBudgetExceeded: at the end of the block, if a program inside exceeds the budget. It is an AssertionError.

    Example:
        >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> with jax.memory_budget(1000):
        ...     total = jax.jit(lambda x: x.sum())(x)
        >>> total
        Array(32., dtype=float32)
    """

    def __init__(self, bytes: float):
        super().__init__()
        if isinstance(bytes, bool) or not isinstance(bytes, int | float) or not bytes >= 0:
            raise TypeError(f"memory_budget: bytes must be the number that each device may hold, not {bytes!r}")
        self.bytes = bytes

    def _recreate_cm(self) -> "memory_budget":
        return memory_budget(self.bytes)

    def check(self) -> None:
        """Raise MemoryBudgetExceeded if a program so far exceeds the budget."""
        errors = [text for launch in self._programs() if (text := self._excess(launch))]
        if errors:
            raise MemoryBudgetExceeded("\n\n".join(errors))

    def _excess(self, launch: LaunchedProgram) -> str:
        """Describe the memory of a program that exceeds the budget; "" for a program within the budget."""
        stats = launch.memory_stats()
        if stats is not None and stats.peak_memory_in_bytes <= self.bytes:
            return ""
        plan = replan_report(launch.request, launch.chip)
        held = plan.peak_bytes if stats is None else stats.peak_memory_in_bytes
        if held <= self.bytes:
            return ""
        lines = [
            f"memory budget exceeded: `{plan.name}` needs {human_bytes(held)} per device, allowed: "
            f"{human_bytes(self.bytes)}; that is {human_bytes(held - self.bytes)} too much",
            f"  {_parts_text(stats)}" if stats is not None else "  estimated by the plan: XLA has no figures here",
            *memory_lines(plan),
            f"  {self._remedy(plan)}",
        ]
        return "\n".join(lines)

    def _remedy(self, plan: Plan) -> str:
        if plan.peak_bytes <= self.bytes:
            return (
                "The plan is within the budget, but XLA needs more than the plan expects. If the temporaries grew with "
                "an update of jaxlib, report it to XLA; other `compiler_options` may avoid it."
            )
        return (
            "Shard the largest values over more devices, donate arguments that are not used again, use `checkpoint`, "
            "or set the setting `memory_limit` to the budget, so that the plan gathers later."
        )


def _parts_text(stats: MemoryStats) -> str:
    """List the parts of the memory of an executable."""
    parts = {
        "arguments": stats.argument_size_in_bytes,
        "outputs that reuse no argument": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    return "XLA: " + ", ".join(f"{human_bytes(count)} of {name}" for name, count in parts.items() if count > 0)

"""comm_budget: assert a limit on the communication of the programs that run in a block.

with sw.comm_budget(all_reduce=1, bytes=2e6):
    step(params, batch)
"""

from collections import Counter
from difflib import get_close_matches
from typing import final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.report.report import Plan
from shardwise.execute.plan_report import replan_report
from shardwise.explain.launch_budget import LaunchBudget
from shardwise.explain.text import count_text, format_report, human_bytes, human_seconds


@final
class CommBudgetExceeded(AssertionError):
    """Programs communicated more than their budget allows. The message contains their plans."""


@final
class comm_budget(LaunchBudget):
    """Context manager that asserts a limit on the collectives that the programs inside run.

    Every call in the block counts, including calls of functions that were compiled before. A program that is only
    compiled counts as one call. In a call, a collective in a loop counts once, with the bytes of all its iterations, as
    in `explain`. Programs of other threads do not count. As a decorator, it applies the budget to every call
    separately.

    Args:
        bytes: the most bytes that each device may send.
        launches: the most launches of collectives. Collectives that share a launch count once, and a launch in a loop
            counts in every iteration.
        exposed_seconds: the most estimated time in which a device communicates and does not compute. On hardware that
            does not overlap communication with compute, such as CPUs, that is the time of all communication.
        hardware: the chip to plan for, as in `explain`; by default, the devices on which the programs run. Launches are
            shared only on hardware that overlaps, so a test on CPU devices names the hardware of the cluster.
        **counts: the most collectives of each kind, named as in plans: all_reduce, all_gather, reduce_scatter,
            all_to_all, permute, take_window, exchange_windows, rotate. Other kinds must not occur, unless no kind is
            named and another limit is.

    Raises:
        TypeError: if a kind of collective does not exist, or a limit is not a nonnegative number.
        HardwareError: if `hardware` is not known.
        CommBudgetExceeded: at the end of the block, if the programs inside exceed the budget. It is an AssertionError.

    Example:
        >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> with jax.comm_budget(all_reduce=1, launches=1):
        ...     total = jax.jit(lambda x: x.sum())(x)
        >>> total
        Array(32., dtype=float32)
    """

    def __init__(
        self,
        *,
        bytes: float | None = None,
        launches: int | None = None,
        exposed_seconds: float | None = None,
        hardware: str | Chip | None = None,
        **counts: int,
    ):
        super().__init__()
        kinds = [name for name, op in Op.registry.items() if issubclass(op, Collective)]
        for kind, count in counts.items():
            if kind not in kinds:
                near = get_close_matches(kind, kinds, 1)
                hint = f"Did you mean {near[0]!r}?" if near else "Collectives are named as in plans."
                raise TypeError(f"comm_budget: there is no collective {kind!r}. {hint}")
            if not isinstance(count, int) or count < 0:
                raise TypeError(
                    f"comm_budget: {kind} must be the number of collectives that are allowed, not {count!r}"
                )
        if bytes is not None and not bytes >= 0:
            raise TypeError(f"comm_budget: bytes must be the number that each device may send, not {bytes!r}")
        if launches is not None and (not isinstance(launches, int) or launches < 0):
            raise TypeError(f"comm_budget: launches must be the number of launches that are allowed, not {launches!r}")
        if exposed_seconds is not None and not exposed_seconds >= 0:
            raise TypeError(f"comm_budget: exposed_seconds must be the time that is allowed, not {exposed_seconds!r}")
        self.bytes = bytes
        self.launches = launches
        self.exposed_seconds = exposed_seconds
        self.hardware = None if hardware is None else chip(hardware)
        self.allowed = counts

    def _recreate_cm(self) -> "comm_budget":
        return comm_budget(
            bytes=self.bytes,
            launches=self.launches,
            exposed_seconds=self.exposed_seconds,
            hardware=self.hardware,
            **self.allowed,
        )

    def plans(self) -> list[tuple[Plan, int]]:
        """Return the plans of the programs so far that contain collectives, and how many times each was called."""
        plans = [
            (replan_report(launch.request, self.hardware or launch.chip), calls)
            for launch, calls in self._programs().items()
        ]
        return [(plan, calls) for plan, calls in plans if plan.collectives]

    def check(self) -> None:
        """Raise CommBudgetExceeded if the programs so far exceed the budget."""
        plans = self.plans()
        counts: Counter[str] = Counter()
        for plan, calls in plans:
            for kind, count in plan.counts().items():
                counts[kind] += count * calls
        sent = sum(plan.wire_bytes * calls for plan, calls in plans)
        launches = sum(plan.launch_count * calls for plan, calls in plans)
        exposed = sum(plan.exposed_seconds * calls for plan, calls in plans)
        any_kind_allowed = not self.allowed and (self.bytes, self.launches, self.exposed_seconds) != (None, None, None)
        exceeded = [
            f"{count} {kind}, allowed: {self.allowed.get(kind, 0)}"
            for kind, count in counts.items()
            if not any_kind_allowed and count > self.allowed.get(kind, 0)
        ]
        if self.bytes is not None and sent > self.bytes:
            exceeded.append(f"{human_bytes(sent)} sent per device, allowed: {human_bytes(self.bytes)}")
        if self.launches is not None and launches > self.launches:
            exceeded.append(f"{count_text(launches, 'launch')}, allowed: {self.launches}")
        if self.exposed_seconds is not None and exposed > self.exposed_seconds:
            exceeded.append(
                f"{human_seconds(exposed)} of exposed communication, allowed: {human_seconds(self.exposed_seconds)}"
            )
        if exceeded:
            texts = [format_report(plan) + (f"\n  called {calls} times" if calls > 1 else "") for plan, calls in plans]
            raise CommBudgetExceeded(f"communication budget exceeded: {'; '.join(exceeded)}\n\n" + "\n\n".join(texts))

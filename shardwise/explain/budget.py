"""comm_budget: assert a limit on the communication of the programs that run in a block.

with sw.comm_budget(all_reduce=1, bytes=2e6):
    step(params, batch)
"""

from collections import Counter
from contextlib import ContextDecorator
from difflib import get_close_matches
from threading import get_ident
from types import TracebackType
from typing import Self, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.report.report import Plan
from shardwise.execute.launch_hooks import LaunchedProgram, launch_hooks
from shardwise.execute.plan_report import replan_report
from shardwise.explain.text import format_report, human_bytes


@final
class CommBudgetExceeded(AssertionError):
    """Programs sent more between devices than their budget allows. The message contains their plans."""


@final
class comm_budget(ContextDecorator):
    """Context manager that asserts a limit on the collectives that the programs inside run.

    Every call in the block counts, including calls of functions that were compiled before. A program that is only
    compiled counts as one call. In a call, a collective in a loop counts once, with the bytes of all its iterations, as
    in `explain`. Programs of other threads do not count. As a decorator, it applies the budget to every call
    separately.

    Args:
        bytes: the most bytes that each device may send.
        **counts: the most collectives of each kind, named as in plans: all_reduce, all_gather, reduce_scatter,
            all_to_all, permute, take_window, exchange_windows, rotate. Other kinds must not occur, unless only `bytes`
            is
            passed.

    Raises:
        TypeError: if a kind of collective does not exist, or a limit is not a nonnegative number.
        CommBudgetExceeded: at the end of the block, if the programs inside exceed the budget. It is an AssertionError.

    Example:
        >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> with jax.comm_budget(all_reduce=1):
        ...     total = jax.jit(lambda x: x.sum())(x)
        >>> total
        Array(32., dtype=float32)
    """

    def __init__(self, *, bytes: float | None = None, **counts: int):
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
        self.bytes = bytes
        self.allowed = counts
        self._calls: Counter[LaunchedProgram] = Counter()
        self._compiled: set[LaunchedProgram] = set()
        self._thread = 0

    def __enter__(self) -> Self:
        self._calls.clear()
        self._compiled.clear()
        self._thread = get_ident()
        launch_hooks.add(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launch_hooks.remove(self._record)
        if error is None:
            self.check()

    def _recreate_cm(self) -> "comm_budget":
        return comm_budget(bytes=self.bytes, **self.allowed)  # calls of a decorated function may overlap

    def _record(self, launch: LaunchedProgram, runs: bool) -> None:
        if get_ident() == self._thread:
            if runs:
                self._calls[launch] += 1
            else:
                self._compiled.add(launch)

    def plans(self) -> list[tuple[Plan, int]]:
        """Return the plans of the programs so far that contain collectives, and how many times each was called."""
        launches = {**dict.fromkeys(self._compiled, 1), **self._calls}
        plans = [(replan_report(launch.request, launch.chip), calls) for launch, calls in launches.items()]
        return [(plan, calls) for plan, calls in plans if plan.collectives]

    def check(self) -> None:
        """Raise CommBudgetExceeded if the programs so far exceed the budget."""
        plans = self.plans()
        counts: Counter[str] = Counter()
        for plan, calls in plans:
            for kind, count in plan.counts().items():
                counts[kind] += count * calls
        sent = sum(plan.wire_bytes * calls for plan, calls in plans)
        any_kind_allowed = self.bytes is not None and not self.allowed
        exceeded = [
            f"{count} {kind}, allowed: {self.allowed.get(kind, 0)}"
            for kind, count in counts.items()
            if not any_kind_allowed and count > self.allowed.get(kind, 0)
        ]
        if self.bytes is not None and sent > self.bytes:
            exceeded.append(f"{human_bytes(sent)} sent per device, allowed: {human_bytes(self.bytes)}")
        if exceeded:
            texts = [format_report(plan) + (f"\n  called {calls} times" if calls > 1 else "") for plan, calls in plans]
            raise CommBudgetExceeded(f"communication budget exceeded: {'; '.join(exceeded)}\n\n" + "\n\n".join(texts))

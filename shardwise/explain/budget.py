"""comm_budget: what the programs inside may send between devices, asserted.

with sw.comm_budget(all_reduce=1, bytes=2e6):
    step(params, batch)
"""

from collections import Counter
from contextlib import ContextDecorator
from difflib import get_close_matches
from threading import get_ident
from types import TracebackType
from typing import Any, Self, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.report.report import Report
from shardwise.execute.executor import Launch
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.execute.plan_report import replan_report
from shardwise.explain.text import format_report, human_bytes


@final
class CommBudgetExceeded(AssertionError):
    """Programs sent more between devices than their budget allows; its text has their plans."""


@final
class comm_budget(ContextDecorator):
    """What the programs inside may send: how many collectives of each kind, and how many `bytes` by each device.

    Kinds are named as in plans: all_reduce, all_gather, reduce_scatter, all_to_all, permute, take_window, rotate. Those
    that are not named may not occur, unless only `bytes` are given. Every call inside counts, of functions compiled
    long before too; what is only compiled counts as one call. In a call, a collective in a loop is one, and its bytes
    are those of all turns: as `explain` counts them. Programs that other threads run are not counted. At the end, what
    is over the budget is a CommBudgetExceeded, an AssertionError. It can decorate a function, whose every call then has
    the budget.

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
                hint = f"Did you mean {near[0]!r}?" if near else "Kinds are named as in plans."
                raise TypeError(f"comm_budget: there is no collective {kind!r}. {hint}")
            if not isinstance(count, int) or count < 0:
                raise TypeError(f"comm_budget: {kind} is how many there may be, not {count!r}")
        if bytes is not None and not bytes >= 0:
            raise TypeError(f"comm_budget: bytes is how many each device may send, not {bytes!r}")
        self.bytes = bytes
        self.allowed = counts
        self._calls: Counter[Launch] = Counter()
        self._compiled: set[Launch] = set()
        self._thread = 0

    def __enter__(self) -> Self:
        self._calls.clear()
        self._compiled.clear()
        self._thread = get_ident()
        launch_hooks.add(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launch_hooks.remove(self._see)
        if error is None:
            self.check()

    def _recreate_cm(self) -> "comm_budget":
        return comm_budget(bytes=self.bytes, **self.allowed)  # calls of a decorated function may overlap

    def _see(self, launch: Any, runs: bool) -> None:
        if get_ident() == self._thread:
            if runs:
                self._calls[launch] += 1
            else:
                self._compiled.add(launch)

    def plans(self) -> list[tuple[Report, int]]:
        """The plans of the programs so far that send anything, and how often each was called."""
        launches = {**dict.fromkeys(self._compiled, 1), **self._calls}
        found = [(replan_report(launch.request), count) for launch, count in launches.items()]
        return [(plan, count) for plan, count in found if plan.collectives]

    def check(self) -> None:
        """Raise a CommBudgetExceeded where what was sent so far is over the budget."""
        plans = self.plans()
        counts: Counter[str] = Counter()
        for plan, calls in plans:
            for kind, count in plan.counts().items():
                counts[kind] += count * calls
        sent = sum(plan.wire_bytes * calls for plan, calls in plans)
        any_kind = self.bytes is not None and not self.allowed
        over = [
            f"{count} {kind} where {self.allowed.get(kind, 0)} may be"
            for kind, count in counts.items()
            if not any_kind and count > self.allowed.get(kind, 0)
        ]
        if self.bytes is not None and sent > self.bytes:
            over.append(f"{human_bytes(sent)} sent by each device where {human_bytes(self.bytes)} may be")
        if over:
            texts = [format_report(plan) + (f"\n  called {calls} times" if calls > 1 else "") for plan, calls in plans]
            raise CommBudgetExceeded(f"over the communication budget: {'; '.join(over)}\n\n" + "\n\n".join(texts))

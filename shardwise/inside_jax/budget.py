"""`comm_budget` and `memory_budget` for programs of real JAX that Shardwise plans."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, final

from shardwise.compiler.plan.chip import Chip
from shardwise.explain import budget
from shardwise.explain import memory_budget as memory
from shardwise.explain.launch_budget import LaunchBudget
from shardwise.inside_jax import _jax


class _WatchedBudget(AbstractContextManager[Any]):
    """A budget of Shardwise for the calls inside of functions of `inside_jax.jit`."""

    def __init__(self, budget: LaunchBudget):
        self._budget = budget
        self._is_watched: Any = None

    def __enter__(self) -> Self:
        self._budget.__enter__()
        # Another context of JAX, in which its dispatch in C++ has no program yet: every call is seen.
        self._is_watched = _jax.watched_calls(object())
        self._is_watched.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_watched.__exit__(kind, error, trace)
        self._budget.__exit__(kind, error, trace)


@final
class comm_budget(_WatchedBudget):
    """Context manager that asserts a limit on the collectives of the calls inside of functions of `inside_jax.jit`.

    Every call in the block counts, as in `shardwise.comm_budget`. Functions of `jax.jit` do not count: XLA partitions
    them.

    Args:
        bytes: the most bytes that each device may send.
        launches: the most launches of collectives, as in `shardwise.comm_budget`.
        exposed_seconds: the most estimated time in which a device communicates and does not compute.
        hardware: the chip to plan for; by default, the devices of the mesh.
        **counts: the most collectives of each kind, named as in plans.

    Raises:
        CommBudgetExceeded: at the end of the block, if the programs inside exceed the budget.
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
        super().__init__(
            budget.comm_budget(
                bytes=bytes, launches=launches, exposed_seconds=exposed_seconds, hardware=hardware, **counts
            )
        )


@final
class memory_budget(_WatchedBudget):
    """Context manager that asserts a limit on the memory of each function of `inside_jax.jit` that is called inside.

    The memory is the peak of the plan: JAX compiles the function, and does not show its executable. Functions of
    `jax.jit` do not count.

    Args:
        bytes: the most bytes that a program may hold per device.

    Raises:
        TypeError: if `bytes` is not a nonnegative number.
        MemoryBudgetExceeded: at the end of the block, if a program inside exceeds the budget.
    """

    def __init__(self, bytes: float):
        super().__init__(memory.memory_budget(bytes))

"""Row: one figure, measured for every library. Case: a part of a suite that returns rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

from benchmarks.measure import Timing

Unit = Literal["seconds", "bytes", "flops", "collectives", "growth"]


@final
@dataclass(frozen=True)
class Row:
    """One figure. `bar` is the largest acceptable ratio of ours to the peer's; None if there is no bar.

    `expert` is the figure of the peer with sharding constraints by experts, and `expert_bar` the bar relative to it.
    """

    name: str
    unit: Unit
    ours: float
    peer: float
    bar: float | None = None
    median_ratio: float | None = None  # of single rounds; for times only
    expert: float | None = None
    expert_bar: float | None = None

    @staticmethod
    def timed(name: str, timing: Timing, bar: float | None = None) -> "Row":
        return Row(name, "seconds", timing.ours, timing.peer, bar, timing.median_ratio, timing.expert)

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's; None if the peer's is zero."""
        return self.ours / self.peer if self.peer else None

    @property
    def expert_ratio(self) -> float | None:
        """Ours divided by that of the experts; None if that is missing or zero."""
        return self.ours / self.expert if self.expert else None

    @property
    def within_bar(self) -> bool | None:
        """Whether the ratio is within the bar; None if there is no bar."""
        return None if self.bar is None else self.ours <= self.bar * self.peer

    @property
    def within_expert_bar(self) -> bool | None:
        """Whether the ratio to the experts is within its bar; None if there is no such bar."""
        bar, expert = self.expert_bar, self.expert
        return None if bar is None or expert is None else self.ours <= bar * expert

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "ratio": self.ratio,
            "median_ratio": self.median_ratio,
            "bar": self.bar,
            "within_bar": self.within_bar,
            "expert": self.expert,
            "expert_ratio": self.expert_ratio,
            "expert_bar": self.expert_bar,
            "within_expert_bar": self.within_expert_bar,
        }


@final
@dataclass(frozen=True)
class Case:
    """A part of a suite; its name is shown while it runs."""

    name: str
    run: Callable[[], list[Row]]

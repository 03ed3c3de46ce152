"""Retention: the rules that decide which saved steps are kept."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


def check_count(name: str, value: int | None) -> None:
    """Raise an error unless an argument is None or a positive integer.

    Raises:
        ValueError: if it is not.
    """
    if value is not None and (not isinstance(value, numbers.Integral) or value < 1):
        raise ValueError(f"{name} must be an integer that is at least 1, not {value!r}")


@final
@dataclass(frozen=True)
class Retention:
    """Rules for keeping steps. A step is kept if any rule keeps it. Without rules, all are kept.

    Attributes:
        last: keeps this many of the latest steps.
        every: keeps the steps that are multiples of it.
        best: keeps this many of the best steps.
        metric: the metric by which steps are compared.
        is_larger_better: whether larger values of the metric are better.
    """

    last: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    is_larger_better: bool = False

    def __post_init__(self) -> None:
        for name in ("last", "every", "best"):
            check_count(f"keep_{name}", getattr(self, name))
        if (self.best is None) != (self.metric is None):
            raise ValueError("keep_best needs a metric, and a metric needs keep_best")

    def obsolete(self, steps: Mapping[int, Mapping[str, float]], committed: int | None = None) -> list[int]:
        """Return the steps that are not kept.

        Args:
            steps: the metrics of each step.
            committed: the step that was just saved. It is always kept, like the latest step.
        """
        if self.last is self.every is self.best is None or not steps:
            return []
        ordered = sorted(steps)
        kept = {committed, *ordered[-(self.last or 1) :]}
        if self.every is not None:
            kept |= {step for step in ordered if step % self.every == 0}
        if self.best is not None and self.metric is not None:
            metric = self.metric
            measured = [step for step in ordered if not math.isnan(steps[step].get(metric, math.nan))]
            sign = -1 if self.is_larger_better else 1
            kept |= {*sorted(measured, key=lambda step: (sign * steps[step][metric], -step))[: self.best]}
        return [step for step in ordered if step not in kept]

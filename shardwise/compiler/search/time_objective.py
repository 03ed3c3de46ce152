"""TimeObjective: a plan is better if it is faster, sends fewer bytes, and needs about as much memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.timeline import Timeline, timeline
from shardwise.compiler.search.search import INADMISSIBLE

TIME_RATIO = 0.99  # a plan must be at least one percent faster to replace another
MEMORY_RATIO = 1.05  # and may need only slightly more memory: gathering everything up front would always be fast


@final
class TimeObjective:
    """The predicted seconds of a plan, compared with a plan that it could replace.

    Times are compared without overlap: a collective that is hidden now may be exposed by the next change.

    Args:
        now: the current plan.
        chip: the chip.
        donated: for each donated input, the output that reuses its buffer.

    Attributes:
        chip: the chip, without overlap.
        now: the timeline of the current plan.
    """

    def __init__(self, now: LocalProgram, chip: Chip, donated: Mapping[int, int]):
        self.chip = replace(chip, overlaps=False)
        self._donated = donated
        self._sent = now.sent
        self.now = self._timeline(now)

    @property
    def bound(self) -> float:
        """The seconds below which a plan is worth a change."""
        return TIME_RATIO * self.now.seconds

    def __call__(self, local: LocalProgram) -> float:
        if local.sent >= self._sent:
            return INADMISSIBLE
        after = self._timeline(local)
        return after.seconds if after.peak_bytes <= MEMORY_RATIO * self.now.peak_bytes else INADMISSIBLE

    def _timeline(self, local: LocalProgram) -> Timeline:
        return timeline(local, self.chip, donated=self._donated, lists_alive=False)

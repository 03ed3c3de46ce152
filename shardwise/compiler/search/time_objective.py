"""TimeObjective: a plan is better if it is faster, sends fewer bytes, and needs about as much memory."""

from collections.abc import Collection
from dataclasses import replace
from typing import final

from shardwise.compiler.partition.liveness import live_value_bytes
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.streams import simulated_seconds
from shardwise.compiler.search.search import INADMISSIBLE

TIME_RATIO = 0.99  # a plan must be at least one percent faster to replace another
MEMORY_RATIO = 1.05  # and may need only slightly more memory: gathering everything up front would always be fast


@final
class TimeObjective:
    """The predicted seconds of a plan, compared with a plan that it could replace.

    Times are compared without overlap: a collective that is hidden now may be exposed by the next change.

    Args:
        now: the program of the current plan.
        chip: the chip.
        donated: the inputs whose buffers are reused for outputs.

    Attributes:
        seconds: the predicted seconds of the current plan.
    """

    def __init__(self, now: LocalProgram, chip: Chip, donated: Collection[int]):
        self._chip = replace(chip, overlaps=False)
        self._donated = donated
        self._sent = now.sent
        self.seconds = simulated_seconds(now, self._chip)
        self._live_bytes = live_value_bytes(now, donated)

    @property
    def bound(self) -> float:
        """The seconds below which a plan is worth a change."""
        return TIME_RATIO * self.seconds

    def __call__(self, local: LocalProgram) -> float:
        if local.sent >= self._sent or live_value_bytes(local, self._donated) > MEMORY_RATIO * self._live_bytes:
            return INADMISSIBLE
        return simulated_seconds(local, self._chip)

"""SlowdownMeter: how much longer steps take while a snapshot is copied beside them."""

from statistics import fmean, median
from typing import final

_FEWEST_STEPS = 3  # without a copy, for a slowdown to be known
_LARGEST_DEVIATION = 0.2  # of the mean of these steps from their median


@final
class SlowdownMeter:
    """Compares the steps beside which a snapshot was copied with the other steps since then.

    It sees when steps end in the program. If the program does not wait for the result of each step, the times are not
    regular, and say nothing about the devices; then no slowdown is known.
    """

    def __init__(self) -> None:
        self._start: float | None = None  # of the step that runs; None if that is not known
        self._is_copying = False  # whether a snapshot was copied then
        self._copying: list[float] = []  # the seconds of steps
        self._alone: list[float] = []

    def end_step(self, now: float, is_copying: bool) -> None:
        """Count a step, after which the next one starts.

        Args:
            now: the time, in seconds.
            is_copying: whether a snapshot is copied now, so beside the next step.
        """
        if self._start is not None:
            (self._copying if self._is_copying else self._alone).append(now - self._start)
        self._start, self._is_copying = now, is_copying

    def start_copy(self, now: float) -> None:
        """Forget the steps before a snapshot that is copied from now on."""
        self._copying, self._alone = [], []
        self._start, self._is_copying = now, True

    @property
    def slowdown(self) -> float:
        """The seconds by which all steps beside the last copy took longer; 0 if that is not known."""
        if len(self._alone) < _FEWEST_STEPS:
            return 0.0
        usual = fmean(self._alone)
        if abs(usual - median(self._alone)) > _LARGEST_DEVIATION * usual:
            return 0.0
        return max(0.0, sum(self._copying) - len(self._copying) * usual)

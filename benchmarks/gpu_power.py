"""The power and the clock of the first GPU, which nvidia-smi reports in the background."""

import subprocess
from shutil import which
from typing import Any, Self, final

_QUERY = "--query-gpu=power.draw.instant,clocks.sm"
_PERIOD_MS = 200


@final
class PowerLog:
    """Read power and clock inside a `with` block.

    Attributes:
        watts: the mean power; 0 without nvidia-smi.
        megahertz: the mean clock; 0 without nvidia-smi.
    """

    def __init__(self) -> None:
        self.watts = self.megahertz = 0.0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if which("nvidia-smi"):
            command = ["nvidia-smi", "--id=0", _QUERY, "--format=csv,noheader,nounits", f"--loop-ms={_PERIOD_MS}"]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            )
        return self

    def __exit__(self, *error: Any) -> None:
        if self._process is not None:
            self._process.terminate()
            self.watts, self.megahertz = mean_sample(self._process.communicate()[0])


def mean_sample(text: str) -> tuple[float, float]:
    """Return the means of two columns, such as `689.12, 1500`. Lines without two numbers are left out."""
    samples = []
    for line in text.splitlines():
        try:
            watts, megahertz = map(float, line.split(","))
        except ValueError:
            continue
        samples.append((watts, megahertz))
    if not samples:
        return 0.0, 0.0
    first, second = zip(*samples, strict=True)
    return sum(first) / len(samples), sum(second) / len(samples)

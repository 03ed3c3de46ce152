"""Steps: the names of their checkpoints in the folder of a training run, such as `step-30`."""

import operator
import re

from shardwise.checkpoints.location import Location

# No leading zeros and only ASCII digits, so that names and steps correspond one to one.
_NAME = re.compile("step-(0|[1-9][0-9]*)")


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step}"


def parse_step(name: str) -> int | None:
    """Return the step of a checkpoint with this name; None if it is not the name of a step."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def list_steps(location: Location) -> list[int]:
    """Return the committed steps in a folder, in ascending order."""
    return sorted(step for name in location.children() if (step := parse_step(name)) is not None)


def checked_step(step: int) -> int:
    """Return a step as a Python integer.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is negative.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"a step is an integer, not {step!r}") from None
    if number < 0:
        raise ValueError(f"steps are numbered from 0 on, not {number}")
    return number

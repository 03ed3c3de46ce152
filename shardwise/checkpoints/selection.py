"""Selection: all processes choose the same step to restore, and see the same checkpoint of it.

Processes may see different listings of one folder, because file systems cache them. So they exchange the listings and
the identity of the checkpoint before any of them reads data.
"""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import final

from shardwise.checkpoints.identity import identity_of
from shardwise.checkpoints.location import Location
from shardwise.checkpoints.steps import list_steps, step_name
from shardwise.errors import CheckpointError, CheckpointNotFound
from shardwise.runtime.group import Group

# The time for file system caches to become consistent. The processes count attempts, because their clocks differ.
_ATTEMPTS = 40
_PAUSE = 0.25  # seconds between two attempts
_LISTED_ONLY = 3  # attempts after which a listed step that no process can open counts as missing


@final
@dataclass(frozen=True)
class Selection:
    """The step that all processes restore.

    Attributes:
        step: the step.
        identity: the identity of its checkpoint.
        steps: the steps that any process lists, in ascending order.
    """

    step: int
    identity: str
    steps: tuple[int, ...]


def select_step(group: Group, location: Location, step: int | None, skipped: Collection[int]) -> Selection | None:
    """Choose the step to restore. All processes of the group call it, and return or raise the same.

    Args:
        group: the processes.
        location: the folder of the steps.
        step: the step to restore; None for the latest.
        skipped: the steps that may not be chosen as the latest.

    Returns:
        The step; None if `step` is None and there are no steps.

    Raises:
        CheckpointNotFound: if no process has the step.
        CheckpointError: if the processes request different steps, if one of them cannot read the folder, or if they do
            not see the same checkpoint.
    """
    unopened: Counter[int] = Counter()
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        messages = group.gather(lambda: (step, list_steps(location)))
        _check_same_step(group, [wanted for wanted, _ in messages])
        steps = tuple(sorted({each for _, listing in messages for each in listing}))
        absent = {each for each, count in unopened.items() if count >= _LISTED_ONLY}
        chosen = max((each for each in steps if each not in skipped and each not in absent), default=None)
        chosen = chosen if step is None else step
        if chosen is None:
            return None
        checkpoint = location.child(step_name(chosen))
        identities = group.gather(partial(identity_of, checkpoint))
        first = identities[0]
        if first is not None and all(identity == first for identity in identities):
            return Selection(chosen, first, steps)
        if all(identity is None for identity in identities):
            if step is not None:
                raise missing_step(location, step, steps)
            unopened[chosen] += 1
    raise CheckpointError(f"{checkpoint}: {_difference(group, identities)}. All processes must reach the same folder.")


def missing_step(location: Location, step: object, steps: Collection[int]) -> CheckpointNotFound:
    """Return the error for a step that does not exist, with the steps that do."""
    saved = f"the last ones that it has are {', '.join(map(str, sorted(steps)[-5:]))}" if steps else "it has none"
    hint = ""
    if isinstance(step, int) and any(each > step >= 0 for each in steps):
        hint = ". A step is deleted when the `keep_` arguments of the Manager that saves do not keep it"
    return CheckpointNotFound(f"{location} has no step {step!r}: {saved}{hint}")


def _check_same_step(group: Group, wanted: list[int | None]) -> None:
    if any(step != wanted[0] for step in wanted):
        described = ", ".join(
            f"process {process}: {'the latest' if step is None else step}"
            for process, step in zip(group.processes, wanted, strict=True)
        )
        raise CheckpointError(f"{group.name}: the processes restore different steps ({described}): pass the same step")


def _difference(group: Group, identities: list[str | None]) -> str:
    """Describe how the views of the processes differ."""
    present = [process for process, identity in zip(group.processes, identities, strict=True) if identity is not None]
    absent = [process for process in group.processes if process not in present]
    if not present:
        return "the folder lists it, but no process can open it"
    if absent:
        return f"process {present[0]} sees this checkpoint, and process {absent[0]} does not"
    first = identities[0]
    other = next(process for process, each in zip(group.processes, identities, strict=True) if each != first)
    return f"process {group.processes[0]} and process {other} see different checkpoints"

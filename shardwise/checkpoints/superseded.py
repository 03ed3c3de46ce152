"""Superseded steps: steps after the step that a run was restored from, which the run will not continue.

They are corrupt, or the program went back to an earlier step on purpose. They would count as the latest steps, so that
new steps would be pruned and a restart would restore them; and steps with the same number could not be saved. So the
next save sets them aside: it renames them and deletes nothing.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from shardwise.checkpoints.identity import identity_of
from shardwise.checkpoints.location import Location
from shardwise.checkpoints.steps import step_name

_log = logging.getLogger("shardwise")


@final
@dataclass(frozen=True)
class SupersededSteps:
    """The steps that the next save sets aside; the same in all processes.

    Attributes:
        abandoned: the steps after the requested step.
        corrupt: the steps that could not be restored, with the identities of their checkpoints.
    """

    abandoned: frozenset[int] = frozenset()
    corrupt: Mapping[int, str] = field(default_factory=dict)

    def includes(self, step: int) -> bool:
        """Return whether a save of this step replaces one of the steps."""
        return step in self.abandoned or step in self.corrupt

    def set_aside(self, location: Location, step: int) -> None:
        """Set the steps aside, directly before a step is committed.

        A step after all abandoned ones leaves them in place: it does not go back behind them, and an earlier step may
        have been restored only for inspection. A step that another program has deleted or replaced is left in place.
        Files of a partly deleted step with the same number, which has no manifest and is not listed, are set aside too.

        Args:
            location: the folder of the steps.
            step: the step to commit.

        Raises:
            CheckpointError: if that fails.
        """
        reasons = dict.fromkeys(self.corrupt, "corrupt")
        if step <= max(self.abandoned, default=-1):
            reasons |= dict.fromkeys(self.abandoned, "abandoned")
        for each, reason in sorted(reasons.items()):
            checkpoint = location.child(step_name(each))
            identity = identity_of(checkpoint)
            if identity is not None and self.corrupt.get(each, identity) == identity:
                _set_aside(checkpoint, reason)
        if (target := location.child(step_name(step))).has_remains():
            _set_aside(target, "corrupt")


def _set_aside(checkpoint: Location, reason: str) -> None:
    _log.warning("%s is %s; it is kept as %s", checkpoint, reason, checkpoint.set_aside(reason))

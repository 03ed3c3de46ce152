"""Task: one unit of work of a pipeline rank, and the tasks that it depends on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

Kind = Literal["F", "I", "W", "B"]
FORWARD: Kind = "F"
INPUT: Kind = "I"  # the input gradient
WEIGHT: Kind = "W"  # the weight gradient
BACKWARD: Kind = "B"  # both gradients in one task


@final
@dataclass(frozen=True, order=True)
class Task:
    """One unit of work: a forward or backward computation of one stage for one microbatch.

    Attributes:
        kind: "F" for the forward pass, "I" for the input gradient, "W" for the weight gradient, "B" for both gradients.
        stage: the index of the stage.
        microbatch: the index of the microbatch.

    Example:
        >>> str(jax.parallel.Task("F", 1, 3))
        'F1.3'
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"

    @property
    def propagates_cotangents(self) -> bool:
        """Whether this task computes the cotangent of the stage's input."""
        return self.kind in (INPUT, BACKWARD)

    @property
    def ends_activations(self) -> bool:
        """Whether the residuals of the stage and microbatch can be freed after this task."""
        return self.kind in (WEIGHT, BACKWARD)

    def dependencies(self, stages: int) -> Iterator[tuple["Task", ...]]:
        """Yield the tasks whose results this task needs, each as alternatives of which a schedule contains one."""
        if self.kind == FORWARD:
            if self.stage > 0:
                yield (Task(FORWARD, self.stage - 1, self.microbatch),)
            return
        if self.kind == WEIGHT:
            yield (Task(INPUT, self.stage, self.microbatch),)
            return
        yield (Task(FORWARD, self.stage, self.microbatch),)
        if self.stage + 1 < stages:
            yield tuple(Task(kind, self.stage + 1, self.microbatch) for kind in (INPUT, BACKWARD))

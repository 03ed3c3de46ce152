"""StepRoles: what the leaves of a training step's arguments are: batch, state, parameters."""

from typing import Any, final

from shardwise import tree_util
from shardwise.compiler.candidates.next_outputs import next_outputs
from shardwise.compiler.dtypes import is_key
from shardwise.parallel.mpmd.training_step import TrainingStep


@final
class StepRoles:
    """What the leaves of a step's arguments are.

    Attributes:
        positions: for each leaf, the position of its argument.
        names: for each leaf, its name in messages.
        next_outputs: for each leaf that is state, the result that is passed as it to the next call.
        batch: the leaves that have the rows of the batch.
        params: the other leaves that the loss reads.
        differentiated: the leaves that have a gradient.

    Args:
        step: the traced step.
        args: its arguments.
        batch: the positions of the arguments that have the rows of the batch; None for those of which the step returns
            no new values.
    """

    def __init__(self, step: TrainingStep, args: tuple[Any, ...], batch: frozenset[int] | None):
        program, paths = step.program, [path for path, _ in tree_util.tree_flatten_with_path(args)[0]]
        self.positions = [path[0].idx for path in paths]
        self.names = [f"argument {path[0].idx}{tree_util.keystr(path[1:])}" for path in paths]
        self.next_outputs = next_outputs(program, program, args, step.structure, step.arguments)
        if batch is None:
            batch = frozenset(self.positions).difference(self.positions[index] for index in self.next_outputs)
        self.batch = [
            index
            for index, position in enumerate(self.positions)
            if position in batch and program.in_types[index].ndim and not is_key(program.in_types[index].dtype)
        ]
        self.params = sorted(step.read.difference(self.batch))
        self.differentiated = step.differentiated

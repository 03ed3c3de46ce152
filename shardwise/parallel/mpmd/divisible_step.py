"""DivisibleStep: a training step that may be divided into stages, traced for its arguments."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise import tree_util
from shardwise.api.arguments import describe_function
from shardwise.api.jit import Jitted
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.candidates.dim_groups import dim_groups
from shardwise.compiler.candidates.unfold import unfold
from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.integers import is_integer
from shardwise.parallel.mpmd.stage_rows import StageRows
from shardwise.parallel.mpmd.step_loss import StepLoss
from shardwise.parallel.mpmd.step_roles import StepRoles
from shardwise.parallel.mpmd.training_step import TrainingStep, trace_training_step


@final
@dataclass(frozen=True, eq=False)
class DivisibleStep:
    """A training step and its arguments.

    Attributes:
        function: the step, not jitted.
        label: the step, for messages.
        leaves: the leaves of its arguments.
        structure: the structure of its arguments.
        traced: the step, traced apart from its loss.
        roles: what the leaves of its arguments are.
        loss: its loss.
        donated: the leaves whose memory the results may use.
    """

    function: Callable[..., Any]
    label: str
    leaves: Sequence[Any]
    structure: Any
    traced: TrainingStep
    roles: StepRoles
    loss: StepLoss
    donated: frozenset[int]

    @staticmethod
    def from_call(
        step: Callable[..., Any], args: tuple[Any, ...], batch_argnums: int | Sequence[int] | None
    ) -> "DivisibleStep":
        """Trace a step, which may be jitted, for arguments.

        Raises:
            StrategyError: if it has options of `jit` that do not apply to stages, or no loss that can be divided.
        """
        function, options = (step.function, step.options) if isinstance(step, Jitted) else (step, None)
        label = describe_function(step)
        if options is not None and options.static:
            raise StrategyError(f"mpmd_step: {label} has static arguments: bind them with functools.partial.")
        if options is not None and (options.in_shardings is not None or options.out_shardings is not None):
            raise StrategyError(
                f"mpmd_step: {label} is jitted with `in_shardings` or `out_shardings`, but stages have meshes of their "
                "own: leave them out. Arguments keep the specs of their shardings."
            )
        leaves, structure = flatten(args)
        traced = trace_training_step(function, structure, [type_of(leaf) for leaf in leaves])
        roles = StepRoles(traced, args, _positions(batch_argnums, len(args)))
        donated = {
            index
            for index, position in enumerate(roles.positions)
            if options is not None and options.donate.has(position, len(args))
        }
        loss = StepLoss(function, structure, traced, roles)
        return DivisibleStep(function, label, leaves, structure, traced, roles, loss, frozenset(donated))

    @cached_property
    def followers(self) -> dict[int, int]:
        """The parameters by whose dims the update combines other state of their shape, such as an optimizer's."""
        inputs = self.traced.program.inputs
        groups = dim_groups(unfold(self.traced.program).equations)

        def dims(index: int) -> tuple[int, ...]:
            return tuple(groups.find(inputs[index], dim) for dim in range(inputs[index].type.ndim))

        by_dims = {dims(index): index for index in self.traced.differentiated if inputs[index].type.ndim}
        return {
            index: by_dims[dims(index)]
            for index in self.roles.next_outputs
            if index not in self.traced.differentiated and dims(index) in by_dims
        }


def flatten(tree: object) -> tuple[list[Any], Any]:
    """Return the leaves of a tree, among which are StageRows, and its structure."""
    return tree_util.tree_flatten(tree, is_leaf=lambda leaf: isinstance(leaf, StageRows))


def _positions(batch_argnums: int | Sequence[int] | None, count: int) -> frozenset[int] | None:
    if batch_argnums is None:
        return None
    numbers = list(batch_argnums) if isinstance(batch_argnums, (Collection, np.ndarray)) else [batch_argnums]
    if wrong := [number for number in numbers if not is_integer(number) or not -count <= number < count]:
        raise StrategyError(f"mpmd_step: batch_argnums has {wrong[0]!r}, but the step has {count} arguments")
    return frozenset(int(number) % count for number in numbers)

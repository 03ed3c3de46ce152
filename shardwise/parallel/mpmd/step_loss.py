"""StepLoss: the loss of a training step, as a model that is divided into stages."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.api.arguments import describe_function
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.errors import StrategyError
from shardwise.lax import stop_gradient
from shardwise.parallel.independent_rules import check_independent_rules
from shardwise.parallel.linear_cotangents import check_linear_cotangents
from shardwise.parallel.mpmd.split_stages import StagedModel, divide_model, has_boundaries, inputs_before_last_stage
from shardwise.parallel.mpmd.step_roles import StepRoles
from shardwise.parallel.mpmd.training_step import TrainingStep, loss_of_step
from shardwise.parallel.row_mean import Combination, check_row_mean, check_single_row
from shardwise.random import wrap_key_data


@final
class StepLoss:
    """The loss of a step, as a function of the leaves that it reads.

    Attributes:
        early: the leaves of the batch that stages before the last one need.
        late: the other leaves of the batch that the loss reads.
        auxiliary: the indices of the auxiliary results that the step uses, among the results of the loss.
        has_boundaries: whether it has calls of `stage_boundary`.
    """

    def __init__(self, function: Callable[..., Any], structure: Any, step: TrainingStep, roles: StepRoles):
        self._function = function
        self._label = describe_function(function)
        self._structure = structure
        self._types = step.program.in_types[: step.arguments]
        self._roles = roles
        rows = [index for index in roles.batch if index in step.read]
        if not rows:
            raise StrategyError(
                "mpmd_step: the loss reads no batch: all arguments that it depends on are returned with new values. "
                "Pass the positions of the batch's arguments as `batch_argnums`."
            )
        if len({self._types[index].shape[0] for index in rows}) > 1:
            named = ", ".join(f"{roles.names[index]} of type {self._types[index]}" for index in rows)
            raise StrategyError(
                f"mpmd_step: the arrays of the batch differ in their rows, which are dim 0: {named}. Pass the "
                "positions of the batch's arguments as `batch_argnums`."
            )
        self._rows = rows
        self._size = self._types[rows[0]].shape[0]
        used = step.program.used
        self.auxiliary = [index for index, value in enumerate(step.loss_inputs) if index and value in used]
        self._programs: dict[int, tuple[Program, list[Any]]] = {}  # by the number of rows
        program, _ = self._program(self._size)
        self.has_boundaries = has_boundaries(program)
        needed = inputs_before_last_stage(program, len(roles.params))
        early = [index for number, index in enumerate(rows, len(roles.params)) if number in needed]
        self.early = early or rows[:1]
        self.late = [index for index in rows if index not in self.early]

    def check_mean(self, microbatches: int) -> tuple[Combination, ...]:
        """Check that the loss is the mean over the rows of the batch: then it is the mean of those of microbatches.

        Returns:
            How the auxiliary results of microbatches combine.
        """
        size = self._size
        if size % microbatches:
            raise StrategyError(
                f"mpmd_step: the batch of {self._label} has {size} rows, which are not divisible into {microbatches} "
                "microbatches: change the size of the batch, or `microbatches`."
            )
        rows = max(2, size // microbatches)  # one row is no different from one of which there is no other
        label, more = f"the loss of {self._label}", size if size > rows else 2 * rows
        (program, captured), (larger, others) = self._program(rows), self._program(more)
        check_linear_cotangents(program, label)
        positions = range(len(self._roles.params), len(self._roles.params) + len(self._rows))
        combinations = check_row_mean(dce(inline(program)), dce(inline(larger)), positions, label, (captured, others))
        check_independent_rules(program, larger, (rows, more), label)
        if size == microbatches:
            check_single_row(dce(inline(program)), dce(inline(self._program(1)[0])), positions, label)
        return combinations

    def _program(self, count: int) -> tuple[Program, list[Any]]:
        """Return the program of the loss for a number of rows, from parameters and batch, and what it closes over."""
        if count not in self._programs:
            indices = [*self._roles.params, *self._rows]
            types = [
                type.with_shape((count, *type.shape[1:])) if index in self._rows else type
                for index, type in ((index, self._types[index]) for index in indices)
            ]
            try:
                self._programs[count] = build(lambda *leaves: self._results(indices, leaves), types, "loss")
            except (TypeError, ValueError, IndexError) as error:
                if count == self._size:
                    raise
                named = ", ".join(self._roles.names[index] for index in self._rows)
                raise StrategyError(
                    f"mpmd_step: the loss of {self._label} does not accept {count} rows instead of {self._size}: "
                    f"{error}\n  The arrays of the batch are {named}: pass the positions of other arguments as "
                    "`batch_argnums`."
                ) from error
        return self._programs[count]

    def divide(self, leaves: Sequence[Any], microbatches: int, stages: int | Sequence[int] | None) -> StagedModel:
        """Return the stages of the loss."""
        params, batch, *targets = self.arguments(leaves)
        return divide_model(self.model, params, batch, tuple(targets), microbatches, stages, bool(self.auxiliary))

    def arguments(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """Return the arguments of `model`: the parameters, the batch, and the targets if there are any."""
        params, early, late = ([leaves[index] for index in group] for group in self._groups)
        return [params, early, late] if late else [params, early]

    def model(self, params: Sequence[Any], *batch: Sequence[Any]) -> Any:
        """Return the loss; if the step uses auxiliary results, a pair of it and their list."""
        loss, *auxiliary = self._results(self._order, [*params, *(leaf for leaves in batch for leaf in leaves)])
        return (loss, auxiliary) if auxiliary else loss

    @property
    def _groups(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        return self._roles.params, self.early, self.late

    @property
    def _order(self) -> list[int]:
        return [index for group in self._groups for index in group]

    def _results(self, indices: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """Return the loss and its auxiliary results for some leaves of the arguments, the only ones that it reads."""
        given = dict(zip(indices, values, strict=True))
        constant = set(indices).difference(self._roles.differentiated)
        leaves = [
            _placeholder(type)
            if index not in given
            else stop_gradient(given[index])
            if index in constant
            else given[index]
            for index, type in enumerate(self._types)
        ]
        results = loss_of_step(self._function, self._structure.unflatten(leaves))
        return [results[index] for index in (0, *self.auxiliary)]


def _placeholder(type: ArrayType) -> Any:
    """Return an array that nothing depends on."""
    if is_key(type.dtype):
        words = zeros_of(ArrayType((*type.shape, type.dtype.words), np.dtype(np.uint32)))
        return wrap_key_data(words, dtype=type.dtype)
    return zeros_of(type)

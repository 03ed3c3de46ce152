"""Activations: the values that a step computes for the rows of its batch, with the layouts that the planner chose.

A value is an activation if one of its dims is in the same dim group as a dim of the batch. Gradients of activations are
activations too; gradients of weights are not.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from shardwise.compiler.candidates.dim_groups import dim_groups
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Source
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.explain.text import align, human_bytes

_ROWS = 20  # the number of activations to print


@final
@dataclass(frozen=True)
class Activation:
    """A value that a step computes, and its layout.

    Attributes:
        op: the op that computes it.
        type: its dtype and shape.
        layout: the axes that shard each dim, and the axes over which the value is partial.
        shard_bytes: the bytes of one shard.
        source: the user's line.
    """

    op: str
    type: str
    layout: Layout
    shard_bytes: int
    source: Source

    @property
    def spec(self) -> PartitionSpec:
        """The layout as a PartitionSpec, for `lax.with_sharding_constraint`, which reduces a partial value."""
        return spec_of(Layout(self.layout.dims))


@final
class Activations(tuple[Activation, ...]):
    """The activations of a step, in program order. It prints as a table of the largest."""

    def __str__(self) -> str:
        if not self:
            return "no activations: no value has rows of the batch"
        merged: dict[tuple[str, Layout, int, str], list[str]] = {}
        for row in sorted(self, key=lambda row: -row.shard_bytes):
            merged.setdefault((row.type, row.layout, row.shard_bytes, str(row.source)), []).append(row.op)
        head = ["activation", "layout", "per device", "line", "ops"]
        rows = [
            [type, str(layout), human_bytes(shard_bytes), line, ", ".join(dict.fromkeys(ops))]
            for (type, layout, shard_bytes, line), ops in list(merged.items())[:_ROWS]
        ]
        more = len(merged) - _ROWS
        return "\n".join(
            [*align([head, *rows], (20, 20, -10, 10, 0)), *([f"  and {more} smaller ones"] if more > 0 else [])]
        )

    __repr__ = __str__


def activations(
    problem: LayoutProblem, plan: LayoutPlan, state: Collection[int], batch: Collection[int]
) -> Activations:
    """Return the activations of a planned program.

    Args:
        problem: the program.
        plan: the layouts of all values.
        state: the inputs that are state.
        batch: the inputs that are batch.
    """
    groups = dim_groups(problem.unfolded.equations)
    inputs = problem.program.inputs

    def groups_of(numbers: Collection[int]) -> set[int]:
        return {groups.find(inputs[number], dim) for number in numbers for dim in range(inputs[number].type.ndim)}

    batch_groups = groups_of(batch) - groups_of(state)
    return Activations(
        Activation(
            equation.op.name,
            str(value.type),
            layout,
            value.type.with_shape(
                layout.shard_shape(layout.padded_shape(value.type.shape, problem.mesh), problem.mesh)
            ).nbytes,
            equation.source,
        )
        for equation in problem.planned
        if equation.op.name != "constrain" or equation.inputs[0] not in inputs
        for value, layout in zip(equation.outputs, plan.choices[equation].results, strict=True)
        if any(groups.find(value, dim) in batch_groups for dim in range(value.type.ndim))
    )

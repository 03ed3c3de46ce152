"""Plan: the layouts that were chosen, as plain data."""

from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.plan.hardware import CPU, Chip
from shardwise.compiler.shardings.layout import Layout

SEPARATOR = " ; "  # between layouts in the text of a plan


@final
@dataclass(frozen=True)
class Choice:
    """How one equation lies on the mesh: the layout in which it takes each operand and leaves each result."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]


@final
@dataclass(frozen=True, eq=False)
class LayoutPlan:
    """A choice for every equation that is not free, and the layout of every output. One device leaves no choice.

    `chip` is what it was chosen for.
    """

    choices: dict[Equation, Choice]
    outputs: tuple[Layout, ...]
    chip: Chip = CPU

    def __str__(self) -> str:
        lines = [
            f"  {equation.op.name}: {format_layouts(choice.operands)} -> {format_layouts(choice.results)}"
            for equation, choice in self.choices.items()
        ]
        return "\n".join(["plan {", *lines, f"  return {format_layouts(self.outputs)}", "}"])


def format_layouts(layouts: tuple[Layout, ...]) -> str:
    """Return the text of several layouts."""
    return SEPARATOR.join(map(str, layouts))

"""LayoutPlan: the chosen layouts, as plain data.

The `Plan` that users see is a report on a compiled program: see `report/report.py`.
"""

from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.shardings.layout import Layout

SEPARATOR = " ; "  # between layouts in a formatted plan


@final
@dataclass(frozen=True)
class Choice:
    """The layouts of one equation: how it reads each operand and produces each result."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]


@final
@dataclass(frozen=True, eq=False)
class LayoutPlan:
    """The layouts of all planned equations and outputs.

    Attributes:
        choices: the choice for every planned equation; empty for a single device.
        outputs: the layouts of the program's outputs.
        chip: the chip whose cost model chose the plan.
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
    """Format several layouts as a string."""
    return SEPARATOR.join(map(str, layouts))

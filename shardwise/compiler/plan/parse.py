"""Parser for the text of a plan, given the program that it is for.

plan {
  dot: P('data', None) ; P(None, 'model') -> P('data', 'model')
  return P('data', 'model')
}
"""

from shardwise.compiler.plan.plan import SEPARATOR, Choice, LayoutPlan
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.shardings.layout import Layout, parse_layout
from shardwise.errors import ProgramError


def parse_plan(text: str, sharded: ShardedProgram) -> LayoutPlan:
    """Return the plan for `sharded` that prints as `text`.

    Raises:
        ProgramError: if the text is not a plan, or not one for this program.
    """
    head, *rows, last, end = text.strip().splitlines()
    if head != "plan {" or end != "}" or not last.strip().startswith("return"):
        raise ProgramError("a plan consists of 'plan {', one line per equation, 'return …' and '}'")
    planned = sharded.planned
    if len(planned) != len(rows):
        raise ProgramError(f"the plan has {len(rows)} lines for {len(planned)} equations of {sharded.program.name}")
    choices = {}
    for number, (equation, row) in enumerate(zip(planned, rows, strict=True), 2):
        name, _, layouts = row.strip().partition(": ")
        if name != equation.op.name:
            raise ProgramError(f"line {number}: a choice for {name!r}, but the equation is {equation.op.name!r}")
        operands, _, results = layouts.partition("-> ")
        choices[equation] = Choice(_split(operands), _split(results))
    return LayoutPlan(choices, _split(last.strip().removeprefix("return")))


def _split(text: str) -> tuple[Layout, ...]:
    return tuple(parse_layout(part) for part in text.strip().split(SEPARATOR)) if text.strip() else ()

"""A Plan as text, and back, beside the program that it is for.

plan {
  dot: P('data', None) ; P(None, 'model') -> P('data', 'model')
  return P('data', 'model')
}
"""

from shardwise.compiler.plan.plan import Choice, Plan
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.shardings.layout import Layout, parse_layout
from shardwise.errors import ProgramError

_BETWEEN = " ; "


def format_plan(plan: Plan) -> str:
    """The text of a plan: one line an equation, in order."""
    lines = [
        f"  {equation.op.name}: {_join(choice.operands)} -> {_join(choice.results)}"
        for equation, choice in plan.choices.items()
    ]
    return "\n".join(["plan {", *lines, f"  return {_join(plan.outputs)}", "}"])


def parse_plan(text: str, sharded: ShardedProgram) -> Plan:
    """The plan for `sharded` that prints as `text`."""
    head, *rows, last, end = text.strip().splitlines()
    if head != "plan {" or end != "}" or not last.strip().startswith("return"):
        raise ProgramError("a plan is 'plan {', one line an equation, 'return …' and '}'")
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
    return Plan(choices, _split(last.strip().removeprefix("return")))


def _join(layouts: tuple[Layout, ...]) -> str:
    return _BETWEEN.join(map(str, layouts))


def _split(text: str) -> tuple[Layout, ...]:
    return tuple(parse_layout(part) for part in text.strip().split(_BETWEEN)) if text.strip() else ()

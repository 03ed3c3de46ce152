"""lower: the text of the module that XLA compiles, for one device of many (replica mode)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.lower.hlo import Builder, HloValue, tensor
from shardwise.compiler.ops.collective import Collective
from shardwise.compiler.ops.remat import Barrier
from shardwise.compiler.partition.local import LocalProgram


@final
@dataclass(frozen=True, eq=False)
class StableHlo:
    """A module's text; `devices` run it, each on its own pieces. `aliases`: inputs that give outputs their memory."""

    text: str
    devices: int
    aliases: dict[int, int]


def lower(local: LocalProgram, donated: Sequence[bool] = ()) -> StableHlo:
    """StableHLO for a local program; the memory of `donated` inputs is reused where an output has their type."""
    program = local.program
    builder = Builder(local.mesh)
    env: dict[Value, HloValue] = {
        value: HloValue(f"%arg{number}", value.type) for number, value in enumerate(program.inputs)
    }
    for run in _runs(program):
        if isinstance(run[0].op, Barrier):
            builder.at(run[0].source, "barrier")
            passed = builder.barrier([env[equation.inputs[0]] for equation in run])
            env.update(zip((equation.outputs[0] for equation in run), passed, strict=True))
        else:
            _lower_equation(run[0], builder, env)
    aliases = _aliases(program, donated)
    marks = {number: f" {{tf.aliasing_output = {output} : i32}}" for number, output in aliases.items()}
    heads = ", ".join(
        f"%arg{number}: {tensor(value.type)}{marks.get(number, '')}" for number, value in enumerate(program.inputs)
    )
    types = ", ".join(tensor(value.type) for value in program.outputs)
    tables = "".join(f"{head}\n" for head in builder.heads)
    body = "\n    ".join(builder.lines)
    names = ", ".join(env[value].name for value in program.outputs)
    name = re.sub(r"\W", "_", program.name) or "main"
    text = (
        f"{tables}module @{name} {{\n  func.func public @main({heads}) -> ({types}) {{\n    {body}\n"
        f"    return{' ' if names else ''}{names}{' : ' if types else ''}{types}\n  }}\n}}\n"
    )
    return StableHlo(text, local.mesh.size, aliases)


def _runs(program: Program) -> Iterator[list[Equation]]:
    """Equations one by one, but neighbouring barriers together: what follows one then waits for all of them."""
    barriers: list[Equation] = []
    for equation in program.equations:
        joins = isinstance(equation.op, Barrier) and all(equation.inputs[0] not in b.outputs for b in barriers)
        if barriers and not joins:
            yield barriers
            barriers = []
        if isinstance(equation.op, Barrier):
            barriers.append(equation)
        else:
            yield [equation]
    if barriers:
        yield barriers


def _lower_equation(equation: Equation, builder: Builder, env: dict[Value, HloValue]) -> None:
    builder.at(equation.source, equation.op.name)
    results: Any
    if isinstance(equation.op, Collective) and not equation.outputs[0].type.size:
        results = builder.constant(0, equation.outputs[0].type)  # StableHLO refuses to move empty arrays
    else:
        results = equation.op.lower(builder, *[env[value] for value in equation.inputs])
    env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))


def _aliases(program: Program, donated: Sequence[bool]) -> dict[int, int]:
    """For each donated input, the first output of its type that no other input has taken."""
    free = dict(enumerate(program.outputs))
    found = {}
    for number, (value, is_donated) in enumerate(zip(program.inputs, donated, strict=False)):
        match = next((k for k, out in free.items() if out.type.strong() is value.type.strong()), None)
        if is_donated and match is not None:
            found[number] = match
            del free[match]
    return found

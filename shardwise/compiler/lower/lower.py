"""lower: the text of the module that XLA compiles, for one device of many (replica mode)."""

import re
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.ir.program import Value
from shardwise.compiler.lower.hlo import Builder, HloValue, tensor
from shardwise.compiler.ops.collective import Collective
from shardwise.compiler.partition.local import LocalProgram


@final
@dataclass(frozen=True, eq=False)
class StableHlo:
    """A module's text; `devices` run it, each on its own pieces."""

    text: str
    devices: int


def lower(local: LocalProgram) -> StableHlo:
    """StableHLO for a local program."""
    program = local.program
    builder = Builder(local.mesh)
    env: dict[Value, HloValue] = {
        value: HloValue(f"%arg{number}", value.type) for number, value in enumerate(program.inputs)
    }
    for equation in program.equations:
        builder.at(equation.source, equation.op.name)
        results: Any
        if isinstance(equation.op, Collective) and not equation.outputs[0].type.size:
            results = builder.constant(0, equation.outputs[0].type)  # StableHLO refuses to move empty arrays
        else:
            results = equation.op.lower(builder, *[env[value] for value in equation.inputs])
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))
    heads = ", ".join(f"{env[value].name}: {tensor(value.type)}" for value in program.inputs)
    types = ", ".join(tensor(value.type) for value in program.outputs)
    body = "\n    ".join(builder.lines)
    names = ", ".join(env[value].name for value in program.outputs)
    name = re.sub(r"\W", "_", program.name) or "main"
    text = (
        f"module @{name} {{\n  func.func public @main({heads}) -> ({types}) {{\n    {body}\n"
        f"    return{' ' if names else ''}{names}{' : ' if types else ''}{types}\n  }}\n}}\n"
    )
    return StableHlo(text, local.mesh.size)

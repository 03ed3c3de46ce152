"""lower: the text of the module that XLA compiles, for one device of many (replica mode)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Program
from shardwise.compiler.lower.hlo import Builder, HloValue, HostCallback, tensor_type
from shardwise.compiler.partition.local_program import LocalProgram


@final
@dataclass(frozen=True, eq=False)
class StableHlo:
    """A module's text; `devices` run it, each on its own pieces. `aliases`: inputs that give outputs their memory."""

    text: str
    devices: int
    aliases: dict[int, int]
    callbacks: tuple[HostCallback, ...] = ()


def lower(local: LocalProgram, donated: Sequence[bool] = (), platform: str = "cpu") -> StableHlo:
    """StableHLO for a local program; the memory of `donated` inputs is reused where an output has their type."""
    program = local.program
    builder = Builder(local.mesh, platform)
    results = builder.program(program, [HloValue(f"%arg{n}", type) for n, type in enumerate(program.in_types)])
    aliases = _aliases(program, donated)
    marks = {number: f" {{tf.aliasing_output = {output} : i32}}" for number, output in aliases.items()}
    heads = ", ".join(
        f"%arg{number}: {tensor_type(value.type)}{marks.get(number, '')}" for number, value in enumerate(program.inputs)
    )
    types = ", ".join(tensor_type(value.type) for value in program.outputs)
    tables = "".join(f"{head}\n" for head in builder.heads)
    body = "\n    ".join(builder.lines)
    names = ", ".join(x.name for x in results)
    name = re.sub(r"\W", "_", program.name) or "main"
    text = (
        f"{tables}module @{name} {{\n  func.func public @main({heads}) -> ({types}) {{\n    {body}\n"
        f"    return{' ' if names else ''}{names}{' : ' if types else ''}{types}\n  }}\n}}\n"
    )
    return StableHlo(text, local.mesh.size, aliases, tuple(builder.callbacks))


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

"""Textual form of programs, equations and ops. `parse` reads programs back.

    program mlp(x: f32[30,16], w: f32[16,32]) {
      a: f32[30,32] = dot[contract=((1,), (0,)), batch=((), ())] x w   # train.py:12
      return a
    }

Fields of ops print as Python literals, dtypes as `f32`, constants as `f32(0.5)`, meshes as `mesh(data=4, model=2)`
(without their devices), reductions as `sum`, and a program that an op holds as a nested block. Comments (the source
line, and the compiler's reason) are not read back.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.dtypes import SHORT_NAMES, short_name
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh

if TYPE_CHECKING:
    from shardwise.compiler.ir.op import Op
    from shardwise.compiler.ir.program import Equation, Program, Value

# Words that are never names of values, so that programs parse without lookahead. Every op adds its name.
reserved_words = {"return", "program", "inf", "nan", *SHORT_NAMES}


class Names(dict["Value", str]):
    """Names of values, assigned in the order in which values are first seen: a, b, …, z, aa, ab, …"""

    def __missing__(self, value: "Value") -> str:
        self[value] = name = _letters(len(self))
        return name


def format_program(program: "Program", indent: str = "") -> str:
    """Format a program, with one equation per line."""
    names = Names()
    inputs = ", ".join(_declaration(value, names) for value in program.inputs)
    mesh = _types_mesh(program, nested=bool(indent))
    lines = [f"program {identifier(program.name)}{mesh}({inputs}) {{"]
    lines += [f"  {format_equation(equation, names, indent + '  ')}" for equation in program.equations]
    lines.append(f"  return {', '.join(names[value] for value in program.outputs)}")
    lines.append("}")
    return ("\n" + indent).join(lines)


def _types_mesh(program: "Program", nested: bool) -> str:
    """Return the mesh that the axes in the types of a program refer to; empty if types have no axes.

    A nested program uses the mesh of the enclosing program, except in a manual region, where axes are Manual.
    """
    own = (*program.inputs, *(value for equation in program.equations for value in equation.outputs))
    inner = () if nested else (value for equation in program.walk() for value in equation.outputs)
    shardings = (value.type.explicit for value in chain(own, inner))
    mesh = next((sharding.mesh for sharding in shardings if sharding and not sharding.scoped), None)
    return "" if mesh is None or (nested and not mesh.abstract.manual_axes) else f" on {_format_field(mesh, '')}"


def _declaration(value: "Value", names: Names) -> str:
    """Return the name and the type of a value, with the mesh of its type if that mesh is scoped."""
    sharding = value.type.explicit
    scope = f" on {_format_field(sharding.mesh, '')}" if sharding and sharding.scoped else ""
    return f"{names[value]}: {value.type.program_text}{scope}"


def format_equation(equation: "Equation", names: Names | None = None, indent: str = "") -> str:
    """Format an equation, with its source line and the compiler's reason as a comment."""
    names = Names() if names is None else names
    operands = [names[value] for value in equation.inputs]
    right = " ".join([format_op(equation.op, indent), *operands])
    left = ", ".join(_declaration(value, names) for value in equation.outputs)
    notes = [str(equation.source)] if equation.source.file else []
    notes += [] if equation.reason is None else [str(equation.reason)]
    comment = f"   # {' '.join(': '.join(notes).split())}" if notes else ""
    return f"{left} = {right}{comment}" if left else f"{right}{comment}"


def format_op(op: "Op", indent: str = "") -> str:
    """Format an op, such as `sum[dims=(0,)]`.

    A field that is declared with `repr=False` is omitted if it has its default value. If the default depends on
    settings, the metadata entry `omitted` is the value to omit.
    """
    shown = []
    for field in fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        omitted = field.metadata.get("omitted", field.default)
        if field.repr or (type(value), value) != (type(omitted), omitted):  # np.dtype(None) == f64
            shown.append(f"{field.name}={_format_field(value, indent)}")
    return f"{op.name}[{', '.join(shown)}]" if shown else op.name


def format_stage(kind: str, program: "Program", mesh: AbstractMesh, ins: Iterable[str], outs: Iterable[str]) -> str:
    """Format a later stage: `KIND NAME on mesh(…)`, a line for each input and output, and the program."""
    head = f"{kind} {identifier(program.name)} on mesh({mesh})"
    return "\n".join([head, *(f"in {line}" for line in ins), *(f"out {line}" for line in outs), str(program)])


def identifier(name: str) -> str:
    """Return a name with all characters replaced that are not word characters."""
    return re.sub(r"\W", "_", name) or "main"


def _format_field(value: Any, indent: str) -> str:
    match value:
        case tuple():
            inner = ", ".join(_format_field(item, indent) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case np.dtype():
            return short_name(value)
        case Mesh():
            return _format_field(value.abstract, indent)
        case AbstractMesh():
            kinds = ("" if kind is AxisType.Auto else f" {kind.value}" for kind in value.axis_types)
            axes = (
                f"{_axis(name)}={size}{kind}" for (name, size), kind in zip(value.shape.items(), kinds, strict=True)
            )
            return f"mesh({', '.join(axes)})"
        case _ if hasattr(value, "equations"):
            return format_program(value, indent)
        case Scalar():
            return str(value)
        case ArrayType():
            return value.program_text
        case _:
            return repr(value)


def _letters(number: int) -> str:
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return f"{text}_" if text in reserved_words else text


def _axis(name: str) -> str:
    """Return the name of a mesh axis, quoted if it is not a word."""
    return name if name.isidentifier() else repr(name)

"""Programs as text, and back: `parse(format(program)) == program`.

    program mlp(x: f32[30,16], w: f32[16,32]) {
      a: f32[30,32] = dot[contract=((1,), (0,)), batch=((), ())] x w   # train.py:12
      return a
    }

Fields of ops print as Python literals, dtypes as `f32`, constants as `f32(0.5)`, meshes as `mesh(data=4, model=2)`,
and a program that an op holds as a block of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import SHORT_NAMES, Scalar, parse_type, short_name
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ProgramError


def format_program(program: Program, indent: str = "") -> str:
    """The text of a program, one equation a line, with the user's source line and the compiler's reason as comment."""
    names: dict[Value, str] = {}

    def name(value: Value) -> str:
        return names.setdefault(value, _letters(len(names)))

    heads = ", ".join(f"{name(value)}: {value.type}" for value in program.inputs)
    lines = [f"program {_identifier(program.name)}({heads}) {{"]
    for equation in program.equations:
        left = ", ".join(f"{name(value)}: {value.type}" for value in equation.outputs)
        right = " ".join([format_op(equation.op, indent + "  "), *(names[value] for value in equation.inputs)])
        notes = [str(equation.source)] if equation.source.file else []
        notes += [equation.reason] if equation.reason else []
        comment = f"   # {': '.join(notes)}" if notes else ""
        lines.append(f"  {left} = {right}{comment}" if left else f"  {right}{comment}")
    lines.append(f"  return {', '.join(names[value] for value in program.outputs)}")
    lines.append("}")
    return ("\n" + indent).join(lines)


def format_op(op: Op, indent: str = "") -> str:
    """`sum[dims=(0,)]`."""
    params = ", ".join(f"{f.name}={_format(getattr(op, f.name), indent)}" for f in fields(op))  # type: ignore[arg-type]
    return f"{op.name}[{params}]" if params else op.name


def _format(value: Any, indent: str) -> str:
    match value:
        case Program():
            return format_program(value, indent)
        case tuple():
            inner = ", ".join(_format(item, indent) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case np.dtype():
            return short_name(value)
        case Mesh():
            return _format(value.abstract, indent)
        case AbstractMesh():
            return f"mesh({value})"
        case Scalar():
            return str(value)
        case _:
            return repr(value)


def parse_program(text: str) -> Program:
    """The program that prints as `text`; text that is none is a ProgramError that names the line."""
    tokens = _Tokens(text)
    program = _program(tokens)
    tokens.expect("end of text")
    return program


_TOKEN = re.compile(
    r"\s+|#[^\n]*|(?P<type>\w+\[[\d,]*\]~?(?=\s|,|\)|$))|(?P<string>'[^']*')"
    r"|(?P<number>-?(?:inf|nan|\d[\d.]*(?:e[+-]?\d+)?j?)(?!\w))|(?P<word>\w+)|(?P<mark>[()\[\]{},:=])"
)


@final
class _Tokens:
    def __init__(self, text: str):
        self.text = text
        self.items = list(self._split())
        self.at = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise ProgramError(f"line {self._line(position)}: cannot read {self.text[position : position + 20]!r}")
            if match.lastgroup:
                yield match.lastgroup, match[0], position
            position = match.end()
        yield "end", "end of text", position

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    @property
    def next(self) -> str:
        return self.items[self.at][1]

    @property
    def kind(self) -> str:
        return self.items[self.at][0]

    def take(self) -> str:
        self.at += 1
        return self.items[self.at - 1][1]

    def accept(self, wanted: str) -> bool:
        if self.next == wanted:
            self.at += 1
            return True
        return False

    def expect(self, wanted: str) -> None:
        if not self.accept(wanted):
            raise self.error(f"expected {wanted!r}, found {self.next!r}")

    def error(self, what: str) -> ProgramError:
        return ProgramError(f"line {self._line(self.items[self.at][2])}: {what}")


def _program(tokens: _Tokens) -> Program:
    tokens.expect("program")
    name = tokens.take()
    values: dict[str, Value] = {}

    def declaration() -> Value:
        label = tokens.take()
        tokens.expect(":")
        if tokens.kind != "type":
            raise tokens.error(f"expected a type, found {tokens.next!r}")
        values[label] = Value(parse_type(tokens.take()))
        return values[label]

    def use() -> Value:
        label = tokens.take()
        if label not in values:
            raise tokens.error(f"{label!r} is used before it is defined")
        return values[label]

    tokens.expect("(")
    inputs = []
    while not tokens.accept(")"):
        inputs.append(declaration())
        tokens.accept(",")
    tokens.expect("{")
    equations = []
    while not tokens.accept("return"):
        outputs = []
        if tokens.items[tokens.at + 1][1] == ":":
            while not tokens.accept("="):
                outputs.append(declaration())
                tokens.accept(",")
        op = _op(tokens)
        operands = []
        while tokens.next in values and tokens.items[tokens.at + 1][1] != ":":
            operands.append(use())
        equations.append(Equation(op, operands, outputs))
    results = []
    while not tokens.accept("}"):
        results.append(use())
        tokens.accept(",")
    return Program(tuple(inputs), tuple(equations), tuple(results), name)


def _op(tokens: _Tokens) -> Op:
    name = tokens.take()
    if name not in Op.registry:
        raise tokens.error(f"there is no op {name!r}")
    params = {}
    if tokens.accept("["):
        while not tokens.accept("]"):
            field = tokens.take()
            tokens.expect("=")
            params[field] = _value(tokens)
            tokens.accept(",")
    return Op.registry[name](**params)


def _value(tokens: _Tokens) -> Any:
    if tokens.next == "program":
        return _program(tokens)
    kind, text = tokens.kind, tokens.take()
    if text == "(":
        items = []
        while not tokens.accept(")"):
            items.append(_value(tokens))
            tokens.accept(",")
        return tuple(items)
    if kind == "number":
        return _number(text)
    if kind == "string":
        return text[1:-1]
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    if text == "mesh":
        tokens.expect("(")
        axes: dict[str, int] = {}
        while not tokens.accept(")"):
            axis = tokens.take()
            tokens.expect("=")
            axes[axis] = int(tokens.take())
            tokens.accept(",")
        return AbstractMesh(tuple(axes.values()), tuple(axes))
    if text in SHORT_NAMES:
        dtype = SHORT_NAMES[text]
        if not tokens.accept("("):
            return dtype
        constant = _value(tokens)
        tokens.expect(")")
        return Scalar.of(constant, dtype)
    raise tokens.error(f"cannot read {text!r}")


def _number(text: str) -> complex | float | int:
    if text.endswith("j"):
        return complex(text)
    return float(text) if any(mark in text for mark in (".", "e", "n")) else int(text)


def _letters(number: int) -> str:
    """a, b, …, z, aa, ab, …; words that the grammar uses get a trailing underscore."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return f"{text}_" if text in ("return", "program", *SHORT_NAMES, *Op.registry) else text


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "main"

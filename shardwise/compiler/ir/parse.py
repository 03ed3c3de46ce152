"""Parser of the textual form that `format` defines: `parse_program(str(program)) == program`."""

import ast
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import SHORT_NAMES, DType, integer_range, is_integer, short_name
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import TYPE_PATTERN, Scalar, parse_type
from shardwise.compiler.ir.verify import type_error
from shardwise.compiler.reduction import REDUCTIONS
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType
from shardwise.errors import ProgramError, ShardingError


def parse_program(text: str) -> Program:
    """Return the program that prints as `text`.

    Raises:
        ProgramError: if the text is not a valid program; the message names the line.
    """
    tokens = _Tokens(text)
    program = _program(tokens, None)
    tokens.expect("end of text")
    return program


_NUMBER = r"-?(?:inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w)"


_TOKEN = (
    rf"\s+|#[^\n]*|(?P<type>{TYPE_PATTERN}(?=\s|[,)=]|$))"
    rf"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    rf"|(?P<number>{_NUMBER})|(?P<word>\w+)|(?P<mark>[()\[\]{{}},:=])"
)


@final
class _Tokens:
    """The tokens of a string, as (kind, token, offset), and the position of the parser."""

    def __init__(self, text: str):
        self.text = text
        self.items = list(self._split())
        self.at = 0
        self.mesh: AbstractMesh | None = None  # the mesh of the Explicit axes in types

    def _split(self) -> Iterator[tuple[str, str, int]]:
        position, token = 0, re.compile(_TOKEN)
        while position < len(self.text):
            match = token.match(self.text, position)
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
        if self.kind == "end":
            raise self.error("the text ends too early")
        self.at += 1
        return self.items[self.at - 1][1]

    def declares(self) -> bool:
        """Return whether a name and its type follow."""
        return self.kind != "end" and self.items[self.at + 1][1] == ":"

    def accept(self, token: str) -> bool:
        """Consume the next token if it is `token`, and return whether it is."""
        if self.next == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self.next!r}")

    def error(self, message: str, at: int | None = None) -> ProgramError:
        """Return the error with the line of the token at index `at`; by default, of the next token."""
        return ProgramError(f"line {self._line(self.items[self.at if at is None else at][2])}: {message}")


def _program(tokens: _Tokens, mesh: AbstractMesh | None) -> Program:
    """Parse a program. `mesh` is the mesh of its Explicit axes, unless the program states its own."""
    tokens.expect("program")
    name = tokens.take()
    mesh = _accept_mesh(tokens) or mesh
    tokens.mesh = mesh
    values: dict[str, Value] = {}

    def declaration() -> Value:
        if tokens.next in values:
            raise tokens.error(f"{tokens.next!r} is defined twice")
        label = tokens.take()
        tokens.expect(":")
        at, text = tokens.at, tokens.take()
        scope = _accept_mesh(tokens)
        try:
            values[label] = Value(parse_type(text, scope or mesh, scope is not None))
        except ValueError as error:
            unknown = str(error).startswith("not a type")
            raise tokens.error(f"expected a type, found {text!r}" if unknown else str(error), at) from None
        return values[label]

    def use() -> Value:
        if tokens.next not in values:
            raise tokens.error(f"{tokens.next!r} is used before it is defined")
        return values[tokens.take()]

    tokens.expect("(")
    inputs = []
    while not tokens.accept(")"):
        inputs.append(declaration())
        tokens.accept(",")
    tokens.expect("{")
    equations = []
    while not tokens.accept("return"):
        outputs = []
        if tokens.declares():
            while not tokens.accept("="):
                outputs.append(declaration())
                tokens.accept(",")
        start = tokens.at
        op = _op(tokens)
        operands = []
        while tokens.kind == "word" and tokens.next not in ("return", *Op.registry) and not tokens.declares():
            operands.append(use())
        equations.append(Equation(op, operands, outputs))
        if message := type_error(equations[-1]):
            raise tokens.error(message, start)
    results = []
    while not tokens.accept("}"):
        results.append(use())
        tokens.accept(",")
    return Program(tuple(inputs), tuple(equations), tuple(results), name)


def _op(tokens: _Tokens) -> Op:
    start = tokens.at
    if tokens.next not in Op.registry:
        is_word = tokens.kind == "word"
        raise tokens.error(f"there is no op {tokens.next!r}" if is_word else f"expected an op, found {tokens.next!r}")
    op_class = Op.registry[tokens.take()]
    declared = fields(op_class)  # type: ignore[arg-type]
    required = {f.name: f.default is MISSING and "omitted" not in f.metadata for f in declared}
    params: dict[str, Any] = {f.name: f.metadata["omitted"] for f in declared if "omitted" in f.metadata}
    if tokens.accept("["):
        while not tokens.accept("]"):
            if tokens.next not in required:
                raise tokens.error(f"{op_class.name} has no field {tokens.next!r}; its fields: {', '.join(required)}")
            field = tokens.take()
            tokens.expect("=")
            params[field] = _field_value(tokens)
            tokens.accept(",")
    if missing := [field for field, is_required in required.items() if is_required and field not in params]:
        raise tokens.error(f"{op_class.name} needs a value for {', '.join(missing)}", start)
    return op_class(**params)


def _field_value(tokens: _Tokens) -> Any:
    if tokens.next == "program":
        outer = tokens.mesh
        program = _program(tokens, outer)
        tokens.mesh = outer
        return program
    start, kind, text = tokens.at, tokens.kind, tokens.take()
    if text == "(":
        items = []
        while not tokens.accept(")"):
            items.append(_field_value(tokens))
            tokens.accept(",")
        return tuple(items)
    if kind == "number":
        return _number(text)
    if kind == "string" or text in ("True", "False", "None"):
        return ast.literal_eval(text)
    if text in REDUCTIONS:
        return REDUCTIONS[text]
    if text == "mesh":
        return _mesh(tokens, start)
    if text in SHORT_NAMES:
        return _scalar(tokens, SHORT_NAMES[text]) if tokens.accept("(") else SHORT_NAMES[text]
    raise tokens.error(f"cannot read {text!r}", start)


def _number(text: str) -> float | int:
    return float(text) if any(mark in text for mark in (".", "e", "n")) else int(text)


def _accept_mesh(tokens: _Tokens) -> AbstractMesh | None:
    """Parse `on mesh(…)`, if it follows."""
    if not tokens.accept("on"):
        return None
    start = tokens.at
    tokens.expect("mesh")
    return _mesh(tokens, start)


def _mesh(tokens: _Tokens, start: int) -> AbstractMesh:
    tokens.expect("(")
    names, sizes, axis_types = [], [], []
    while not tokens.accept(")"):
        names.append(ast.literal_eval(tokens.take()) if tokens.kind == "string" else tokens.take())
        tokens.expect("=")
        if not tokens.next.isdecimal():
            raise tokens.error(f"the size of a mesh axis is an integer, not {tokens.next!r}")
        sizes.append(int(tokens.take()))
        axis_type = next((kind for kind in AxisType if tokens.accept(kind.value)), AxisType.Auto)
        axis_types.append(axis_type)
        tokens.accept(",")
    try:
        return AbstractMesh(sizes, names, axis_types)
    except ShardingError as error:
        raise tokens.error(str(error), start) from None


def _scalar(tokens: _Tokens, dtype: DType) -> Scalar:
    start = tokens.at
    words = [tokens.take()]
    while tokens.accept(","):
        words.append(tokens.take())
    tokens.expect(")")
    constant = _constant(words, dtype)
    if constant is None:
        raise tokens.error(f"{', '.join(words)!r} is no {short_name(dtype)}", start)
    return constant


def _constant(words: list[str], dtype: DType) -> Scalar | None:
    """Return the constant of `dtype` that prints as `words`; None if there is none."""
    if bits := re.fullmatch(f"0x([0-9a-f]{{{2 * dtype.itemsize}}})", ",".join(words)):
        return Scalar(dtype, bytes.fromhex(bits[1])[::-1])
    if dtype == np.bool_:
        return Scalar.from_value(words == ["True"], dtype) if words in (["True"], ["False"]) else None
    if len(words) != (2 if dtype.kind == "c" else 1) or not all(re.fullmatch(_NUMBER, word) for word in words):
        return None
    numbers = [_number(word) for word in words]
    if is_integer(dtype):
        low, high = integer_range(dtype)
        return (
            Scalar.from_value(numbers[0], dtype) if isinstance(numbers[0], int) and low <= numbers[0] <= high else None
        )
    return Scalar.from_value(complex(*numbers) if dtype.kind == "c" else numbers[0], dtype)

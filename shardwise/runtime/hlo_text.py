"""Parse the text of an HLO module into computations and instructions.

    %fused (p: f32[8]) -> f32[8] {
      ROOT %exp.1 = f32[8]{0} exponential(%p), metadata={op_name="exp"}
    }

The names of computations and instructions have no leading `%`.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import final

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s+(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT\s+)?%?([\w.\-]+) = (.*)")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALLED = re.compile(r"\b(?:calls|to_apply|called_computations)=(?:\{([^}]*)\}|(%?[\w.\-]+))")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@final
@dataclass(frozen=True)
class HloInstruction:
    """One instruction: `name = type opcode(operands), attributes`. Its parts are parsed on first use.

    Attributes:
        line: its line in the text.
    """

    line: str

    @cached_property
    def _parts(self) -> tuple[str, str, str, str, str]:
        match = _INSTRUCTION.match(self.line)
        assert match is not None, self.line
        name, rest = match[1], _COMMENT.sub("", match[2])
        end = closing(rest, 0) if rest.startswith("(") else rest.index(" ")
        opcode, bracket, _ = rest[end:].strip().partition("(")
        start = rest.index(opcode + bracket, end) + len(opcode)
        stop = closing(rest, start) if bracket else len(rest)
        return name, rest[:end], opcode, rest[start:stop], rest[stop:]

    @property
    def name(self) -> str:
        return self._parts[0]

    @property
    def type(self) -> str:
        """The type of its result, with layouts."""
        return self._parts[1]

    @property
    def opcode(self) -> str:
        return self._parts[2]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands, or the value of a constant."""
        return tuple(part.split()[-1].removeprefix("%") for part in elements(self._parts[3]))

    @property
    def attributes(self) -> str:
        """Everything after its operands."""
        return self._parts[4]

    @property
    def called(self) -> list[str]:
        """The names of the computations that it calls, except for those of loops and conditionals."""
        matches = _CALLED.finditer(_QUOTED.sub('""', self.attributes))
        return [bare_name(name) for match in matches for name in (match[2] or match[1]).split(",")]

    def value(self, key: str) -> str | None:
        """Return the text that starts with the value of an attribute, or None."""
        match = re.search(rf"[\s,]{key}=", self.attributes)
        return None if match is None else self.attributes[match.end() :]


@final
@dataclass(frozen=True)
class HloComputations:
    """The computations of a module.

    Attributes:
        by_name: the instructions of each computation.
        entry: the name of the ENTRY computation; None if there is none.
    """

    by_name: dict[str, list[HloInstruction]]
    entry: str | None


def read_computations(text: str) -> HloComputations:
    """Return the computations of a module, given as text."""
    by_name: dict[str, list[HloInstruction]] = {}
    entry: str | None = None
    current: list[HloInstruction] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = by_name[head[2]] = []
            entry = head[2] if head[1] else entry
        elif _INSTRUCTION.match(line):
            current.append(HloInstruction(line))
    return HloComputations(by_name, entry)


def elements(text: str) -> list[str]:
    """Return what commas separate between the outermost brackets of `text`; nested brackets stay one element."""
    parts, depth, start = [], 0, 1
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            parts.append(text[start:position])
            start = position + 1
    return [part for part in parts if part.strip()]


def closing(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`. Quoted text is skipped."""
    depth, quoted, position = 0, False, start
    while position < len(text):
        character = text[position]
        if character == "\\" and quoted:
            position += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                return position + 1
        position += 1
    raise ValueError(f"unclosed bracket: {text[start : start + 80]!r}")


def bracketed(text: str) -> str:
    """Return the beginning of `text`, a bracket, up to the bracket that closes it."""
    return text[: closing(text, 0)]


def bare_name(text: str) -> str:
    """Return the name at the beginning of `text`, without `%`."""
    match = re.match(r"\s*%?([\w.\-]+)", text)
    assert match is not None, text
    return match[1]

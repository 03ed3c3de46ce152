"""Parse XLA's optimized HLO: for each instruction, the ops of the program that it computes, and their source lines.

    %fusion.3 = f32[8] fusion(%a, %b), kind=kLoop, calls=%fused, metadata={op_name="train.py:41/sub" stack_frame_id=2}

`op_name` has the scopes, the source line and the name of the op (see `compiler/lower/hlo.py`). XLA writes the source
file in tables at the top of the module, or in the metadata of the instruction.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][\w\-]*)\(")
_METADATA = re.compile(r"metadata=\{(.*?)\}")
_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_ROW = re.compile(r"(\d+) (.*)")
_FIELD = re.compile(r'(\w+)=(?:"([^"]*)"|(\d+))')
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-permute|collective-broadcast)"
    r"(-start|-done)?"
)


@final
@dataclass(frozen=True)
class Instruction:
    """One HLO instruction.

    Attributes:
        opcode: the HLO opcode, such as `fusion` or `all-reduce-start`.
        name: the `op_name` of its metadata, or "".
        source: the source line, such as `/home/me/train.py:41`, or "".
        made_of: the op names of the instructions in its fused computations, and its own op name.
    """

    opcode: str
    name: str
    source: str
    made_of: tuple[str, ...]

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective."""
        return _COLLECTIVE.fullmatch(self.opcode) is not None


def read_instructions(text: str) -> dict[str, Instruction]:
    """Return the instructions of a module, by their HLO names."""
    sources = _sources(text)
    rows: dict[str, tuple[str, str, str, str]] = {}
    computations: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[1], [])
        elif (match := _INSTRUCTION.match(line)) and (opcode := _OPCODE.search(match[2])):
            metadata = _METADATA.search(match[2])
            fields = {field[1]: field[2] or field[3] for field in _FIELD.finditer(metadata[1] if metadata else "")}
            name = _NAME.search(match[2])
            source = f"{fields['source_file']}:{fields['source_line']}" if "source_file" in fields else ""
            calls = _CALLS.search(match[2])
            rows[match[1]] = (
                opcode[1],
                name[1].replace('\\"', '"').replace("\\\\", "\\") if name else "",
                sources.get(fields.get("stack_frame_id", ""), source),
                calls[1] if calls else "",
            )
            current.append(match[1])

    def op_names(instruction: str) -> Iterator[str]:
        _, name, _, calls = rows[instruction]
        for inner in computations.get(calls, ()):
            yield from op_names(inner)
        yield from filter(None, name.split(";"))

    return {
        instruction: Instruction(opcode, name, source, tuple(dict.fromkeys(op_names(instruction))))
        for instruction, (opcode, name, source, _) in rows.items()
    }


def _sources(text: str) -> dict[str, str]:
    """Return the source line of each stack frame id, from the tables at the top of the module."""
    tables: dict[str, dict[str, str]] = {title: {} for title in _TABLES}
    title = ""
    for line in text.splitlines():
        if line in tables:
            title = line
        elif not line:
            continue
        elif title and (row := _ROW.match(line)):
            tables[title][row[1]] = row[2].strip('"')
        elif title:
            break
    sources = {}
    for number, frame in tables["StackFrames"].items():
        location = tables["FileLocations"].get(_fields(frame).get("file_location_id", ""), "")
        fields = _fields(location)
        file = tables["FileNames"].get(fields.get("file_name_id", ""), "")
        if file:
            sources[number] = f"{file}:{fields['line']}"
    return sources


def _fields(text: str) -> dict[str, str]:
    return {field[1]: field[3] for field in _FIELD.finditer(text)}

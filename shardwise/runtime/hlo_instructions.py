"""The ops of the program that each instruction of XLA's optimized HLO computes, and their source lines.

    %fusion.3 = f32[8] fusion(%a, %b), kind=kLoop, calls=%fused, metadata={op_name="train.py:41/sub" stack_frame_id=2}

`op_name` has the scopes, the source line and the name of the op (see `compiler/lower/hlo.py`). XLA writes the source
file in tables at the top of the module, or in the metadata of the instruction.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import final

from shardwise.runtime.hlo_text import HloInstruction, bare_name, bracketed, read_computations

_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
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
    made_of: tuple[str, ...] = ()

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective."""
        return is_collective_opcode(self.opcode)


def is_collective_opcode(opcode: str) -> bool:
    """Return whether an opcode is that of a collective, or of its start or done."""
    return _COLLECTIVE.fullmatch(opcode) is not None


def read_instructions(text: str) -> dict[str, Instruction]:
    """Return the instructions of a module, by their HLO names."""
    sources = _sources(text)
    computations = read_computations(text).by_name
    read = {each.name: _instruction(each, sources) for instructions in computations.values() for each in instructions}
    calls = {each.name: each.value("calls") for instructions in computations.values() for each in instructions}

    def op_names(instruction: str) -> Iterator[str]:
        called = calls[instruction]
        for inner in computations.get(bare_name(called), ()) if called is not None else ():
            yield from op_names(inner.name)
        yield from filter(None, read[instruction].name.split(";"))

    return {name: replace(each, made_of=tuple(dict.fromkeys(op_names(name)))) for name, each in read.items()}


def _instruction(instruction: HloInstruction, sources: Mapping[str, str]) -> Instruction:
    """Return an instruction without the ops in its fused computations."""
    value = instruction.value("metadata")
    metadata = "" if value is None else bracketed(value)
    fields = {field[1]: field[2] or field[3] for field in _FIELD.finditer(metadata)}
    name = _NAME.search(metadata)
    source = f"{fields['source_file']}:{fields['source_line']}" if "source_file" in fields else ""
    return Instruction(
        instruction.opcode,
        name[1].replace('\\"', '"').replace("\\\\", "\\") if name else "",
        sources.get(fields.get("stack_frame_id", ""), source),
    )


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

"""FlatBuffers: write and read the few kinds of fields that the files of `jax.export` have.

A buffer starts with the offset of its root table. A table starts with the distance to its vtable, which has the
position of each field in the table, or 0 for a field that is absent. Strings, vectors and tables are stored elsewhere,
and fields hold offsets to them. All numbers are little-endian. The reader checks every offset, because files may be
damaged or hostile.

    https://flatbuffers.dev/internals/
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from shardwise.errors import ProgramError

_OFFSET = 4  # bytes of an offset, of the length of a vector, and of the distance to a vtable
_MAX_DEPTH = 200  # of nested tables


@final
@dataclass(frozen=True)
class Number:
    """A number, with its format of `struct`: "b", "B", "H" or "I"."""

    format: str
    value: int


@final
@dataclass(frozen=True)
class Numbers:
    """A vector of numbers, with their format of `struct`."""

    format: str
    values: Sequence[int]


Table: TypeAlias = Mapping[int, "Field"]  # the fields that are present, by their index in the schema
Field: TypeAlias = "Number | Numbers | str | bytes | Table | Sequence[Field]"  # a sequence of strings or of tables


def write(root: Table) -> bytes:
    """Return the buffer of a root table."""
    writer = _Writer()
    writer.buffer += bytes(_OFFSET)
    writer.link(0, writer.append(root))
    return bytes(writer.buffer)


@final
class _Writer:
    """Appends objects to a buffer. An object precedes those that it refers to, because offsets are not negative."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def link(self, position: int, target: int) -> None:
        """Write the offset of an object to a position."""
        struct.pack_into("<I", self.buffer, position, target - position)

    def append(self, field: Field) -> int:
        """Append a string, a vector or a table, and return its position."""
        match field:
            case str():
                return self._append_bytes(field.encode() + b"\0", len(field.encode()))
            case bytes():
                return self._append_bytes(field, len(field))
            case Numbers(format, values):
                return self._append_bytes(struct.pack(f"<{len(values)}{format}", *values), len(values))
            case Mapping():
                return self._append_table(field)
            case Sequence():
                position = self._append_bytes(bytes(_OFFSET * len(field)), len(field))
                for index, item in enumerate(field):
                    assert isinstance(item, (str, Mapping))
                    self.link(position + _OFFSET * (index + 1), self.append(item))
                return position
        raise TypeError(f"a field cannot be {field!r}")

    def _align(self) -> int:
        self.buffer += bytes(-len(self.buffer) % _OFFSET)
        return len(self.buffer)

    def _append_bytes(self, content: bytes, length: int) -> int:
        position = self._align()
        self.buffer += struct.pack("<I", length) + content
        return position

    def _append_table(self, fields: Table) -> int:
        vtable_size = 2 * (2 + max(fields, default=-1) + 1)
        vtable = self._align()
        table = vtable + vtable_size + -vtable_size % _OFFSET
        # Every field takes four bytes, so that all are aligned.
        positions = {index: _OFFSET * (rank + 1) for rank, index in enumerate(fields)}
        entries = [positions.get(index, 0) for index in range(max(fields, default=-1) + 1)]
        self.buffer += struct.pack(f"<{2 + len(entries)}H", vtable_size, _OFFSET * (len(fields) + 1), *entries)
        self._align()
        self.buffer += struct.pack("<i", table - vtable) + bytes(_OFFSET * len(fields))
        for index, field in fields.items():
            position = table + positions[index]
            if isinstance(field, Number):
                struct.pack_into(f"<{field.format}", self.buffer, position, field.value)
            else:
                self.link(position, self.append(field))
        return table


def read(buffer: bytes) -> "TableReader":
    """Return the root table of a buffer."""
    source = _Source(buffer)
    return TableReader(source, source.follow(0), 0)


@final
class _Source:
    """A buffer that is read with bounds checks.

    Tables may share objects, so that a small buffer could describe a tree of exponential size. Every table of a valid
    file has at least eight bytes of its own, which bounds the number of tables that are read.
    """

    def __init__(self, buffer: bytes):
        self.buffer = buffer
        self._tables_left = len(buffer) // 8

    def number(self, format: str, position: int) -> int:
        try:
            if position < 0:
                raise struct.error
            return int(struct.unpack_from(f"<{format}", self.buffer, position)[0])
        except struct.error:
            raise self.error(f"position {position} is out of bounds") from None

    def follow(self, position: int) -> int:
        """Return the position of the object whose offset is at a position."""
        return position + self.number("I", position)

    def content(self, position: int, item_size: int) -> tuple[int, int]:
        """Return the first item's position and the number of items of the vector at a position."""
        length, start = self.number("I", position), position + _OFFSET
        if start + length * item_size > len(self.buffer):
            raise self.error(f"a vector of {length} items at position {position} is out of bounds")
        return start, length

    def text(self, position: int) -> str:
        start, length = self.content(position, 1)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.error(f"the string at position {position} is not UTF-8") from None

    def count_table(self) -> None:
        self._tables_left -= 1
        if self._tables_left < 0:
            raise self.error("it has more tables than fit into it")

    def error(self, reason: str) -> ProgramError:
        return ProgramError(f"the serialized function is damaged, or no file of `export`: {reason}")


@final
class TableReader:
    """A table. Fields are named by their index in the schema; absent ones are zero, empty or None."""

    def __init__(self, source: _Source, position: int, depth: int):
        source.count_table()
        if depth > _MAX_DEPTH:
            raise source.error(f"tables are nested more than {_MAX_DEPTH} deep")
        self._source, self._position, self._depth = source, position, depth
        self._vtable = position - source.number("i", position)
        self._fields = source.number("H", self._vtable) // 2 - 2

    def _field(self, index: int) -> int | None:
        """Return the position of a field, or None."""
        if index >= self._fields:
            return None
        offset = self._source.number("H", self._vtable + 2 * (2 + index))
        return self._position + offset if offset else None

    def number(self, index: int, format: str) -> int:
        position = self._field(index)
        return 0 if position is None else self._source.number(format, position)

    def numbers(self, index: int, format: str) -> list[int]:
        position = self._field(index)
        if position is None:
            return []
        start, length = self._source.content(self._source.follow(position), struct.calcsize(f"<{format}"))
        return list(struct.unpack_from(f"<{length}{format}", self._source.buffer, start))

    def text(self, index: int) -> str | None:
        position = self._field(index)
        return None if position is None else self._source.text(self._source.follow(position))

    def texts(self, index: int) -> list[str]:
        return [self._source.text(position) for position in self._items(index)]

    def content(self, index: int) -> bytes:
        position = self._field(index)
        if position is None:
            return b""
        start, length = self._source.content(self._source.follow(position), 1)
        return self._source.buffer[start : start + length]

    def table(self, index: int) -> "TableReader | None":
        position = self._field(index)
        return None if position is None else self._table(self._source.follow(position))

    def tables(self, index: int) -> list["TableReader"]:
        return [self._table(position) for position in self._items(index)]

    def _table(self, position: int) -> "TableReader":
        return TableReader(self._source, position, self._depth + 1)

    def _items(self, index: int) -> list[int]:
        """Return the positions of the strings or tables that a vector refers to."""
        position = self._field(index)
        if position is None:
            return []
        start, length = self._source.content(self._source.follow(position), _OFFSET)
        return [self._source.follow(start + _OFFSET * number) for number in range(length)]

    def error(self, reason: str) -> ProgramError:
        """Return the error for a field that has no valid value."""
        return self._source.error(reason)

"""FlatBuffers: written and read, also by the library itself, and damaged buffers."""

import random

import pytest

from shardwise.errors import ProgramError
from shardwise.export.flatbuffer import Number, Numbers, read, write

TABLE = {
    0: Number("H", 11),
    2: "naïve",
    3: {1: Number("I", 2**32 - 1)},
    5: [{0: Number("b", -1)}, {}],
    6: ["a", "", "longer"],
    7: b"\x00\xff\x01",
    8: Numbers("H", [1, 2, 3]),
    9: Numbers("I", []),
}


def read_all(buffer):
    root = read(buffer)
    inner = root.table(3)
    return (
        *(root.number(0, "H"), root.number(1, "H"), root.text(2), root.text(4), root.table(4)),
        *(inner and inner.number(1, "I"), [each.number(0, "b") for each in root.tables(5)], root.texts(6)),
        *(root.content(7), root.numbers(8, "H"), root.numbers(9, "I"), root.content(30)),
    )


EXPECTED = (11, 0, "naïve", None, None, 2**32 - 1, [-1, 0], ["a", "", "longer"], b"\x00\xff\x01", [1, 2, 3], [], b"")


def test_a_buffer_is_read_as_it_was_written():
    assert read_all(write(TABLE)) == EXPECTED


def test_a_field_of_another_type_is_an_error():
    with pytest.raises(TypeError, match=r"a field cannot be 1\.5"):
        write({0: 1.5})


@pytest.mark.jax
def test_the_library_reads_what_is_written():
    flatbuffers = pytest.importorskip("flatbuffers", reason="the extra `peer` installs it")
    buffer = write(TABLE)
    offset = flatbuffers.encode.Get(flatbuffers.packer.uoffset, buffer, 0)
    table = flatbuffers.table.Table(bytearray(buffer), offset)
    position = table.Offset(4 + 2 * 2)
    assert table.String(position + table.Pos) == "naïve".encode()
    vector = table.Offset(4 + 2 * 8)
    assert table.VectorLen(vector) == 3
    assert table.GetVectorAsNumpy(flatbuffers.number_types.Uint16Flags, vector).tolist() == [1, 2, 3]
    assert table.Offset(4 + 2 * 4) == 0


def test_every_truncated_buffer_is_an_error():
    buffer = write(TABLE)
    for length in range(len(buffer) - 4):  # the last item may end in padding
        with pytest.raises(ProgramError, match="is damaged, or no file of `export`"):
            read_all(buffer[:length])


def test_random_damage_is_an_error_or_another_value():
    generator, buffer = random.Random(0), write(TABLE)
    for _ in range(2000):
        damaged = bytearray(buffer)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            read_all(bytes(damaged))
        except ProgramError as error:
            assert "is damaged" in str(error)


def test_shared_tables_do_not_describe_an_exponential_tree():
    depth = 40
    shared = bytearray(write({}))
    # Each table has a vector of two references to the next one.
    table = {}
    for _ in range(depth):
        table = {0: [table]}
    buffer = bytearray(write(table))
    assert count(read(bytes(buffer))) == depth + 1
    assert len(shared) < len(buffer)
    doubled = bytearray(write({0: [{}, {}]}))
    # Both references point to the root itself: an endless tree.
    root = int.from_bytes(doubled[:4], "little")
    vector = next(p for p in range(root, len(doubled) - 4, 4) if doubled[p : p + 4] == (2).to_bytes(4, "little"))
    for position in (vector + 4, vector + 8):
        doubled[position : position + 4] = ((root - position) % 2**32).to_bytes(4, "little")
    with pytest.raises(ProgramError, match="is damaged"):
        count(read(bytes(doubled)))


def count(table):
    return 1 + sum(map(count, table.tables(0)))

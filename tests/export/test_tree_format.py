"""Pytree structures in files, and the registration of node types."""

from collections import OrderedDict, namedtuple

import pytest

import shardwise as sw
from shardwise import export
from shardwise.export.flatbuffer import read, write
from shardwise.export.tree_format import read_structure, structure_table

Pair = namedtuple("Pair", "first second")


@sw.tree_util.register_pytree_node_class
class Box:
    def __init__(self, content, label):
        self.content, self.label = content, label

    def tree_flatten(self):
        return (self.content,), self.label

    @classmethod
    def tree_unflatten(cls, label, children):
        return cls(*children, label)


export.register_pytree_node_serialization(
    Box, serialized_name="tests.Box", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
)
export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")


STRUCTURES = {
    "leaf": 0,
    "none": None,
    "empty": [(), [], {}],
    "nested": (1, [2, {"b": 3, "a": (None,)}]),
    "ordered": OrderedDict(z=1, a=2),
    "custom": Box([1, 2], "x"),
    "namedtuple": Pair((1,), Box(2, "")),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_read_as_written(name):
    structure = sw.tree.structure(STRUCTURES[name])
    assert read_structure(read(write(structure_table(structure)))) == structure


def test_keys_must_be_strings():
    for value in ({1: 2}, OrderedDict([(1, 2)])):
        with pytest.raises(TypeError, match="must be strings, not 1"):
            structure_table(sw.tree.structure(value))


def test_unregistered_nodes():
    other = namedtuple("Other", "a")
    with pytest.raises(ValueError, match="nodes of the type Other cannot be serialized"):
        structure_table(sw.tree.structure(other(1)))
    table = {**structure_table(sw.tree.structure(Pair(1, 2))), 3: "unknown"}
    with pytest.raises(ValueError, match="the pytree node type 'unknown' is not registered"):
        read_structure(read(write(table)))


def test_wrong_registrations():
    with pytest.raises(ValueError, match=r"Pair is registered already, as 'tests\.Pair'"):
        export.register_namedtuple_serialization(Pair, serialized_name="again")
    with pytest.raises(ValueError, match=r"the name 'tests\.Pair' is registered already, for Pair"):
        export.register_namedtuple_serialization(namedtuple("Third", "a"), serialized_name="tests.Pair")
    with pytest.raises(ValueError, match="int is no namedtuple"):
        export.register_namedtuple_serialization(int, serialized_name="int")
    with pytest.raises(ValueError, match="complex is no pytree node"):
        export.register_pytree_node_serialization(
            complex, serialized_name="complex", serialize_auxdata=bytes, deserialize_auxdata=bytes
        )

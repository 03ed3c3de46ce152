"""Pytree structures in serialized functions, and the node types that users register for them."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar, final

from shardwise import tree
from shardwise.export.flatbuffer import Number, Table, TableReader
from shardwise.tree_util import is_tree_node

T = TypeVar("T")
_LEAF = tree.structure(0)


class _Kind(IntEnum):
    LEAF, NONE, TUPLE, LIST, DICT, CUSTOM = range(6)


class _Field(IntEnum):
    KIND, CHILDREN, NAMES, CUSTOM_NAME, AUXDATA = range(5)


_SEQUENCES = {_Kind.NONE: type(None), _Kind.TUPLE: tuple, _Kind.LIST: list}


@final
@dataclass(frozen=True)
class _NodeFormat:
    """How nodes of a type are serialized; see `register_pytree_node_serialization`."""

    nodetype: type[Any]
    name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None

    def structure(self, auxdata: bytes, children: Sequence[tree.Structure]) -> tree.Structure:
        """Return the structure of a node."""
        data = self.deserialize_auxdata(auxdata)
        if self.from_children is None:
            return type(_LEAF).from_node_data_and_children(tree.registry, (self.nodetype, data), list(children))
        return tree.structure(self.from_children(data, [child.unflatten([0] * child.num_leaves) for child in children]))


_by_type: dict[type[Any], _NodeFormat] = {}
_by_name: dict[str, _NodeFormat] = {}


def register_pytree_node_serialization(
    nodetype: type[T],
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> type[T]:
    """Register a pytree node type, so that functions with such arguments or results can be serialized.

    Args:
        nodetype: the type. It must be a pytree node already.
        serialized_name: the name of the type in files.
        serialize_auxdata: a function from the auxiliary data of a node to bytes.
        deserialize_auxdata: its inverse.
        from_children: a function from auxiliary data and children to a node. By default the node is rebuilt from what
            `register_pytree_node` knows about the type.

    Returns:
        The type, so that the function can be used as a decorator.

    Raises:
        ValueError: if the type or the name is registered already, or if `nodetype` is no pytree node.

    Example:
        >>> @jax.tree_util.register_pytree_node_class
        ... class Pair:
        ...     def __init__(self, *items):
        ...         self.items = items
        ...     def tree_flatten(self):
        ...         return self.items, None
        ...     @classmethod
        ...     def tree_unflatten(cls, _, items):
        ...         return cls(*items)
        >>> jax.export.register_pytree_node_serialization(
        ...     Pair, serialized_name="Pair", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None
        ... ) is Pair
        True
    """
    if nodetype in _by_type:
        raise ValueError(
            f"register_pytree_node_serialization: {nodetype.__name__} is registered already, as "
            f"{_by_type[nodetype].name!r}"
        )
    if serialized_name in _by_name:
        raise ValueError(
            f"register_pytree_node_serialization: the name {serialized_name!r} is registered already, for "
            f"{_by_name[serialized_name].nodetype.__name__}"
        )
    if from_children is None and not is_tree_node(nodetype):
        raise ValueError(
            f"register_pytree_node_serialization: {nodetype.__name__} is no pytree node. Call "
            "`tree_util.register_pytree_node` first, or pass from_children."
        )
    node_format = _NodeFormat(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    _by_type[nodetype] = _by_name[serialized_name] = node_format
    return nodetype


def register_namedtuple_serialization(nodetype: type[T], *, serialized_name: str) -> type[T]:
    """Register a namedtuple, so that functions with such arguments or results can be serialized.

    Args:
        nodetype: the namedtuple. It must have the same fields where a file is loaded.
        serialized_name: the name of the type in files.

    Returns:
        The type, so that the function can be used as a decorator.

    Raises:
        ValueError: if the type or the name is registered already, or if `nodetype` is no namedtuple.

    Example:
        >>> import collections
        >>> Point = collections.namedtuple("Point", "x y")
        >>> jax.export.register_namedtuple_serialization(Point, serialized_name="Point") is Point
        True
    """
    fields = getattr(nodetype, "_fields", None)
    if not issubclass(nodetype, tuple) or fields is None:
        raise ValueError(
            f"register_namedtuple_serialization: {nodetype.__name__} is no namedtuple. Use "
            "`register_pytree_node_serialization`."
        )
    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=lambda names, children: nodetype(**dict(zip(names, children, strict=True))),
    )


def _serialize_keys(keys: Sequence[Any]) -> bytes:
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise TypeError(f"serialize: the keys of an OrderedDict must be strings, not {wrong[0]!r}")
    return json.dumps(keys).encode()


register_pytree_node_serialization(
    OrderedDict,
    serialized_name="collections.OrderedDict",
    serialize_auxdata=_serialize_keys,
    deserialize_auxdata=lambda content: tuple(json.loads(content)),
)


def structure_table(structure: tree.Structure) -> Table:
    """Return the table of a pytree structure.

    Raises:
        TypeError: if the keys of a dict are not strings.
        ValueError: if a node type is not registered.
    """
    node = structure.node_data()
    if node is None:
        return {_Field.KIND: Number("b", _Kind.LEAF)}
    nodetype, auxdata = node
    children: Table = {_Field.CHILDREN: [structure_table(child) for child in structure.children()]}
    for kind, builtin in _SEQUENCES.items():
        if nodetype is builtin:
            return {_Field.KIND: Number("b", kind), **children}
    if nodetype is dict:
        if wrong := [key for key in auxdata if not isinstance(key, str)]:
            raise TypeError(f"serialize: the keys of a dict must be strings, not {wrong[0]!r}")
        return {_Field.KIND: Number("b", _Kind.DICT), **children, _Field.NAMES: list(auxdata)}
    if nodetype not in _by_type:
        raise ValueError(
            f"serialize: nodes of the type {nodetype.__name__} cannot be serialized. Register it with "
            "`export.register_pytree_node_serialization` or `export.register_namedtuple_serialization`."
        )
    node_format = _by_type[nodetype]
    content = node_format.serialize_auxdata(auxdata)
    if not isinstance(content, (bytes, bytearray)):
        raise ValueError(f"serialize: serialize_auxdata of {nodetype.__name__} must return bytes, not {content!r}")
    return {
        _Field.KIND: Number("b", _Kind.CUSTOM),
        **children,
        _Field.CUSTOM_NAME: node_format.name,
        _Field.AUXDATA: bytes(content),
    }


def read_structure(table: TableReader) -> tree.Structure:
    """Return the pytree structure of a table.

    Raises:
        ProgramError: if it is not valid.
        ValueError: if a node type is not registered.
    """
    kind = table.number(_Field.KIND, "b")
    children = [read_structure(child) for child in table.tables(_Field.CHILDREN)]
    make = type(_LEAF).from_node_data_and_children
    if kind == _Kind.LEAF:
        return _LEAF
    if kind == _Kind.NONE:
        return tree.structure(None)
    if kind in _SEQUENCES:
        return make(tree.registry, (_SEQUENCES[_Kind(kind)], None), children)
    if kind == _Kind.DICT:
        names = table.texts(_Field.NAMES)
        if len(names) != len(children) or names != sorted(set(names)):
            raise table.error(f"a dict of {len(children)} items has the keys {names}")
        return make(tree.registry, (dict, names), children)
    if kind != _Kind.CUSTOM:
        raise table.error(f"{kind} is no kind of pytree node")
    name = table.text(_Field.CUSTOM_NAME)
    if name not in _by_name:
        raise ValueError(
            f"deserialize: the pytree node type {name!r} is not registered. Register it with "
            "`export.register_pytree_node_serialization` or `export.register_namedtuple_serialization`."
        )
    return _by_name[name].structure(table.content(_Field.AUXDATA), children)

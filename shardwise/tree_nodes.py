"""Nodes of trees: our registry of their types, the keys of their children, and how types are registered.

A node is an object whose type is registered here; every other object is a leaf.
"""

import dataclasses
import functools
import operator
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, final

from shardwise import _jaxlib

PyTreeDef: TypeAlias = _jaxlib.PyTreeDef
SequenceKey = _jaxlib.SequenceKey
DictKey = _jaxlib.DictKey
GetAttrKey = _jaxlib.GetAttrKey
FlattenedIndexKey = _jaxlib.FlattenedIndexKey
KeyEntry: TypeAlias = Any
KeyPath: TypeAlias = tuple[KeyEntry, ...]

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])

# Our own registry: jaxlib's default one is shared with the jax package.
default_registry = _jaxlib.PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)
default_registry.__module__, default_registry.__name__ = __name__, "default_registry"  # a structure is pickled with it


def is_tree_node(typ: type) -> bool:
    """Whether objects of exactly this type are nodes: built in, registered, or a namedtuple.

    >>> jax.tree_util.is_tree_node(dict), jax.tree_util.is_tree_node(int)
    (True, False)
    """
    return bool(default_registry.is_node(typ))


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Hashable]:
    """The children of a node, and what else it takes to build it.

    >>> children, _ = jax.tree_util.flatten_one_level([1, (2, 3)])
    >>> list(children)
    [1, (2, 3)]
    """
    found = default_registry.flatten_one_level(tree)
    if found is None:
        raise ValueError(f"an object of type {type(tree).__name__} is a leaf: it has no children")
    children, static = found
    return children, static


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Hashable]:
    """The children of a node, each with its key, and what else it takes to build the node.

    >>> jax.tree_util.flatten_one_level_with_keys([5])[0]
    [(SequenceKey(idx=0), 5)]
    """
    _, static = flatten_one_level(tree)
    # Not the method of the same name: in jaxlib 0.10 it gives every child of a namedtuple the first field's name.
    children, _ = default_registry.flatten_with_path(tree, lambda path, _: len(path) > 0)
    return [(path[0], child) for path, child in children], static


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A key path as text: `['layers'][0].w`; with `simple`, the bare keys, to be joined by a separator.

    >>> jax.tree_util.keystr((jax.tree_util.DictKey("w"), jax.tree_util.SequenceKey(0)))
    "['w'][0]"
    """
    return separator.join(bare_key(key) if simple else str(key) for key in keys)


def bare_key(key: KeyEntry) -> str:
    """The name, number or dict key in a key, as text."""
    match key:
        case SequenceKey(idx=bare) | DictKey(key=bare) | GetAttrKey(name=bare) | FlattenedIndexKey(key=bare):
            return str(bare)
    return str(key)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for a message: all of them, or the first and how many there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


# --- registration -----------------------------------------------------------------------------------------------------

_registering = threading.Lock()

# Every type that is registered; for one that was registered as a dataclass, the names of its static fields.
static_fields_of: dict[type, tuple[str, ...]] = dict.fromkeys((tuple, list, dict, type(None)), ())


def _register(
    nodetype: Any, register: Callable[..., Any], *functions: Any, static_fields: tuple[str, ...] = ()
) -> None:
    if not isinstance(nodetype, type):
        raise TypeError(f"only a type can be registered as a tree node, not {nodetype!r}")
    with _registering:
        if nodetype in static_fields_of:
            raise ValueError(f"{nodetype.__qualname__} is a tree node already: a type is registered once")
        register(nodetype, *functions)
        static_fields_of[nodetype] = static_fields


def register_pytree_node(
    nodetype: type[T],
    flatten_func: Callable[[T], tuple[Any, Any]],
    unflatten_func: Callable[[Any, Any], T],
    flatten_with_keys_func: Callable[[T], tuple[Any, Any]] | None = None,
) -> None:
    """Make objects of a type nodes of trees.

    `flatten_func(node)` gives the children and static data, which can be compared and hashed;
    `unflatten_func(static data, children)` builds the node; `flatten_with_keys_func(node)` gives (key, child) pairs.

    >>> Pair = type("Pair", (list,), {})
    >>> jax.tree_util.register_pytree_node(Pair, lambda pair: (tuple(pair), None), lambda _, pair: Pair(pair))
    >>> jax.tree_util.tree_leaves(Pair([1, 2]))
    [1, 2]
    """
    _register(nodetype, default_registry.register_node, flatten_func, unflatten_func, flatten_with_keys_func)


def register_pytree_node_class(cls: Class) -> Class:
    """Make a class with `tree_flatten` and a class method `tree_unflatten` a node; a decorator.

    >>> class Box:
    ...     def __init__(self, item): self.item = item
    ...     def tree_flatten(self): return (self.item,), None
    ...     tree_unflatten = classmethod(lambda cls, _, items: cls(*items))
    ...
    >>> jax.tree_util.tree_leaves(jax.tree_util.register_pytree_node_class(Box)(3))
    [3]
    """
    register_pytree_node(cls, operator.methodcaller("tree_flatten"), cls.tree_unflatten)
    return cls


def register_pytree_with_keys(
    nodetype: type[T],
    flatten_with_keys: Callable[[T], tuple[Iterable[tuple[KeyEntry, Any]], Any]],
    unflatten_func: Callable[[Any, Any], T],
    flatten_func: Callable[[T], tuple[Any, Any]] | None = None,
) -> None:
    """Make objects of a type nodes whose children have keys of their own; `flatten_func`, where given, saves time.

    >>> Keyed = type("Keyed", (list,), {})
    >>> jax.tree_util.register_pytree_with_keys(
    ...     Keyed, lambda x: ([(jax.tree_util.SequenceKey(0), x[0])], None), lambda _, items: Keyed(items)
    ... )
    >>> jax.tree_util.tree_leaves_with_path(Keyed([7]))
    [((SequenceKey(idx=0),), 7)]
    """

    def without_keys(node: T) -> tuple[Any, Any]:
        children, static = flatten_with_keys(node)
        return [child for _, child in children], static

    register_pytree_node(nodetype, flatten_func or without_keys, unflatten_func, flatten_with_keys)


def register_pytree_with_keys_class(cls: Class) -> Class:
    """Make a class with `tree_flatten_with_keys` and a class method `tree_unflatten` a node; a decorator.

    >>> class Named:
    ...     def __init__(self, item): self.item = item
    ...     def tree_flatten_with_keys(self): return [(jax.tree_util.GetAttrKey("item"), self.item)], None
    ...     tree_unflatten = classmethod(lambda cls, _, items: cls(*items))
    ...
    >>> Named = jax.tree_util.register_pytree_with_keys_class(Named)
    >>> jax.tree_util.tree_leaves_with_path(Named(3))
    [((GetAttrKey(name='item'),), 3)]
    """
    flatten_func = operator.methodcaller("tree_flatten") if hasattr(cls, "tree_flatten") else None
    register_pytree_with_keys(cls, operator.methodcaller("tree_flatten_with_keys"), cls.tree_unflatten, flatten_func)
    return cls


def register_dataclass(
    nodetype: Class,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Class:
    """Make a dataclass, or a class built from keywords alike, a node; a decorator.

    `data_fields` are children and `meta_fields` static; by default those marked `field(metadata={"static": True})` are
    static and the others are children. Fields in `drop_fields` are lost: the node is built again with their defaults.

    >>> import dataclasses
    >>> Layer = dataclasses.make_dataclass("Layer", ["weights", "name"])
    >>> Layer = jax.tree_util.register_dataclass(Layer, ["weights"], ["name"])
    >>> jax.tree_util.tree_map(lambda x: 2 * x, Layer(3, "first"))
    Layer(weights=6, name='first')
    """
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("register_dataclass: data_fields and meta_fields are given together, or neither is")
    fields = dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else None
    if data_fields is None or meta_fields is None:
        if fields is None:
            raise TypeError(
                f"register_dataclass: {nodetype!r} is no dataclass: name its data_fields and meta_fields, "
                "or put @dataclass below @register_dataclass"
            )
        kept = [field for field in fields if field.name not in drop_fields]
        meta_fields = [field.name for field in kept if field.metadata.get("static", False)]
        data_fields = [field.name for field in kept if not field.metadata.get("static", False)]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if both := [name for name in data if name in meta]:
        raise ValueError(f"register_dataclass: fields are data or static, not both: {listed(both)}")
    if fields is not None:
        wanted = [field.name for field in fields if field.init and field.name not in drop_fields]
        if missing := [name for name in wanted if name not in data + meta]:
            raise ValueError(
                f"register_dataclass: missing fields of {nodetype.__qualname__}: {listed(missing)}. "
                "Name them in data_fields, meta_fields or drop_fields."
            )
        if unexpected := [name for name in data + meta if name not in wanted]:
            raise ValueError(
                f"register_dataclass: {nodetype.__qualname__}(…) takes no {listed(unexpected)}. "
                "A field with init=False goes into drop_fields."
            )
    _register(nodetype, default_registry.register_dataclass_node, list(data), list(meta), static_fields=meta)
    return nodetype


def register_static(cls: Class) -> Class:
    """Make objects of a class nodes without children: all static, compared by `==` and hashed; a decorator.

    >>> Setting = jax.tree_util.register_static(type("Setting", (), {}))
    >>> jax.tree_util.tree_leaves([1, Setting()])
    [1]
    """
    register_pytree_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


# --- nodes of the standard library ------------------------------------------------------------------------------------


@final
class _Whole:
    """A partial function in a box: `functools.partial` would take it apart and merge its arguments with its own."""

    def __init__(self, function: Callable[..., Any]):
        self.__wrapped__ = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.__wrapped__(*args, **keywords)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, _Whole) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


class Partial(functools.partial[Any]):
    """As `functools.partial`, and a node of trees: its arguments are children, its function is static."""

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **kw: Any) -> "Partial":
        return super().__new__(cls, _Whole(func) if isinstance(func, functools.partial) else func, *args, **kw)


register_pytree_node(
    Partial,
    lambda node: ((node.args, node.keywords), node.func),
    lambda function, children: Partial(function, *children[0], **children[1]),
)
register_pytree_with_keys(
    OrderedDict,
    lambda node: ([(DictKey(key), child) for key, child in node.items()], tuple(node)),
    lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
    lambda node: (tuple(node.values()), tuple(node)),
)


def _default_dict_keys(node: defaultdict[Any, Any]) -> tuple[list[tuple[KeyEntry, Any]], Any]:
    keys = tuple(sorted(node))
    return [(DictKey(key), node[key]) for key in keys], (node.default_factory, keys)


register_pytree_with_keys(
    defaultdict,
    _default_dict_keys,
    lambda static, children: defaultdict(static[0], zip(static[1], children, strict=True)),
)

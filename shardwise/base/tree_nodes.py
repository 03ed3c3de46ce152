"""Pytree nodes: the registry of node types, the keys of their children, and the registration functions.

A node is an object whose type is registered here; every other object is a leaf.
"""

import dataclasses
import functools
import operator
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, final

from shardwise.base import _jaxlib
from shardwise.base.docstrings import Family, Parameter, documented

PyTreeDef: TypeAlias = _jaxlib.PyTreeDef
SequenceKey = _jaxlib.SequenceKey
DictKey = _jaxlib.DictKey
GetAttrKey = _jaxlib.GetAttrKey
FlattenedIndexKey = _jaxlib.FlattenedIndexKey
KeyEntry: TypeAlias = Any
KeyPath: TypeAlias = tuple[KeyEntry, ...]

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])

# A separate registry: jaxlib's default registry is shared with the jax package.
default_registry = _jaxlib.PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)
# Treedefs pickle the registry by its module and name.
default_registry.__module__, default_registry.__name__ = __name__, "default_registry"


def is_tree_node(typ: type) -> bool:
    """Return whether objects of a type are pytree nodes.

    Args:
        typ: the type. Subclasses of a registered type are not nodes, except for namedtuples.

    Returns:
        True if the type is built in (tuple, list, dict, None), registered, or a namedtuple.

    Raises:
        TypeError: if `typ` is None instead of `type(None)`.

    Example:
        >>> jax.tree_util.is_tree_node(dict), jax.tree_util.is_tree_node(int)
        (True, False)
    """
    return bool(default_registry.is_node(typ))


_NODE = Family({"tree": Parameter("the node.", "ValueError: if {} is a leaf.")})
_NODE_TYPE = Family(
    {"nodetype": "the type.", "unflatten_func": "a function from auxiliary data and children to a node."},
    raises=["TypeError: if `nodetype` is not a type.", "ValueError: if `nodetype` is already registered."],
)
_NODE_CLASS = Family({"cls": Parameter(error="ValueError: if {} is already registered.")}, returns="The class.")


@documented(_NODE, returns="The children and the auxiliary data of the node.")
def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Hashable]:
    """Flatten a pytree node by one level.

    Example:
        >>> children, _ = jax.tree_util.flatten_one_level([1, (2, 3)])
        >>> list(children)
        [1, (2, 3)]
    """
    flattened = default_registry.flatten_one_level(tree)
    if flattened is None:
        raise ValueError(f"an object of type {type(tree).__name__} is a pytree leaf and has no children")
    children, aux_data = flattened
    return children, aux_data


@documented(_NODE)
def flatten_one_level_with_keys(tree: object) -> tuple[list[tuple[KeyEntry, Any]], Hashable]:
    """Flatten a pytree node by one level, with the keys of its children.

    Returns:
        A list of (key, child) pairs, and the auxiliary data of the node.

    Example:
        >>> jax.tree_util.flatten_one_level_with_keys([5])[0]
        [(SequenceKey(idx=0), 5)]
    """
    _, aux_data = flatten_one_level(tree)
    # Not the method of the same name: in jaxlib 0.10 it returns the first field's name for every child of a namedtuple.
    children, _ = default_registry.flatten_with_path(tree, lambda path, _: len(path) > 0)
    return [(path[0], child) for path, child in children], aux_data


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """Format a key path, such as `['layers'][0].w`.

    Args:
        keys: the key path.
        simple: whether to print bare keys without brackets, quotes and dots.
        separator: the string between keys.

    Returns:
        The formatted path.

    Raises:
        TypeError: if `keys` is not iterable.

    Example:
        >>> jax.tree_util.keystr((jax.tree_util.DictKey("w"), jax.tree_util.SequenceKey(0)))
        "['w'][0]"
    """
    return separator.join(bare_key(key) if simple else str(key) for key in keys)


def bare_key(key: KeyEntry) -> str:
    """Return the attribute name, index or dict key of a key entry as text."""
    match key:
        case SequenceKey(idx=bare) | DictKey(key=bare) | GetAttrKey(name=bare) | FlattenedIndexKey(key=bare):
            return str(bare)
    return str(key)


def join_names(names: Sequence[str], limit: int = 8) -> str:
    """Join names for an error message; of more than `limit`, only the first and the total number are included."""
    joined = ", ".join(names[:limit])
    return joined if len(names) <= limit else f"{joined}, … ({len(names)} in all)"


# --- registration -----------------------------------------------------------------------------------------------------

_registration_lock = threading.Lock()

# All registered types, with the names of the static fields of dataclasses.
static_fields_of: dict[type, tuple[str, ...]] = dict.fromkeys((tuple, list, dict, type(None)), ())


def _register(
    nodetype: type[Any],
    register: Callable[..., Any],
    *functions: object,
    static_fields: tuple[str, ...] = (),
) -> None:
    if not isinstance(nodetype, type):
        raise TypeError(f"only a type can be registered as a pytree node, not {nodetype!r}")
    with _registration_lock:
        if nodetype in static_fields_of:
            raise ValueError(f"{nodetype.__qualname__} is already registered as a pytree node")
        register(nodetype, *functions)
        static_fields_of[nodetype] = static_fields


@documented(_NODE_TYPE)
def register_pytree_node(
    nodetype: type[T],
    flatten_func: Callable[[T], tuple[Any, Any]],
    unflatten_func: Callable[[Any, Any], T],
    flatten_with_keys_func: Callable[[T], tuple[Any, Any]] | None = None,
) -> None:
    """Register a type as a pytree node.

    Args:
        flatten_func: a function from a node to its children and its auxiliary data, which must be hashable and
            comparable.
        flatten_with_keys_func: a function from a node to (key, child) pairs and its auxiliary data. By default the keys
            are indices.

    Example:
        >>> Pair = type("Pair", (list,), {})
        >>> jax.tree_util.register_pytree_node(Pair, lambda pair: (tuple(pair), None), lambda _, pair: Pair(pair))
        >>> jax.tree_util.tree_leaves(Pair([1, 2]))
        [1, 2]
    """
    _register(nodetype, default_registry.register_node, flatten_func, unflatten_func, flatten_with_keys_func)


@documented(_NODE_CLASS, raises=["AttributeError: if `cls` has no `tree_unflatten`."])
def register_pytree_node_class(cls: Class) -> Class:
    """Register a class as a pytree node by its own methods; a decorator.

    Args:
        cls: a class with a method `tree_flatten()` and a class method `tree_unflatten(aux_data, children)`.

    Example:
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


@documented(_NODE_TYPE)
def register_pytree_with_keys(
    nodetype: type[T],
    flatten_with_keys: Callable[[T], tuple[Iterable[tuple[KeyEntry, Any]], Any]],
    unflatten_func: Callable[[Any, Any], T],
    flatten_func: Callable[[T], tuple[Any, Any]] | None = None,
) -> None:
    """Register a type as a pytree node whose children have keys.

    Args:
        flatten_with_keys: a function from a node to (key, child) pairs and its auxiliary data, which must be hashable
            and comparable.
        flatten_func: a faster alternative to `flatten_with_keys` without keys.

    Example:
        >>> Keyed = type("Keyed", (list,), {})
        >>> jax.tree_util.register_pytree_with_keys(
        ...     Keyed, lambda x: ([(jax.tree_util.SequenceKey(0), x[0])], None), lambda _, items: Keyed(items)
        ... )
        >>> jax.tree_util.tree_leaves_with_path(Keyed([7]))
        [((SequenceKey(idx=0),), 7)]
    """

    def without_keys(node: T) -> tuple[Any, Any]:
        children, aux_data = flatten_with_keys(node)
        return [child for _, child in children], aux_data

    register_pytree_node(nodetype, flatten_func or without_keys, unflatten_func, flatten_with_keys)


@documented(_NODE_CLASS, raises=["AttributeError: if `cls` has no `tree_unflatten`."])
def register_pytree_with_keys_class(cls: Class) -> Class:
    """Register a class as a pytree node with keys by its own methods; a decorator.

    Args:
        cls: a class with a method `tree_flatten_with_keys()` and a class method `tree_unflatten(aux_data, children)`.
            A method `tree_flatten()`, if there is one, is used where no keys are needed.

    Example:
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
    """Register a dataclass as a pytree node; a decorator.

    Args:
        nodetype: a dataclass, or another class whose constructor accepts its fields as keywords.
        data_fields: the names of the fields that are children. By default, those that are not static.
        meta_fields: the names of the fields that are static auxiliary data. By default, those declared with
            `field(metadata={"static": True})`.
        drop_fields: the names of the fields that are neither. Unflattening sets them to their defaults.

    Returns:
        The class.

    Raises:
        TypeError: if only one of `data_fields` and `meta_fields` is given, or neither for a class that is not a
            dataclass.
        ValueError: if a field is missing, unknown, or both data and static, or the class is already registered.

    Example:
        >>> import dataclasses
        >>> Layer = dataclasses.make_dataclass("Layer", ["weights", "name"])
        >>> Layer = jax.tree_util.register_dataclass(Layer, ["weights"], ["name"])
        >>> jax.tree_util.tree_map(lambda x: 2 * x, Layer(3, "first"))
        Layer(weights=6, name='first')
    """
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("register_dataclass: pass both data_fields and meta_fields, or neither")
    fields = dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else None
    if data_fields is None or meta_fields is None:
        if fields is None:
            raise TypeError(
                f"register_dataclass: {nodetype!r} is not a dataclass: pass its data_fields and meta_fields, "
                "or put @dataclass below @register_dataclass"
            )
        kept = [field for field in fields if field.name not in drop_fields]
        meta_fields = [field.name for field in kept if field.metadata.get("static", False)]
        data_fields = [field.name for field in kept if not field.metadata.get("static", False)]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if both := [name for name in data if name in meta]:
        raise ValueError(f"register_dataclass: fields cannot be both data and static: {join_names(both)}")
    if fields is not None:
        init_names = [field.name for field in fields if field.init and field.name not in drop_fields]
        if missing := [name for name in init_names if name not in data + meta]:
            raise ValueError(
                f"register_dataclass: missing fields of {nodetype.__qualname__}: {join_names(missing)}. "
                "Add them to data_fields, meta_fields or drop_fields."
            )
        if unexpected := [name for name in data + meta if name not in init_names]:
            raise ValueError(
                f"register_dataclass: {nodetype.__qualname__}(…) has no parameters {join_names(unexpected)}. "
                "Add fields with init=False to drop_fields."
            )
    _register(nodetype, default_registry.register_dataclass_node, list(data), list(meta), static_fields=meta)
    return nodetype


@documented(_NODE_CLASS, raises=["TypeError: if `cls` is not a type."])
def register_static(cls: Class) -> Class:
    """Register a class as a pytree node without children, so that its objects are static; a decorator.

    Args:
        cls: the class. Its objects must be hashable and comparable.

    Example:
        >>> Setting = jax.tree_util.register_static(type("Setting", (), {}))
        >>> jax.tree_util.tree_leaves([1, Setting()])
        [1]
    """
    register_pytree_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


# --- nodes of the standard library ------------------------------------------------------------------------------------


@final
class _OpaquePartial:
    """A wrapper of a partial function, because `functools.partial` merges nested partials and so their arguments."""

    def __init__(self, function: Callable[..., Any]):
        self.__wrapped__ = function

    def __call__(self, *args: object, **keywords: object) -> Any:
        return self.__wrapped__(*args, **keywords)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, _OpaquePartial) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


class Partial(functools.partial[Any]):
    """A `functools.partial` that is a pytree node: its arguments are children, its function is static.

    Args:
        func: the function.
        *args: positional arguments to bind.
        **kw: keyword arguments to bind.

    Raises:
        TypeError: if `func` is not callable.

    Example:
        >>> jax.tree_util.tree_leaves(jax.tree_util.Partial(jnp.add, 1))
        [1]
    """

    def __new__(cls, func: Callable[..., Any], *args: object, **kw: object) -> "Partial":
        return super().__new__(cls, _OpaquePartial(func) if isinstance(func, functools.partial) else func, *args, **kw)


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
    lambda aux_data, children: defaultdict(aux_data[0], zip(aux_data[1], children, strict=True)),
)

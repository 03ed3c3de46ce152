"""Functions of whole trees: arrays in nested tuples, lists, dicts, None and registered types.

Flatten, build, map, reduce, key paths, and where two trees differ. What a node is, `tree_nodes` says; `tree` has the
short names.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, final

from shardwise import _jaxlib
from shardwise.tree_nodes import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    Partial,
    PyTreeDef,
    SequenceKey,
    bare_key,
    default_registry,
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
    keystr,
    listed,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    static_fields_of,
)

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "build_tree",
    "default_registry",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

T = TypeVar("T")
IsLeaf: TypeAlias = Callable[[Any], bool] | None


@final
class _Unspecified:
    def __repr__(self) -> str:
        return "<unspecified>"


_UNSPECIFIED: Any = _Unspecified()


# --- flatten and build ------------------------------------------------------------------------------------------------


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree, in order, and its structure; a node of which `is_leaf` is true counts as a leaf.

    >>> jax.tree_util.tree_flatten({"a": 1, "b": (2, 3)})
    ([1, 2, 3], PyTreeDef({'a': *, 'b': (*, *)}))
    """
    try:
        leaves, treedef = default_registry.flatten(tree, is_leaf)
    except SystemError as error:  # how a RecursionError comes out of jaxlib
        raise (error.__cause__ or error) from None
    return leaves, treedef


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves.

    >>> jax.tree_util.tree_unflatten(jax.tree_util.tree_structure((0, [0])), [1, 2])
    (1, [2])
    """
    return treedef.unflatten(leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order.

    >>> jax.tree_util.tree_leaves({"a": 1, "b": (2, None)})
    [1, 2]
    """
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree: all of it but the leaves.

    >>> jax.tree_util.tree_structure({"a": 1, "b": (2, 3)})
    PyTreeDef({'a': *, 'b': (*, *)})
    """
    return tree_flatten(tree, is_leaf)[1]


def build_tree(treedef: PyTreeDef, xs: Any) -> Any:
    """The tree with this structure whose leaves stand in `xs`, nested alike, but in any iterables.

    >>> jax.tree_util.build_tree(jax.tree_util.tree_structure((0, [0, 0])), [1, (2, 3)])
    (1, [2, 3])
    """
    return treedef.from_iterable_tree(xs)


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees with these structures.

    >>> jax.tree_util.treedef_tuple([jax.tree_util.tree_structure(1), jax.tree_util.tree_structure([2])])
    PyTreeDef((*, [*]))
    """
    return _jaxlib.treedef_tuple(default_registry, list(treedefs))


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures right below the root.

    >>> jax.tree_util.treedef_children(jax.tree_util.tree_structure((1, [2])))
    [PyTreeDef(*), PyTreeDef([*])]
    """
    children: list[PyTreeDef] = treedef.children()
    return children


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure has nothing below its root: that of a leaf, of None or of an empty container.

    >>> jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure([1]))
    False
    """
    return bool(treedef.num_nodes == 1)


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether no item is a node.

    >>> jax.tree_util.all_leaves([1, 2]), jax.tree_util.all_leaves([1, (2, 3)])
    (True, False)
    """
    if is_leaf is None:
        return bool(_jaxlib.all_leaves(default_registry, iterable))
    return all(is_leaf(item) or not is_tree_node(type(item)) for item in iterable)


# --- map, reduce, transpose, broadcast --------------------------------------------------------------------------------


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of `f(leaf, *what the rest have there)`: the rest have its structure, or more below its leaves.

    >>> jax.tree_util.tree_map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
    {'a': 11, 'b': [22]}
    """
    leaves, treedef = tree_flatten(tree, is_leaf)
    if not rest:
        return treedef.unflatten([f(leaf) for leaf in leaves])
    columns = _columns("tree.map", treedef, tree, rest)
    return treedef.unflatten([f(*items) for items in zip(leaves, *columns, strict=True)])


def tree_reduce(function: Callable[[T, Any], T], tree: Any, initializer: T = _UNSPECIFIED, is_leaf: IsLeaf = None) -> T:
    """The leaves folded from the left: `function(function(initializer, first leaf), second leaf)` and so on.

    >>> jax.tree_util.tree_reduce(lambda x, y: x - y, (10, [3, 2]))
    5
    """
    leaves = tree_leaves(tree, is_leaf)
    if initializer is not _UNSPECIFIED:
        return functools.reduce(function, leaves, initializer)
    if not leaves:
        raise TypeError("tree.reduce: the tree has no leaves: give an initializer")
    result: T = functools.reduce(function, leaves)
    return result


def tree_reduce_associative(
    operation: Callable[[T, T], T], tree: Any, *, identity: T = _UNSPECIFIED, is_leaf: IsLeaf = None
) -> T:
    """The leaves combined in pairs, then pairs of pairs; `identity` is the result where there are no leaves.

    >>> jax.tree_util.tree_reduce_associative(lambda x, y: x + y, (1, [2, 3]))
    6
    """
    leaves = tree_leaves(tree, is_leaf)
    if not leaves:
        if identity is _UNSPECIFIED:
            raise TypeError("tree.reduce_associative: the tree has no leaves: give an identity")
        return identity

    def combined(start: int, stop: int) -> Any:
        if stop - start == 1:
            return leaves[start]
        middle = start + (stop - start) // 2
        return operation(combined(start, middle), combined(middle, stop))

    result: T = combined(0, len(leaves))
    return result


def tree_all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true.

    >>> jax.tree_util.tree_all((True, [1, 0]))
    False
    """
    return all(tree_leaves(tree, is_leaf))


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """A tree of trees turned inside out; without `inner_treedef`, the first tree inside shows the inner structure.

    >>> jax.tree_util.tree_transpose(jax.tree_util.tree_structure([0, 0]), None, [(1, 2), (3, 4)])
    ([1, 3], [2, 4])
    """
    leaves, treedef = tree_flatten(pytree_to_transpose)
    if inner_treedef is None:
        try:
            parts = outer_treedef.flatten_up_to(pytree_to_transpose)
        except ValueError as error:
            raise ValueError(
                f"tree.transpose: the tree does not begin with the outer structure\n  {treedef}\n  {outer_treedef}"
            ) from error
        if not parts:
            raise TypeError("tree.transpose: the outer structure has no leaves: give the inner structure")
        inner_treedef = tree_structure(parts[0])
    outer, inner = outer_treedef.num_leaves, inner_treedef.num_leaves
    if len(leaves) != outer * inner:
        raise TypeError(
            f"tree.transpose: the tree has {len(leaves)} leaves, but an outer structure of {outer} leaves around an "
            f"inner one of {inner} has {outer * inner}:\n  {treedef}\n  {outer_treedef.compose(inner_treedef)}"
        )
    return inner_treedef.unflatten([outer_treedef.unflatten(leaves[number::inner]) for number in range(inner)])


def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """`full_tree`, with each leaf replaced by the leaf of `prefix_tree` at or above it.

    >>> jax.tree_util.tree_broadcast((1, 2), (0, [0, 0]))
    (1, [2, 2])
    """
    return tree_structure(full_tree).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def broadcast_prefix(prefix: Any, tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """For each leaf of `tree`, the leaf of `prefix` at or above it. TreeMismatch where `prefix` does not fit."""
    given, treedef = tree_flatten(prefix, is_leaf)
    try:
        parts = treedef.flatten_up_to(tree)
    except ValueError:
        difference = first_difference(treedef, prefix, tree)
        if difference is None:  # it is the user's own error
            raise
        text = difference.of_prefix(f"prefix_tree{keystr(difference.path)}", "full_tree")
        raise TreeMismatch(f"tree.broadcast: {text}", difference) from None
    return [item for item, part in zip(given, parts, strict=True) for _ in range(tree_structure(part).num_leaves)]


def _columns(name: str, treedef: PyTreeDef, tree: Any, rest: tuple[Any, ...]) -> list[list[Any]]:
    """What each tree of `rest` has at the leaves of `tree`, whose structure is `treedef`."""
    columns: list[list[Any]] = []
    for number, other in enumerate(rest, 1):
        try:
            columns.append(treedef.flatten_up_to(other))
        except ValueError:
            difference = first_difference(treedef, tree, other)
            if difference is None:  # it is the user's own error
                raise
            which = "trees" if len(rest) == 1 else f"trees 0 and {number}"
            raise TreeMismatch(f"{name}: {which} differ {difference}", difference) from None
    return columns


# --- key paths --------------------------------------------------------------------------------------------------------


def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """The leaves of a tree, each with the keys that lead to it, and the tree's structure.

    >>> jax.tree_util.tree_flatten_with_path({"a": 1})[0]
    [((DictKey(key='a'),), 1)]
    """

    def without_path(_: KeyPath, node: Any) -> bool:
        return is_leaf is not None and is_leaf(node)

    try:
        leaves, treedef = default_registry.flatten_with_path(
            tree, is_leaf if is_leaf is None or is_leaf_takes_path else without_path
        )
    except SystemError as error:
        raise (error.__cause__ or error) from None
    return leaves, treedef


def tree_leaves_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The leaves of a tree, each with the keys that lead to it.

    >>> jax.tree_util.tree_leaves_with_path([1])
    [((SequenceKey(idx=0),), 1)]
    """
    return tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def tree_map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """As `tree_map`, where `f` is also given, first, the keys that lead to the leaf.

    >>> jax.tree_util.tree_map_with_path(lambda path, x: (path[0].key, x), {"a": 1})
    {'a': ('a', 1)}
    """
    found, treedef = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = _columns("tree.map_with_path", treedef, tree, rest)
    return treedef.unflatten([f(*pair, *items) for pair, *items in zip(found, *columns, strict=True)])


def leaf_names(tree: Any, root: str) -> list[str]:
    """How a Python program would name each leaf: `root['w'][0]`."""
    return [root + keystr(path) for path, _ in tree_leaves_with_path(tree)]


# --- differences ------------------------------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True)
class Difference:
    """Where two trees part, and in words what each has there; what only one of them has, and a hint."""

    path: KeyPath
    first: str
    second: str
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    hint: str = ""
    second_is_leaf: bool = False

    def __str__(self) -> str:
        """`at ['layers'][0]: dict with keys {'b', 'w'} against dict with keys {'w'}: missing 'b'`."""
        place = keystr(self.path) or "the root"
        return f"at {place}: {self.first} against {self.second}" + self._why(self.only_first, self.only_second)

    def of_prefix(self, place: str, whole: str) -> str:
        """The same for a prefix (the first tree) that was given for `whole` (the second)."""
        return f"{place}: {self.first} against {self.second} in {whole}" + self._why(self.only_second, self.only_first)

    def _why(self, missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
        counts = [("missing", missing), ("unexpected", unexpected)]
        reasons = [f"{word} {listed(names)}" for word, names in counts if names]
        return "".join(f": {text}" for text in (", ".join(reasons), self.hint) if text)


class TreeMismatch(ValueError):
    """Two trees do not fit together; `difference` says where and how."""

    def __init__(self, message: str, difference: Difference):
        super().__init__(message, difference)
        self.difference = difference

    def __str__(self) -> str:
        return str(self.args[0])


def first_difference(treedef: PyTreeDef, first: Any, second: Any, path: KeyPath = ()) -> Difference | None:
    """The first place where `first`, whose structure is `treedef`, is no prefix of `second`; None if it is one."""
    if treedef.node_data() is None:
        return None
    if type(first) is not type(second):
        return _different_types(first, second, path)
    ours, our_static = flatten_one_level_with_keys(first)
    theirs, their_static = flatten_one_level_with_keys(second)
    if len(ours) != len(theirs) or our_static != their_static:
        return _different_nodes(first, second, path)
    for below, (key, child), (_, other) in zip(treedef.children(), ours, theirs, strict=True):
        if found := first_difference(below, child, other, (*path, key)):
            return found
    return None


def _different_types(first: Any, second: Any, path: KeyPath) -> Difference:
    kinds = type(first), type(second)
    texts, hint = [_described(first), _described(second)], ""
    if first is None:
        hint = "None is a tree without leaves; is_leaf=lambda x: x is None makes it a leaf"
    elif kinds[0].__name__ == kinds[1].__name__:
        texts = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
        hint = "two classes of one name" + ("" if is_tree_node(kinds[1]) else ", and the second is not registered")
    return Difference(path, texts[0], texts[1], hint=hint, second_is_leaf=not is_tree_node(kinds[1]))


def _different_nodes(first: Any, second: Any, path: KeyPath) -> Difference:
    """Two nodes of one type with different children, or with different static data."""
    ours, theirs = _child_names(first), _child_names(second)
    if set(ours) != set(theirs) or _child_count(first) != _child_count(second):
        shared = set(ours) & set(theirs)
        only_first, only_second = (tuple(name for name in names if name not in shared) for names in (ours, theirs))
        return Difference(path, _described(first), _described(second), only_first, only_second)
    if ours != theirs:
        words = [f"keys in the order {listed(names)}" for names in (ours, theirs)]
    elif fields := static_fields_of.get(type(first)):
        apart = [name for name in fields if getattr(first, name) != getattr(second, name)]
        words = [", ".join(f"{name}={reprlib.repr(getattr(node, name))}" for name in apart) for node in (first, second)]
    else:
        words = [f"static data {reprlib.repr(flatten_one_level(node)[1])}" for node in (first, second)]
    kind = type(first).__name__
    return Difference(path, f"{kind} with {words[0]}", f"{kind} with {words[1]}")


def _described(node: Any) -> str:
    kind = type(node).__name__
    if node is None:
        return "None"
    if not is_tree_node(type(node)):
        return f"leaf of type {kind}"
    if names := _child_names(node):
        return f"{kind} with {'keys' if isinstance(node, dict) else 'children'} {{{listed(names)}}}"
    if isinstance(node, dict):
        return f"{kind} without keys"
    count = _child_count(node)
    if isinstance(node, (list, tuple)):
        return f"{kind} of length {count}"
    return f"{kind} with {count} {'child' if count == 1 else 'children'}"


def _child_names(node: Any) -> list[str]:
    """What messages call the children of a node; nothing where they only have numbers."""
    keys = [key for key, _ in flatten_one_level_with_keys(node)[0]]
    named = [key for key in keys if not isinstance(key, (SequenceKey, FlattenedIndexKey))]
    return [repr(key.key) if isinstance(key, DictKey) else bare_key(key) for key in named]


def _child_count(node: Any) -> int:
    return len(tuple(flatten_one_level(node)[0]))

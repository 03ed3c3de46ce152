"""Pytree functions: flatten, unflatten, map, reduce, key paths, and the difference between two pytrees.

A pytree is a nested structure of tuples, lists, dicts, None and registered types. `tree_nodes` registers node types;
`tree` has the short names of these functions.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, final

from shardwise.base import _jaxlib
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import set_public_names
from shardwise.base.tree_nodes import (
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
    join_names,
    keystr,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    static_fields_of,
)
from shardwise.base.unspecified import UNSPECIFIED

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


_TREE = Family(
    {
        "tree": "the pytree.",
        "treedef": "the structure.",
        "is_leaf": "a predicate. Nodes for which it is true count as leaves.",
        "is_leaf_takes_path": "whether `is_leaf` is called with the key path and the node, instead of the node only.",
    }
)
_FLATTENED = _TREE.extended(
    raises=[
        "ValueError: if the keys of a dict cannot be sorted.",
        "RecursionError: if the pytree contains itself.",
    ]
)
_MAPPED = _TREE.extended(
    {
        "*rest": "further pytrees. The structure of `tree` must be a prefix of theirs.",
        "is_leaf": "a predicate. Nodes of `tree` for which it is true count as leaves.",
    },
    returns="The pytree of the results, with the structure of `tree`.",
    raises=["ValueError: if the structure of `tree` is not a prefix of that of a pytree of `rest`."],
)


# --- flatten and build ------------------------------------------------------------------------------------------------


@documented(_FLATTENED, returns="The list of leaves and the treedef.")
def tree_flatten(tree: object, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """Flatten a pytree into its leaves and its structure.

    Example:
        >>> jax.tree_util.tree_flatten({"a": 1, "b": (2, 3)})
        ([1, 2, 3], PyTreeDef({'a': *, 'b': (*, *)}))
    """
    try:
        leaves, treedef = default_registry.flatten(tree, is_leaf)
    except SystemError as error:  # jaxlib wraps a RecursionError in it
        raise (error.__cause__ or error) from None
    return leaves, treedef


@documented(_TREE, returns="The pytree.")
def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """Build a pytree from its structure and its leaves.

    Args:
        leaves: the leaves, in the order of `tree_flatten`.

    Raises:
        TypeError: if `leaves` is not iterable.
        ValueError: if the number of leaves does not match the structure.

    Example:
        >>> jax.tree_util.tree_unflatten(jax.tree_util.tree_structure((0, [0])), [1, 2])
        (1, [2])
    """
    return treedef.unflatten(leaves)


@documented(_FLATTENED, returns="The list of leaves.")
def tree_leaves(tree: object, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves of a pytree.

    Example:
        >>> jax.tree_util.tree_leaves({"a": 1, "b": (2, None)})
        [1, 2]
    """
    return tree_flatten(tree, is_leaf)[0]


@documented(_FLATTENED, returns="The treedef.")
def tree_structure(tree: object, is_leaf: IsLeaf = None) -> PyTreeDef:
    """Return the structure of a pytree.

    Example:
        >>> jax.tree_util.tree_structure({"a": 1, "b": (2, 3)})
        PyTreeDef({'a': *, 'b': (*, *)})
    """
    return tree_flatten(tree, is_leaf)[1]


@documented(_TREE, returns="The pytree.")
def build_tree(treedef: PyTreeDef, xs: object) -> Any:
    """Build a pytree from its structure and nested iterables of its leaves.

    Args:
        xs: the leaves in iterables of any type, nested like the structure.

    Raises:
        TypeError: if there is a leaf in place of an iterable.
        ValueError: if an iterable has the wrong length.

    Example:
        >>> jax.tree_util.build_tree(jax.tree_util.tree_structure((0, [0, 0])), [1, (2, 3)])
        (1, [2, 3])
    """
    return treedef.from_iterable_tree(xs)


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """Return the structure of a tuple of pytrees.

    Args:
        treedefs: the structure of each pytree.

    Returns:
        The treedef of the tuple.

    Raises:
        TypeError: if `treedefs` is not iterable, or holds something other than structures.

    Example:
        >>> jax.tree_util.treedef_tuple([jax.tree_util.tree_structure(1), jax.tree_util.tree_structure([2])])
        PyTreeDef((*, [*]))
    """
    children = list(treedefs)
    for child in children:
        if type(child) is not type(tree_structure(None)):
            raise TypeError(f"treedef_tuple: needs structures of pytrees, such as `tree.structure(x)`, not {child!r}")
    return _jaxlib.treedef_tuple(default_registry, children)


@documented(_TREE, returns="A list with one treedef per child.")
def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """Return the structures of the children of the root.

    Raises:
        AttributeError: if `treedef` is not a treedef.

    Example:
        >>> jax.tree_util.treedef_children(jax.tree_util.tree_structure((1, [2])))
        [PyTreeDef(*), PyTreeDef([*])]
    """
    children: list[PyTreeDef] = treedef.children()
    return children


@documented(_TREE, raises=["AttributeError: if `treedef` is not a treedef."])
def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Return whether a structure has no nodes below its root.

    Returns:
        True for the structure of a leaf, of None and of an empty container.

    Example:
        >>> jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure([1]))
        False
    """
    return bool(treedef.num_nodes == 1)


@documented(_TREE, returns="False if an item is a node, else True.")
def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Return whether all items are pytree leaves.

    Args:
        iterable: the items.

    Raises:
        TypeError: if `iterable` is not iterable.

    Example:
        >>> jax.tree_util.all_leaves([1, 2]), jax.tree_util.all_leaves([1, (2, 3)])
        (True, False)
    """
    if is_leaf is None:
        return bool(_jaxlib.all_leaves(default_registry, iterable))
    return all(is_leaf(item) or not is_tree_node(type(item)) for item in iterable)


# --- map, reduce, transpose, broadcast --------------------------------------------------------------------------------


@documented(_MAPPED)
def tree_map(f: Callable[..., Any], tree: object, *rest: object, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to the leaves of a pytree.

    Args:
        f: the function. It is called with a leaf of `tree` and the subtrees of `rest` at the same position.

    Example:
        >>> jax.tree_util.tree_map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
        {'a': 11, 'b': [22]}
    """
    leaves, treedef = tree_flatten(tree, is_leaf)
    if not rest:
        return treedef.unflatten([f(leaf) for leaf in leaves])
    subtrees = _flatten_rest("tree.map", treedef, tree, rest)
    return treedef.unflatten([f(*args) for args in zip(leaves, *subtrees, strict=True)])


@documented(_TREE, returns="The accumulated value.", raises=["TypeError: if there are no leaves and no initializer."])
def tree_reduce(
    function: Callable[[T, Any], T], tree: object, initializer: T = UNSPECIFIED, is_leaf: IsLeaf = None
) -> T:
    """Reduce the leaves of a pytree from left to right, as `functools.reduce` does.

    Args:
        function: a function of the accumulated value and a leaf.
        initializer: the initial value. By default, the first leaf.

    Example:
        >>> jax.tree_util.tree_reduce(lambda x, y: x - y, (10, [3, 2]))
        5
    """
    leaves = tree_leaves(tree, is_leaf)
    if initializer is not UNSPECIFIED:
        return functools.reduce(function, leaves, initializer)
    if not leaves:
        raise TypeError("tree.reduce: the tree has no leaves; pass an initializer")
    result: T = functools.reduce(function, leaves)
    return result


@documented(_TREE, returns="The reduced value.", raises=["TypeError: if there are no leaves and no identity."])
def tree_reduce_associative(
    operation: Callable[[T, T], T], tree: object, *, identity: T = UNSPECIFIED, is_leaf: IsLeaf = None
) -> T:
    """Reduce the leaves of a pytree as a balanced binary tree.

    Args:
        operation: an associative function of two values.
        identity: the result if there are no leaves.

    Example:
        >>> jax.tree_util.tree_reduce_associative(lambda x, y: x + y, (1, [2, 3]))
        6
    """
    leaves = tree_leaves(tree, is_leaf)
    if not leaves:
        if identity is UNSPECIFIED:
            raise TypeError("tree.reduce_associative: the tree has no leaves; pass an identity")
        return identity

    def reduce_range(start: int, stop: int) -> Any:
        if stop - start == 1:
            return leaves[start]
        middle = start + (stop - start) // 2
        return operation(reduce_range(start, middle), reduce_range(middle, stop))

    result: T = reduce_range(0, len(leaves))
    return result


@documented(_TREE, returns="True if `bool(leaf)` is true for every leaf.")
def tree_all(tree: object, *, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves of a pytree are true.

    Raises:
        ValueError: if a leaf is an array of several elements.

    Example:
        >>> jax.tree_util.tree_all((True, [1, 0]))
        False
    """
    return all(tree_leaves(tree, is_leaf))


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: object) -> Any:
    """Transpose a pytree of pytrees: exchange its outer and its inner structure.

    Args:
        outer_treedef: the outer structure.
        inner_treedef: the structure of each inner pytree. By default, that of the first one.
        pytree_to_transpose: the pytree.

    Returns:
        A pytree of the inner structure whose leaves have the outer structure.

    Raises:
        TypeError: if the number of leaves does not match the structures, or the outer structure has no leaves and no
            inner structure is given.
        ValueError: if the inner structure is not given, and the outer one is not a prefix of the pytree.

    Example:
        >>> jax.tree_util.tree_transpose(jax.tree_util.tree_structure([0, 0]), None, [(1, 2), (3, 4)])
        ([1, 3], [2, 4])
    """
    leaves, treedef = tree_flatten(pytree_to_transpose)
    if inner_treedef is None:
        try:
            inner_trees = outer_treedef.flatten_up_to(pytree_to_transpose)
        except ValueError as error:
            raise ValueError(
                "tree.transpose: the outer structure is not a prefix of the tree: "
                f"tree and outer structure are\n  {treedef}\n  {outer_treedef}"
            ) from error
        if not inner_trees:
            raise TypeError("tree.transpose: the outer structure has no leaves; pass the inner structure")
        inner_treedef = tree_structure(inner_trees[0])
    outer, inner = outer_treedef.num_leaves, inner_treedef.num_leaves
    if len(leaves) != outer * inner:
        raise TypeError(
            f"tree.transpose: the tree has {len(leaves)} leaves, but an outer structure of {outer} leaves around an "
            f"inner one of {inner} has {outer * inner}:\n  {treedef}\n  {outer_treedef.compose(inner_treedef)}"
        )
    return inner_treedef.unflatten([outer_treedef.unflatten(leaves[start::inner]) for start in range(inner)])


def tree_broadcast(prefix_tree: object, full_tree: object, is_leaf: IsLeaf = None) -> Any:
    """Broadcast a prefix pytree to the structure of a full pytree.

    Args:
        prefix_tree: a pytree whose structure is a prefix of that of `full_tree`.
        full_tree: the pytree with the structure of the result.
        is_leaf: a predicate. Nodes of `prefix_tree` for which it is true count as leaves.

    Returns:
        A pytree with the structure of `full_tree`, where each leaf is the leaf of `prefix_tree` at or above it.

    Raises:
        ValueError: if `prefix_tree` is not a prefix of `full_tree`.

    Example:
        >>> jax.tree_util.tree_broadcast((1, 2), (0, [0, 0]))
        (1, [2, 2])
    """
    return tree_structure(full_tree).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def broadcast_prefix(prefix: object, tree: object, is_leaf: IsLeaf = None) -> list[Any]:
    """Return, for each leaf of `tree`, the leaf of `prefix` at or above it.

    Raises:
        TreeMismatch: if `prefix` is not a prefix of `tree`.
    """
    prefix_leaves, treedef = tree_flatten(prefix, is_leaf)
    try:
        subtrees = treedef.flatten_up_to(tree)
    except ValueError:
        difference = first_difference(treedef, prefix, tree)
        if difference is None:  # raised by a user's flatten function
            raise
        text = difference.of_prefix(f"prefix_tree{keystr(difference.path)}", "full_tree")
        raise TreeMismatch(f"tree.broadcast: {text}", difference) from None
    pairs = zip(prefix_leaves, subtrees, strict=True)
    return [leaf for leaf, subtree in pairs for _ in range(tree_structure(subtree).num_leaves)]


def _flatten_rest(name: str, treedef: PyTreeDef, tree: object, rest: tuple[Any, ...]) -> list[list[Any]]:
    """Return the subtrees of each pytree of `rest` at the leaves of `tree`, whose structure is `treedef`."""
    subtrees: list[list[Any]] = []
    for index, other in enumerate(rest, 1):
        try:
            subtrees.append(treedef.flatten_up_to(other))
        except ValueError:
            difference = first_difference(treedef, tree, other)
            if difference is None:  # raised by a user's flatten function
                raise
            which = "trees" if len(rest) == 1 else f"trees 0 and {index}"
            raise TreeMismatch(f"{name}: {which} differ {difference}", difference) from None
    return subtrees


# --- key paths --------------------------------------------------------------------------------------------------------


@documented(_FLATTENED, returns="A list of (key path, leaf) pairs, and the treedef.")
def tree_flatten_with_path(
    tree: object, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Flatten a pytree into its leaves with their key paths, and its structure.

    Example:
        >>> jax.tree_util.tree_flatten_with_path({"a": 1})[0]
        [((DictKey(key='a'),), 1)]
    """

    def is_leaf_without_path(_: KeyPath, node: object) -> bool:
        return is_leaf is not None and is_leaf(node)

    try:
        leaves, treedef = default_registry.flatten_with_path(
            tree, is_leaf if is_leaf is None or is_leaf_takes_path else is_leaf_without_path
        )
    except SystemError as error:
        raise (error.__cause__ or error) from None
    return leaves, treedef


@documented(_FLATTENED, returns="A list of (key path, leaf) pairs.")
def tree_leaves_with_path(
    tree: object, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """Return the leaves of a pytree with their key paths.

    Example:
        >>> jax.tree_util.tree_leaves_with_path([1])
        [((SequenceKey(idx=0),), 1)]
    """
    return tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


@documented(_MAPPED)
def tree_map_with_path(
    f: Callable[..., Any],
    tree: object,
    *rest: object,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """Apply a function to the key paths and leaves of a pytree.

    Args:
        f: the function. It is called with the key path and the leaf of `tree`, and the subtrees of `rest` at the same
            position.

    Example:
        >>> jax.tree_util.tree_map_with_path(lambda path, x: (path[0].key, x), {"a": 1})
        {'a': ('a', 1)}
    """
    leaves_with_path, treedef = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    subtrees = _flatten_rest("tree.map_with_path", treedef, tree, rest)
    return treedef.unflatten([f(*pair, *args) for pair, *args in zip(leaves_with_path, *subtrees, strict=True)])


def leaf_names(tree: object, root: str) -> list[str]:
    """Return a Python expression for each leaf, such as `root['w'][0]`."""
    return [root + keystr(path) for path, _ in tree_leaves_with_path(tree)]


# --- differences ------------------------------------------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between two pytrees.

    Attributes:
        path: the key path of the nodes that differ.
        first, second: descriptions of the nodes.
        only_first, only_second: the names of children that only one of the nodes has.
        hint: an explanation for the error message.
        second_is_leaf: whether the second tree has a leaf there.
    """

    path: KeyPath
    first: str
    second: str
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    hint: str = ""
    second_is_leaf: bool = False

    def __str__(self) -> str:
        """Return text such as `at ['layers'][0]: list of length 1 against leaf of type int`."""
        place = keystr(self.path) or "the root"
        return f"at {place}: {self.first} against {self.second}" + self._reasons(self.only_first, self.only_second)

    def of_prefix(self, prefix: str, full_tree: str) -> str:
        """Describe it for a first tree that should be a prefix of the second; the arguments name the two nodes."""
        return f"{prefix}: {self.first} against {self.second} in {full_tree}" + self._reasons(
            self.only_second, self.only_first
        )

    def _reasons(self, missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
        labelled = [("missing", missing), ("unexpected", unexpected)]
        reasons = [f"{label} {join_names(names)}" for label, names in labelled if names]
        return "".join(f": {text}" for text in (", ".join(reasons), self.hint) if text)


class TreeMismatch(ValueError):
    """Two pytrees have incompatible structures; `difference` says where."""

    def __init__(self, message: str, difference: Difference):
        super().__init__(message, difference)
        self.difference = difference

    def __str__(self) -> str:
        return str(self.args[0])


def first_difference(treedef: PyTreeDef, first: object, second: object, path: KeyPath = ()) -> Difference | None:
    """Return the first difference that keeps `first`, of structure `treedef`, from being a prefix of `second`.

    Returns:
        The difference, or None if it is a prefix.
    """
    if treedef.node_data() is None:
        return None
    if type(first) is not type(second):
        return _type_difference(first, second, path)
    first_children, first_aux = flatten_one_level_with_keys(first)
    second_children, second_aux = flatten_one_level_with_keys(second)
    if len(first_children) != len(second_children) or first_aux != second_aux:
        return _node_difference(first, second, path)
    children = zip(treedef.children(), first_children, second_children, strict=True)
    for child_treedef, (key, child), (_, other) in children:
        if difference := first_difference(child_treedef, child, other, (*path, key)):
            return difference
    return None


def _type_difference(first: object, second: object, path: KeyPath) -> Difference:
    types = type(first), type(second)
    texts, hint = [_describe(first), _describe(second)], ""
    if first is None:
        hint = "None is a tree without leaves; is_leaf=lambda x: x is None makes it a leaf"
    elif types[0].__name__ == types[1].__name__:
        texts = [f"{cls.__module__}.{cls.__qualname__}" for cls in types]
        hint = "two classes of the same name" + ("" if is_tree_node(types[1]) else ", and the second is not registered")
    return Difference(path, texts[0], texts[1], hint=hint, second_is_leaf=not is_tree_node(types[1]))


def _node_difference(first: object, second: object, path: KeyPath) -> Difference:
    """Describe the difference of two nodes of the same type: in their children or in their auxiliary data."""
    names = _child_names(first), _child_names(second)
    if set(names[0]) != set(names[1]) or _child_count(first) != _child_count(second):
        common = set(names[0]) & set(names[1])
        only_first, only_second = (tuple(name for name in some if name not in common) for some in names)
        return Difference(path, _describe(first), _describe(second), only_first, only_second)
    if names[0] != names[1]:
        texts = [f"keys in the order {join_names(some)}" for some in names]
    elif fields := static_fields_of.get(type(first)):
        differing = [name for name in fields if getattr(first, name) != getattr(second, name)]
        texts = [
            ", ".join(f"{name}={reprlib.repr(getattr(node, name))}" for name in differing) for node in (first, second)
        ]
    else:
        texts = [f"static data {reprlib.repr(flatten_one_level(node)[1])}" for node in (first, second)]
    type_name = type(first).__name__
    return Difference(path, f"{type_name} with {texts[0]}", f"{type_name} with {texts[1]}")


def _describe(node: object) -> str:
    type_name = type(node).__name__
    if node is None:
        return "None"
    if not is_tree_node(type(node)):
        return f"leaf of type {type_name}"
    if names := _child_names(node):
        return f"{type_name} with {'keys' if isinstance(node, dict) else 'children'} {{{join_names(names)}}}"
    if isinstance(node, dict):
        return f"{type_name} without keys"
    count = _child_count(node)
    if isinstance(node, (list, tuple)):
        return f"{type_name} of length {count}"
    return f"{type_name} with {count} {'child' if count == 1 else 'children'}"


def _child_names(node: object) -> list[str]:
    """Return the names of the children of a node for messages, or nothing if they only have indices."""
    keys = [key for key, _ in flatten_one_level_with_keys(node)[0]]
    named = [key for key in keys if not isinstance(key, (SequenceKey, FlattenedIndexKey))]
    return [repr(key.key) if isinstance(key, DictKey) else bare_key(key) for key in named]


def _child_count(node: object) -> int:
    return len(tuple(flatten_one_level(node)[0]))


set_public_names(__name__, __all__)

"""Compare pytree functions with JAX: leaves, structures, key paths and error types."""

import functools
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Layer:
    w: object
    b: object
    size: int = field(default=3, metadata={"static": True})


class Bag:
    def __init__(self, *items):
        self.items = items

    def tree_flatten_with_keys(self):
        keys = map(
            jax.tree_util.DictKey, range(len(self.items))
        )  # JAX fails to format an error for keys without `.key`
        return list(zip(keys, self.items, strict=True)), len(self.items)

    @classmethod
    def tree_unflatten(cls, count, items):
        return cls(*items)


for library in (sw, jax):
    library.tree_util.register_dataclass(Layer)
    library.tree_util.register_pytree_with_keys_class(Bag)


def nodes(children):
    keys = st.one_of(st.text("abc", max_size=2), st.text("z'\"\\"))
    lists = st.lists(children, max_size=3)
    dicts = st.one_of(st.dictionaries(keys, children, max_size=3), st.dictionaries(st.integers(), children, max_size=3))
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(lambda items: Bag(*items)),
        dicts,
        dicts.map(OrderedDict),
        dicts.map(lambda items: defaultdict(int, items)),
        st.builds(Point, children, children),
        st.builds(Layer, children, children, st.integers(0, 1)),
        children.map(lambda child: {"w": child}),
        children.map(lambda child: [child]),
    )


TREES = st.recursive(st.one_of(st.integers(0, 99), st.none(), st.text("xy")), nodes, max_leaves=12)
property_settings = settings(derandomize=True, database=None, deadline=None, max_examples=150)
PREDICATES = {
    "none": None,
    "None": lambda node: node is None,
    "list": lambda node: isinstance(node, list),
    "point": lambda node: isinstance(node, Point),
}


def outcome(function, *args, **keywords):
    """Return the result as text, because custom nodes do not compare, or the name of the error type."""
    try:
        result = function(*args, **keywords)
    except (ValueError, TypeError, IndexError) as error:
        return next(cls.__name__ for cls in (ValueError, TypeError, IndexError) if isinstance(error, cls))
    return as_text(result)


def as_text(x):
    leaves, structure = jax.tree.flatten(x)
    return f"{structure} {leaves}"


@pytest.mark.parametrize("module", ["tree", "tree_util"])
def test_names_match_jax(module):
    theirs, ours = getattr(jax, module), getattr(sw, module)
    for name in [name for name in dir(theirs) if not name.startswith("_")]:
        assert hasattr(ours, name), name


@pytest.mark.parametrize("predicate", PREDICATES)
@property_settings
@given(x=TREES)
def test_leaves_structures_and_paths_match_jax(predicate, x):
    is_leaf = PREDICATES[predicate]
    leaves, structure = sw.tree.flatten(x, is_leaf)
    expected, their_structure = jax.tree.flatten(x, is_leaf)
    assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in expected]
    assert str(structure) == str(their_structure)
    assert (structure.num_nodes, structure.num_leaves) == (their_structure.num_nodes, their_structure.num_leaves)
    ours = sw.tree.leaves_with_path(x, is_leaf)
    theirs = jax.tree.leaves_with_path(x, is_leaf)
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for simple in (False, True):
        assert [sw.tree_util.keystr(path, simple=simple, separator="|") for path, _ in ours] == [
            jax.tree_util.keystr(path, simple=simple, separator="|") for path, _ in theirs
        ]
    assert sw.tree_util.treedef_is_leaf(structure) == jax.tree_util.treedef_is_leaf(their_structure)
    assert [str(child) for child in sw.tree_util.treedef_children(structure)] == [
        str(child) for child in jax.tree_util.treedef_children(their_structure)
    ]


@property_settings
@given(TREES)
def test_functions_of_one_tree_match_jax(x):
    for theirs, ours in ((jax.tree, sw.tree), (jax.tree_util, sw.tree_util)):
        prefix = "" if ours is sw.tree else "tree_"
        for name, args in {
            "map": [lambda leaf: [leaf], x],
            "map_with_path": [lambda path, leaf: (str(path), leaf), x],
            "reduce": [lambda a, b: f"({a} {b})", x],
            "reduce_associative": [lambda a, b: f"({a} {b})", x],
            "all": [x],
            "broadcast": [1, x],
        }.items():
            assert outcome(getattr(ours, prefix + name), *args) == outcome(getattr(theirs, prefix + name), *args), name
    assert outcome(sw.tree.reduce, lambda a, b: f"{a}{b}", x, "") == outcome(
        jax.tree.reduce, lambda a, b: f"{a}{b}", x, ""
    )
    children = x if isinstance(x, list) else [x]
    assert sw.tree_util.all_leaves(children) == jax.tree_util.all_leaves(children)
    assert sw.tree_util.is_tree_node(type(x)) == jax.tree_util.is_tree_node(type(x))
    assert outcome(lambda: list(sw.tree_util.flatten_one_level(x)[0])) == (
        outcome(lambda: list(jax.tree_util.flatten_one_level(x)[0]))
    )
    assert outcome(lambda: sw.tree_util.flatten_one_level(x)[1] is None) == (
        outcome(lambda: jax.tree_util.flatten_one_level(x)[1] is None)
    )


@property_settings
@given(TREES, TREES)
def test_functions_of_two_trees_match_jax(x, y):
    def as_string(*leaves):
        return str(leaves) if not any(isinstance(leaf, Bag) for leaf in leaves) else "bag"

    for one, other in ((x, y), (x, x), ([x, y], [y, x]), ((x, 1), (x, y))):
        for name, function in {"map": as_string, "map_with_path": as_string}.items():
            assert outcome(getattr(sw.tree, name), function, one, other) == (
                outcome(getattr(jax.tree, name), function, one, other)
            ), name
        assert outcome(sw.tree.broadcast, one, other) == outcome(jax.tree.broadcast, one, other)
        assert (sw.tree.structure(one) == sw.tree.structure(other)) == (
            jax.tree.structure(one) == jax.tree.structure(other)
        )


@property_settings
@given(TREES, TREES, TREES)
def test_transpose_matches_jax(outer, inner, x):
    def transposed(library, pass_inner, nested):
        outer_structure, inner_structure = library.tree.structure(outer), library.tree.structure(inner)
        return outcome(library.tree.transpose, outer_structure, inner_structure if pass_inner else None, nested)

    count = jax.tree.structure(outer).num_leaves
    nested = jax.tree.unflatten(jax.tree.structure(outer), [inner] * count)
    for operand in (nested, x) if count else ():  # JAX fails where the outer tree has no leaves
        assert transposed(sw, True, operand) == transposed(jax, True, operand)
        assert transposed(sw, False, operand) == transposed(jax, False, operand)


def test_is_leaf_with_path_matches_jax():
    x = {"a": [1, {"b": 2}], "c": Point(3, [4])}

    def deep(path, node):
        return len(path) == 2

    for name in ("flatten_with_path", "leaves_with_path"):
        ours = getattr(sw.tree, name)(x, deep, is_leaf_takes_path=True)
        theirs = getattr(jax.tree, name)(x, deep, is_leaf_takes_path=True)
        assert str(ours) == str(theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda partial: partial(max, 1, [2], key=3),
        lambda partial: partial(functools.partial(max, 1), 2),
        lambda partial: partial(partial(max, 1), 2),
        lambda partial: partial(max),
    ],
)
def test_partial_matches_jax(make):
    ours, theirs = make(sw.tree_util.Partial), make(jax.tree_util.Partial)
    assert sw.tree.leaves(ours) == jax.tree.leaves(theirs)
    assert [sw.tree_util.keystr(path) for path, _ in sw.tree.leaves_with_path(ours)] == [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(theirs)
    ]
    assert type(sw.tree.map(str, ours)).__mro__[1] is type(jax.tree.map(str, theirs)).__mro__[1] is functools.partial


def test_treedefs_can_be_pickled_in_both():
    x = {"a": [1, None, Point(2, 3)], "b": OrderedDict(c=4), "d": Layer(5, 6)}
    for library in (sw, jax):
        structure = library.tree.structure(x)
        assert pickle.loads(pickle.dumps(structure)) == structure


def test_registry_is_separate_from_jax():
    class OnlyOurs:
        pass

    class OnlyTheirs:
        pass

    sw.tree_util.register_static(OnlyOurs)
    jax.tree_util.register_static(OnlyTheirs)
    assert (sw.tree.leaves(OnlyOurs()), len(jax.tree.leaves(OnlyOurs()))) == ([], 1)
    assert (jax.tree.leaves(OnlyTheirs()), len(sw.tree.leaves(OnlyTheirs()))) == ([], 1)


def test_registering_twice_is_an_error_in_both():
    for library in (sw, jax):
        with pytest.raises(ValueError):
            library.tree_util.register_dataclass(Layer)
        with pytest.raises(ValueError):
            library.tree_util.register_pytree_node(dict, lambda x: ((), None), lambda _, x: {})


@pytest.mark.parametrize(
    ("data_fields", "meta_fields", "drop_fields", "error"),
    [
        (["w"], ["size"], (), ValueError),
        (["w", "b", "c"], ["size"], (), ValueError),
        (["w", "b", "size"], ["size"], (), ValueError),
        (["w"], None, (), TypeError),
        (None, ["w"], (), TypeError),
        (["w", "b"], ["size"], (), None),
        (["w", "b"], [], ("size",), None),
        (["b", "size", "w"], [], (), None),
    ],
)
def test_register_dataclass_matches_jax(data_fields, meta_fields, drop_fields, error):
    for library in (sw, jax):
        cls = dataclass(type("Fresh", (), {"__annotations__": {"w": object, "b": object, "size": int}, "size": 1}))
        register = functools.partial(
            library.tree_util.register_dataclass, cls, data_fields, meta_fields, drop_fields=drop_fields
        )
        if error is None:
            assert register() is cls
            assert str(library.tree.map(lambda leaf: leaf + 1, cls(10, 20, 30))) == (
                f"Fresh(w=11, b=21, size={31 if 'size' in data_fields else 1 if drop_fields else 30})"
            )
        else:
            with pytest.raises(error):
                register()

"""Properties of pytree functions on random pytrees, and their error messages."""

import copy
import functools
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise import tree, tree_util

Point = namedtuple("Point", ["x", "y"])


@tree_util.register_dataclass
@dataclass
class Layer:
    w: object
    b: object
    size: int = tree.static(default=3)


@tree_util.register_pytree_node_class
class Bag:
    """A node whose children have no keys of their own."""

    def __init__(self, *items):
        self.items = items

    def __eq__(self, other):
        return isinstance(other, Bag) and self.items == other.items

    __hash__ = None

    def __repr__(self):
        return f"Bag{self.items}"

    def tree_flatten(self):
        return self.items, None

    @classmethod
    def tree_unflatten(cls, static, items):
        return cls(*items)


def nodes(children):
    keys = st.text("abc", min_size=1, max_size=2)
    lists = st.lists(children, max_size=3)
    dicts = st.dictionaries(keys, children, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(lambda items: Bag(*items)),
        dicts,
        dicts.map(OrderedDict),
        dicts.map(lambda items: defaultdict(int, items)),
        st.builds(Point, children, children),
        st.builds(Layer, children, children, st.integers(0, 1)),
    )


TREES = st.recursive(st.one_of(st.integers(0, 99), st.none()), nodes, max_leaves=12)
property_settings = settings(derandomize=True, database=None, deadline=None, max_examples=150)


@property_settings
@given(TREES)
def test_unflatten_inverts_flatten(x):
    leaves, structure = tree.flatten(x)
    rebuilt = tree.unflatten(structure, leaves)
    assert rebuilt == x
    assert type(rebuilt) is type(x)
    assert structure.num_leaves == len(leaves)
    assert (tree.leaves(x), tree.structure(x)) == (leaves, structure)
    assert tree.structure(rebuilt) == structure
    assert hash(tree.structure(rebuilt)) == hash(structure)
    assert tree_util.all_leaves(leaves)
    assert tree_util.treedef_tuple([structure, structure]) == tree.structure((x, x))
    assert tree_util.treedef_children(tree.structure([x, 0])) == [structure, tree.structure(0)]


@property_settings
@given(TREES)
def test_treedefs_can_be_pickled_and_copied(x):
    structure = tree.structure(x)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(structure, protocol)) == structure
    assert copy.deepcopy(structure) == copy.copy(structure) == structure


@property_settings
@given(TREES)
def test_map_obeys_identity_and_composition(x):
    assert tree.map(lambda leaf: leaf, x) == x
    assert tree.map(lambda leaf: 2 * (leaf + 1), x) == tree.map(lambda leaf: 2 * leaf, tree.map(lambda y: y + 1, x))
    assert tree.map(lambda a, b, c: a + b - c, x, x, x) == x
    assert tree.structure(tree.map(str, x)) == tree.structure(x)


@property_settings
@given(TREES)
def test_key_paths_lead_to_the_leaves(x):
    pairs, structure = tree.flatten_with_path(x)
    assert structure == tree.structure(x)
    assert [leaf for _, leaf in pairs] == tree.leaves(x)
    assert pairs == tree.leaves_with_path(x)
    for path, leaf in pairs:
        assert functools.reduce(get_child, path, x) is leaf
    assert len({path for path, _ in pairs}) == len(pairs)
    texts = tree.map_with_path(lambda path, a, b: tree_util.keystr(path) + str(a + b), x, x)
    assert tree.leaves(texts) == [f"{tree_util.keystr(path)}{leaf + leaf}" for path, leaf in pairs]


def get_child(node, key):
    match key:
        case tree_util.SequenceKey(idx=number):
            return node[number]
        case tree_util.DictKey(key=name):
            return node[name]
        case tree_util.GetAttrKey(name=name):
            return getattr(node, name)
        case tree_util.FlattenedIndexKey(key=number):
            return list(tree_util.flatten_one_level(node)[0])[number]


@property_settings
@given(TREES)
def test_leaf_names_are_python_expressions(x):
    names = tree.leaf_names(x, "root")
    assert len(names) == len(tree.leaves(x))
    for name, leaf in zip(names, tree.leaves(x), strict=True):
        if "<flat index" not in name:
            assert eval(name, {"root": x}) is leaf


@property_settings
@given(TREES, TREES)
def test_first_difference_agrees_with_flatten_up_to(x, y):
    structure = tree.structure(x)
    try:
        structure.flatten_up_to(y)
    except ValueError:
        with pytest.raises(tree.TreeMismatch) as caught:
            tree.map(lambda a, b: a, x, y)
        difference = caught.value.difference
        assert difference == tree_util.first_difference(structure, x, y)
        assert difference.first != difference.second
        for root in (x, y):  # the path exists in both
            functools.reduce(get_child, difference.path, root)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    else:
        assert tree_util.first_difference(structure, x, y) is None
        assert len(tree.broadcast_prefix(x, y)) == len(tree.leaves(y))


@property_settings
@given(TREES, TREES)
def test_transposing_twice_is_the_identity(outer, inner):
    outer_structure, inner_structure = tree.structure(outer), tree.structure(inner)
    rows, columns = outer_structure.num_leaves, inner_structure.num_leaves
    numbers = np.arange(rows * columns).reshape(rows, columns)
    nested = tree.unflatten(outer_structure, [tree.unflatten(inner_structure, row) for row in numbers])
    transposed = tree.transpose(outer_structure, inner_structure, nested)
    assert transposed == tree.unflatten(inner_structure, [tree.unflatten(outer_structure, row) for row in numbers.T])
    assert tree.transpose(inner_structure, outer_structure, transposed) == nested
    if rows:
        assert tree.transpose(outer_structure, None, nested) == transposed


@property_settings
@given(TREES)
def test_broadcast_repeats_the_prefix_leaf_above(x):
    children = x if isinstance(x, list) else [x]
    prefix = list(range(len(children)))
    broadcast = tree.broadcast(prefix, children)
    assert tree.structure(broadcast) == tree.structure(children)
    expected = [index for index, child in enumerate(children) for _ in tree.leaves(child)]
    assert tree.leaves(broadcast) == tree.broadcast_prefix(prefix, children) == expected
    assert tree.broadcast(7, x) == tree.map(lambda _: 7, x)


def test_none_is_a_node_without_leaves_unless_is_leaf_is_true():
    x = {"a": None, "b": (1, None)}
    assert tree.leaves(x) == [1]
    assert tree.leaves(x, is_leaf=lambda node: node is None) == [None, 1, None]
    assert tree.map(lambda a: -1 if a is None else a, x, is_leaf=lambda n: n is None) == {"a": -1, "b": (1, -1)}


def test_is_leaf_can_take_the_path():
    x = {"a": [1, 2], "b": [3, 4]}

    def below_b(path, node):
        return path == (tree_util.DictKey("b"),)

    assert [leaf for _, leaf in tree.leaves_with_path(x, below_b, is_leaf_takes_path=True)] == [1, 2, [3, 4]]
    assert tree.map_with_path(lambda path, a: len(path), x, is_leaf=below_b, is_leaf_takes_path=True) == (
        {"a": [2, 2], "b": 1}
    )
    with pytest.raises(ValueError, match=r"differ at \['a'\]: list of length 2 against leaf of type int"):
        tree.map_with_path(lambda *_: 0, x, {"a": 1, "b": 2}, is_leaf=below_b, is_leaf_takes_path=True)


def test_dict_keys_are_sorted_but_ordered_dict_keys_are_not():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.leaves(defaultdict(int, b=1, a=2)) == [2, 1]
    assert tree.leaves(OrderedDict(b=1, a=2)) == [1, 2]
    assert tree.map(str, defaultdict(list, a=1)).default_factory is list


def test_reduce_and_all():
    x = {"a": [1, 2], "b": (3, (4, 5))}
    assert tree.reduce(lambda a, b: f"({a} {b})", x) == "((((1 2) 3) 4) 5)"
    assert tree.reduce(lambda a, b: a + b, x, 100) == 115
    assert tree.reduce(lambda a, b: [*(a or []), b], x, None) == [1, 2, 3, 4, 5]
    assert tree.reduce_associative(lambda a, b: f"({a} {b})", x) == "((1 2) (3 (4 5)))"
    assert tree.reduce_associative(lambda a, b: a + b, (), identity=0) == 0
    assert tree.all({"a": True, "b": [1, None]})
    assert not tree.all({"a": True, "b": [0]})
    assert tree.all({"a": [0]}, is_leaf=lambda node: isinstance(node, list))
    for empty in (lambda: tree.reduce(max, {}), lambda: tree.reduce_associative(max, [])):
        with pytest.raises(TypeError, match="the tree has no leaves; pass an i"):
            empty()


def test_registered_types_work_in_transformations():
    layer = Layer(np.float32(2.0), np.float32(1.0), size=5)

    def loss(layer, x):
        return layer.size * (layer.w * x + layer.b)

    assert float(sw.jit(loss)(layer, 3.0)) == 35.0
    gradient = sw.jit(sw.grad(loss))(layer, 3.0)
    assert (type(gradient), float(gradient.w), float(gradient.b), gradient.size) == (Layer, 15.0, 5.0, 5)
    scale = tree_util.Partial(lambda a, b: a * b, np.float32(4.0))
    assert float(sw.jit(lambda f, x: f(x))(scale, 2.0)) == 8.0


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            {"layers": [{"w": 1, "b": 2}]},
            {"layers": [{"w": 1}]},
            "trees differ at ['layers'][0]: dict with keys {'b', 'w'} against dict with keys {'w'}: missing 'b'",
        ),
        (
            {"w": 1, "b": 2},
            {"w": 1, "c": 2},
            "trees differ at the root: dict with keys {'b', 'w'} against dict with keys {'c', 'w'}: "
            "missing 'b', unexpected 'c'",
        ),
        ((1, [2]), (1, [2, 3]), "trees differ at [1]: list of length 1 against list of length 2"),
        ((1, 2), [1, 2], "trees differ at the root: tuple of length 2 against list of length 2"),
        ([{"a": 1}], [3.0], "trees differ at [0]: dict with keys {'a'} against leaf of type float"),
        ([{}], [()], "trees differ at [0]: dict without keys against tuple of length 0"),
        (
            {"a": None},
            {"a": 1},
            "trees differ at ['a']: None against leaf of type int: "
            "None is a tree without leaves; is_leaf=lambda x: x is None makes it a leaf",
        ),
        ([[1]], [None], "trees differ at [0]: list of length 1 against None"),
        (Point(1, [2]), Point(1, 2), "trees differ at .y: list of length 1 against leaf of type int"),
        (Point(1, 2), (1, 2), "trees differ at the root: Point with children {x, y} against tuple of length 2"),
        (
            Point(1, 2),
            namedtuple("Point", ["x", "y"])(1, 2),
            "trees differ at the root: {module}.Point against {module}.Point: two classes of the same name",
        ),
        (
            Bag(1),
            type("Bag", (), {})(),
            "trees differ at the root: {module}.Bag against {module}.Bag: "
            "two classes of the same name, and the second is not registered",
        ),
        (
            {"a": Layer(1, 2, 3)},
            {"a": Layer(1, 2, 4)},
            "trees differ at ['a']: Layer with size=3 against Layer with size=4",
        ),
        (Layer(1, [2]), Layer(1, 2), "trees differ at .b: list of length 1 against leaf of type int"),
        (Bag(1, 2), Bag(1), "trees differ at the root: Bag with 2 children against Bag with 1 child"),
        (Bag([1]), Bag(1), "trees differ at [<flat index 0>]: list of length 1 against leaf of type int"),
        (
            OrderedDict(b=1, a=2),
            OrderedDict(a=2, b=1),
            "trees differ at the root: OrderedDict with keys in the order 'b', 'a' "
            "against OrderedDict with keys in the order 'a', 'b'",
        ),
        (
            defaultdict(int, a=1),
            defaultdict(list, a=1),
            "trees differ at the root: defaultdict with static data (<class 'int'>, ('a',)) "
            "against defaultdict with static data (<class 'list'>, ('a',))",
        ),
        (
            dict.fromkeys("abcdefghij", 0),
            {},
            "trees differ at the root: dict with keys {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', … (10 in all)} "
            "against dict without keys: missing 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', … (10 in all)",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_map_error_names_the_first_difference(first, second, text):
    with pytest.raises(ValueError) as caught:
        tree.map(lambda a, b: 0, first, second)
    assert str(caught.value) == "tree.map: " + text.replace("{module}", __name__)


def test_map_error_names_the_differing_tree():
    with pytest.raises(ValueError) as caught:
        tree.map(lambda *_: 0, [1], [1], (1,))
    assert str(caught.value) == (
        "tree.map: trees 0 and 2 differ at the root: list of length 1 against tuple of length 1"
    )
    with pytest.raises(ValueError, match=r"^tree.map_with_path: trees differ at \[0\]: tuple of length 0 against leaf"):
        tree.map_with_path(lambda *_: 0, [()], [1])


def test_broadcast_error_names_the_prefix_mismatch():
    with pytest.raises(ValueError) as caught:
        tree.broadcast({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}})
    assert str(caught.value) == (
        "tree.broadcast: prefix_tree['a']: dict with keys {'x'} against dict with keys {'x', 'y'} in full_tree"
        ": missing 'y'"
    )
    with pytest.raises(ValueError, match=r"prefix_tree\[1\]: tuple of length 1 against leaf of type int in full_tree"):
        tree.broadcast((0, (0,)), (0, 0))


def test_transpose_error_shows_both_structures():
    pair, single = tree.structure((0, 0)), tree.structure([0])
    with pytest.raises(TypeError) as caught:
        tree.transpose(pair, single, ([1], [2, 3]))
    assert str(caught.value) == (
        "tree.transpose: the tree has 3 leaves, but an outer structure of 2 leaves around an inner one of 1 has 2:\n"
        "  PyTreeDef(([*], [*, *]))\n  PyTreeDef(([*], [*]))"
    )
    with pytest.raises(
        ValueError,
        match=r"the outer structure is not a prefix of the tree: tree and outer structure are\n  PyTreeDef\(\[\*\]\)",
    ):
        tree.transpose(pair, None, [1])
    with pytest.raises(TypeError, match="the outer structure has no leaves; pass the inner structure"):
        tree.transpose(tree.structure(()), None, ())


def test_cyclic_pytree_raises_a_recursion_error():
    cycle = []
    cycle.append({"again": cycle})
    for function in (tree.flatten, tree.leaves, tree.structure, tree.leaves_with_path):
        with pytest.raises(RecursionError, match="cyclical"):
            function(cycle)


def test_unflatten_checks_the_number_of_leaves():
    with pytest.raises(ValueError, match="expected 2, got 1"):
        tree.unflatten(tree.structure((0, 0)), [1])
    with pytest.raises(ValueError, match="expected 2"):
        tree.unflatten(tree.structure((0, 0)), [1, 2, 3])

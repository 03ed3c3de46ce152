"""Registration of pytree nodes, key paths and Partial, and their errors."""

import functools
import inspect
import pickle
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest

import shardwise as sw
from shardwise import tree_util
from shardwise.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    Partial,
    SequenceKey,
    keystr,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    tree_flatten,
    tree_leaves,
    tree_leaves_with_path,
    tree_map,
    tree_structure,
    tree_unflatten,
)


def message_of(error_type, function, *args, **keywords):
    with pytest.raises(error_type) as caught:
        function(*args, **keywords)
    return str(caught.value)


def paths_of(node):
    return [keystr(path) for path, _ in tree_leaves_with_path(node)]


class Pair:
    """Not registered; each test derives its own."""

    def __init__(self, a, b, note=None):
        self.a, self.b, self.note = a, b, note


def make_pair_class():
    return type("OwnPair", (Pair,), {})


def test_public_names_exist():
    assert sw.tree_util is tree_util
    for name in tree_util.__all__:
        assert getattr(tree_util, name) is not None
        if callable(getattr(tree_util, name)) and not name.endswith(("Key", "KeyEntry", "Def")):
            assert inspect.getdoc(getattr(tree_util, name)), name


# --- registration -----------------------------------------------------------------------------------------------------


def test_register_pytree_node():
    cls = make_pair_class()
    register_pytree_node(cls, lambda p: ((p.a, p.b), p.note), lambda note, children: cls(*children, note=note))
    leaves, structure = tree_flatten([cls(1, {"x": 2}, "n")])
    assert leaves == [1, 2]
    (rebuilt,) = tree_unflatten(structure, [10, 20])
    assert (type(rebuilt), rebuilt.a, rebuilt.b, rebuilt.note) == (cls, 10, {"x": 20}, "n")
    assert tree_structure(cls(0, 0, "n")) != tree_structure(cls(0, 0, "m"))
    assert paths_of(cls(1, {"x": 2})) == ["[<flat index 0>]", "[<flat index 1>]['x']"]
    assert tree_util.is_tree_node(cls)
    assert not tree_util.is_tree_node(Pair)  # neither bases nor subclasses are registered


def test_register_pytree_node_accepts_keys():
    cls = make_pair_class()
    register_pytree_node(
        cls,
        lambda p: ((p.a, p.b), None),
        lambda _, children: cls(*children),
        lambda p: (((GetAttrKey("a"), p.a), (DictKey("b"), p.b)), None),
    )
    assert paths_of([cls(1, (2,))]) == ["[0].a", "[0]['b'][0]"]


def test_register_pytree_with_keys():
    calls = []

    def with_keys(p):
        calls.append("keys")
        return [(GetAttrKey("a"), p.a), ("any object", p.b)], p.note

    def without_keys(p):
        calls.append("none")
        return (p.a, p.b), p.note

    slow, fast = make_pair_class(), make_pair_class()
    register_pytree_with_keys(slow, with_keys, lambda note, children: slow(*children, note))
    register_pytree_with_keys(fast, with_keys, lambda note, children: fast(*children, note), without_keys)
    assert paths_of(slow(1, 2)) == [".a", "any object"]
    assert tree_leaves(slow(1, 2)) == [1, 2]
    calls.clear()
    assert tree_map(str, fast(1, 2, "n")).note == "n"
    assert set(calls) == {"none"}


def test_register_class_decorators():
    @register_pytree_node_class
    class Plain(Pair):
        def tree_flatten(self):
            return (self.a, self.b), self.note

        @classmethod
        def tree_unflatten(cls, note, children):
            return cls(*children, note=note)

    @register_pytree_with_keys_class
    class Keyed(Pair):
        def tree_flatten_with_keys(self):
            return ((SequenceKey(7), self.a), (FlattenedIndexKey(8), self.b)), self.note

        @classmethod
        def tree_unflatten(cls, note, children):
            return cls(*children, note=note)

    for cls in (Plain, Keyed):
        doubled = tree_map(lambda leaf: 2 * leaf, cls(1, [2], "n"))
        assert (type(doubled), doubled.a, doubled.b, doubled.note) == (cls, 2, [4], "n")
    assert paths_of(Keyed(1, 2)) == ["[7]", "[<flat index 8>]"]


def test_register_dataclass_infers_static_fields_from_metadata():
    @register_dataclass
    @dataclass(frozen=True)
    class Layer:
        w: object
        op: str = sw.tree.static(default="add", metadata={"note": "kept"})
        b: object = 0
        size: int = field(default=3, metadata={"static": True})

    assert {f.name: dict(f.metadata) for f in Layer.__dataclass_fields__.values()}["op"] == (
        {"static": True, "note": "kept"}
    )
    leaves, structure = tree_flatten(Layer(1, "mul", {"x": 2}))
    assert leaves == [1, 2]
    assert tree_unflatten(structure, [3, 4]) == Layer(3, "mul", {"x": 4}, 3)
    assert paths_of(Layer(1, b=[2])) == [".w", ".b[0]"]
    assert tree_structure(Layer(1)) != tree_structure(Layer(1, "mul"))


def test_register_dataclass_with_explicit_fields():
    @functools.partial(register_dataclass, data_fields=["b", "a"], meta_fields=["note"])
    @dataclass
    class Named:
        a: object
        b: object
        note: str = "n"

    assert tree_leaves(Named(1, 2)) == [2, 1]

    plain = make_pair_class()
    assert (
        register_dataclass(plain, ["a", "b"], ["note"]) is plain
    )  # not a dataclass, but its constructor accepts keywords
    assert tree_map(str, plain(1, 2, 3)).b == "2"


def test_dropped_fields_get_their_defaults():
    @functools.partial(register_dataclass, data_fields=["a"], meta_fields=[], drop_fields=["cache"])
    @dataclass
    class ExplicitFields:
        a: object
        cache: object = None

    @functools.partial(register_dataclass, drop_fields=["cache", "total"])
    @dataclass
    class InferredFields:
        a: object
        cache: object = None
        total: object = field(init=False)

        def __post_init__(self):
            self.total = self.a

    assert tree_map(lambda leaf: leaf + 1, ExplicitFields(1, "full")) == ExplicitFields(2, None)
    mapped = tree_map(lambda leaf: leaf + 1, InferredFields(1, "full"))
    assert (mapped.a, mapped.cache, mapped.total) == (2, None, 2)


def test_register_dataclass_checks_its_fields():
    @dataclass
    class Layer:
        w: object
        b: object
        total: object = field(init=False)

    register = functools.partial(message_of, ValueError, register_dataclass, Layer)
    prefix = "register_dataclass: "
    assert register(["w"], []) == (
        prefix + f"missing fields of {Layer.__qualname__}: b. Add them to data_fields, meta_fields or drop_fields."
    )
    assert register(["w", "b", "c"], []) == (
        prefix + f"{Layer.__qualname__}(…) has no parameters c. Add fields with init=False to drop_fields."
    )
    assert register(["w", "b"], ["b"]) == prefix + "fields cannot be both data and static: b"
    assert register().endswith("has no parameters total. Add fields with init=False to drop_fields.")
    assert message_of(TypeError, register_dataclass, Layer, ["w"]) == (
        prefix + "pass both data_fields and meta_fields, or neither"
    )
    text = message_of(TypeError, register_dataclass, make_pair_class())
    assert text.endswith("pass its data_fields and meta_fields, or put @dataclass below @register_dataclass")


def test_register_static():
    @register_static
    class Mode(str):
        pass

    assert tree_leaves([Mode("train"), 1]) == [1]
    assert tree_map(str, {"mode": Mode("train"), "x": 1}) == {"mode": "train", "x": "1"}
    assert tree_structure(Mode("train")) == tree_structure(Mode("train"))
    assert tree_structure(Mode("train")) != tree_structure(Mode("test"))
    assert message_of(ValueError, tree_map, lambda a, b: 0, [Mode("train")], [Mode("test")]) == (
        "tree.map: trees differ at [0]: Mode with static data 'train' against Mode with static data 'test'"
    )

    traced_modes = []

    @sw.jit
    def step(mode, x):
        traced_modes.append(mode)
        return x * 2 if mode == "train" else x

    assert [float(step(Mode(m), 3.0)) for m in ("train", "test", "train")] == [6.0, 3.0, 6.0]
    assert traced_modes == ["train", "test"]


def test_a_type_cannot_be_registered_twice():
    cls = make_pair_class()

    def register_node():
        register_pytree_node(cls, lambda p: ((p.a, p.b), None), lambda _, children: cls(*children))

    register_node()
    for register in (register_node, lambda: register_static(cls), lambda: register_dataclass(cls, ["a", "b"], [])):
        assert message_of(ValueError, register) == "OwnPair is already registered as a pytree node"
    for builtin in (tuple, list, dict, type(None), OrderedDict, defaultdict, Partial):
        assert "is already registered as a pytree node" in message_of(ValueError, register_static, builtin)
    assert tree_leaves(cls(1, 2)) == [1, 2]


def test_only_types_can_be_registered():
    for not_a_type in (3, "Pair", list[int]):
        assert message_of(TypeError, register_static, not_a_type) == (
            f"only a type can be registered as a pytree node, not {not_a_type!r}"
        )


def test_a_failed_registration_can_be_repeated():
    cls = make_pair_class()
    with pytest.raises(TypeError):
        register_pytree_node(cls, 3, 4)
    register_static(cls)
    assert tree_leaves(cls(1, 2)) == []


def test_a_namedtuple_can_be_registered_with_its_own_flatten_function():
    Point = namedtuple("Point", ["x", "y"])
    assert paths_of(Point(1, (2,))) == [".x", ".y[0]"]
    register_pytree_node(Point, lambda p: ((p.x,), p.y), lambda y, children: Point(*children, y))
    assert tree_leaves(Point(1, 2)) == [1]


def test_registration_is_thread_safe():
    shared = make_pair_class()
    start = threading.Barrier(8)
    outcomes = []

    def work():
        own = [make_pair_class() for _ in range(20)]
        start.wait()
        try:
            register_pytree_node(shared, lambda p: ((p.a, p.b), None), lambda _, c: shared(*c))
            outcomes.append("registered")
        except ValueError:
            outcomes.append("refused")
        for cls in own:
            register_pytree_node(cls, lambda p: ((p.a, p.b), None), lambda _, c, cls=cls: cls(*c))
            outcomes.append(tree_leaves([cls(1, shared(2, 3)), cls(4, 5)]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("registered") == 1
    assert outcomes.count("refused") == 7
    assert outcomes.count([1, 2, 3, 4, 5]) == 160


# --- errors of the user's own functions -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), ZeroDivisionError("mine")], ids=repr)
def test_an_exception_in_a_flatten_function_reaches_the_user(error):
    cls = make_pair_class()

    def broken(p):
        if p.note == "broken":
            raise error
        return (p.a, p.b), None

    register_pytree_node(cls, broken, lambda _, children: cls(*children))
    bad = {"x": [cls(1, 2, "broken")]}
    good = {"x": [cls(1, 2)]}
    calls = [
        lambda: tree_leaves(bad),
        lambda: tree_leaves_with_path(bad),
        lambda: tree_map(str, bad),
        lambda: tree_map(lambda a, b: a, good, bad),
        lambda: sw.tree.broadcast({"x": [cls(1, 2)]}, bad),
        lambda: sw.tree.broadcast(0, bad),
        lambda: sw.jit(lambda x: x)(bad),
    ]
    for call in calls:
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error


def test_an_exception_in_an_unflatten_function_reaches_the_user():
    cls = make_pair_class()
    register_pytree_node(cls, lambda p: ((p.a, p.b), None), lambda _, children: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tree_map(str, cls(1, 2))


def test_an_exception_in_the_mapped_function_reaches_the_user():
    for error in (ValueError("mine"), StopIteration("mine")):

        def failing(*_, error=error):
            raise error

        for call in (lambda f: tree_map(f, [1]), lambda f: tree_map(f, [1], [2])):
            with pytest.raises(type(error)) as caught:
                call(failing)
            assert caught.value is error


def test_flatten_functions_must_return_a_pair():
    cls = make_pair_class()
    register_pytree_node(cls, lambda p: 3, lambda _, children: cls(*children))
    assert "(children, aux_data) tuple, got 3" in message_of(ValueError, tree_leaves, cls(1, 2))


def test_static_data_that_cannot_be_compared_reaches_the_user():
    cls = make_pair_class()
    register_pytree_node(cls, lambda p: ((p.a, p.b), p.note), lambda note, children: cls(*children, note))
    with pytest.raises(ValueError, match="truth value of an array"):
        tree_map(lambda a, b: 0, cls(1, 2, np.arange(3)), cls(1, 2, np.arange(3)))


# --- one level, keys --------------------------------------------------------------------------------------------------


def test_flatten_one_level():
    Point = namedtuple("Point", ["x", "y"])
    children, keys = tree_util.flatten_one_level({"b": [1], "a": None})
    assert (list(children), keys) == ([None, [1]], ("a", "b"))
    pairs, _ = tree_util.flatten_one_level_with_keys(Point([1], None))
    assert pairs == [(GetAttrKey("x"), [1]), (GetAttrKey("y"), None)]
    pairs, keys = tree_util.flatten_one_level_with_keys(OrderedDict(b=1, a=(2,)))
    assert (pairs, keys) == ([(DictKey("b"), 1), (DictKey("a"), (2,))], ("b", "a"))
    assert tree_util.flatten_one_level_with_keys(None) == ([], None)
    for function in (tree_util.flatten_one_level, tree_util.flatten_one_level_with_keys):
        assert message_of(ValueError, function, 3) == "an object of type int is a pytree leaf and has no children"


def test_keystr():
    path = (DictKey("layers"), SequenceKey(0), GetAttrKey("w"), FlattenedIndexKey(2), "text")
    assert keystr(path) == "['layers'][0].w[<flat index 2>]text"
    assert keystr(path, separator="/") == "['layers']/[0]/.w/[<flat index 2>]/text"
    assert keystr(path, simple=True, separator="/") == "layers/0/w/2/text"
    assert keystr((DictKey(3), DictKey("a/b")), simple=True) == "3a/b"
    assert keystr(()) == ""


def test_keys_compare_hash_and_pickle():
    keys = [SequenceKey(1), DictKey(1), DictKey("a"), GetAttrKey("a"), FlattenedIndexKey(1)]
    assert len(set(keys)) == 5
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_treedef_functions():
    structure = tree_structure([(1, 2), None, {"a": 3}])
    children = tree_util.treedef_children(structure)
    assert children == [tree_structure((0, 0)), tree_structure(None), tree_structure({"a": 0})]
    assert tree_util.treedef_tuple(iter(children)) == tree_structure(((1, 2), None, {"a": 3}))
    assert [tree_util.treedef_is_leaf(child) for child in children] == [False, True, False]
    assert tree_util.treedef_is_leaf(tree_structure(1))
    assert isinstance(structure, tree_util.PyTreeDef)
    assert tree_util.build_tree(structure, ([10, 20], [], iter([30]))) == [(10, 20), None, {"a": 30}]


def test_all_leaves():
    assert tree_util.all_leaves([1, "a"])
    assert tree_util.all_leaves([])
    assert not tree_util.all_leaves([1, None])
    assert not tree_util.all_leaves(iter([1, (2,)]))
    assert tree_util.all_leaves([1, [2]], is_leaf=lambda node: isinstance(node, list))
    assert not tree_util.all_leaves([1, (2,)], is_leaf=lambda node: isinstance(node, list))


# --- Partial ----------------------------------------------------------------------------------------------------------


def return_arguments(*args, **keywords):
    return args, keywords


def test_partial_is_callable_and_a_node():
    function = Partial(return_arguments, 1, [2], c=3)
    assert function(4, d=5) == ((1, [2], 4), {"c": 3, "d": 5})
    leaves, structure = tree_flatten(function)
    assert leaves == [1, 2, 3]
    rebuilt = tree_unflatten(structure, [10, 20, 30])
    assert isinstance(rebuilt, Partial) and isinstance(rebuilt, functools.partial)
    assert rebuilt() == ((10, [20]), {"c": 30})
    assert (
        tree_structure(Partial(return_arguments, 1))
        == tree_structure(Partial(return_arguments, 2))
        != tree_structure(Partial(max, 1))
    )
    assert pickle.loads(pickle.dumps(function))() == function()


@pytest.mark.parametrize("partial_type", [functools.partial, Partial])
def test_arguments_of_a_nested_partial_are_not_children(partial_type):
    inner = partial_type(return_arguments, 1, c=2)
    outer = Partial(inner, 3, d=4)
    assert tree_leaves(outer) == [3, 4]
    assert outer(5) == ((1, 3, 5), {"c": 2, "d": 4})
    assert tree_structure(outer) == tree_structure(Partial(inner, 3, d=4))
    assert hash(tree_structure(outer)) == hash(tree_structure(Partial(inner, 3, d=4)))
    assert tree_structure(outer) != tree_structure(Partial(partial_type(return_arguments, 1), 3, d=4))
    assert outer.func == inner
    assert repr(outer.func) == repr(inner)
    assert pickle.loads(pickle.dumps(outer))(5) == outer(5)
    assert tree_map(lambda leaf: -leaf, outer)() == ((1, -3), {"c": 2, "d": -4})


def test_partial_keeps_the_signature_of_the_wrapped_function():
    def f(a, b, c):
        return a, b, c

    assert str(inspect.signature(Partial(functools.partial(f, 1), 2))) == "(c)"

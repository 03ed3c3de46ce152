"""PartitionSpecs: the pins that they mean, their normal form, and errors."""

import pickle

import pytest

from shardwise.compiler.ir.types import ManualAxisType
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import UNCONSTRAINED, PartitionSpec, pin_of, spec_of
from shardwise.compiler.shardings.unreduced_kind import UnreducedKind
from shardwise.errors import ShardingError, UnsupportedError

P = PartitionSpec
MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("spec", "shape", "dims"),
    [
        (P(), (), ()),
        (P(), (3, 4), ((), ())),
        (P("data"), (3, 4), (("data",), ())),
        (P(None, "model"), (3, 4), ((), ("model",))),
        (P(("data", "model")), (3,), (("data", "model"),)),
        (P(("model", "data"), None), (3, 4), (("model", "data"), ())),
        (P(()), (3,), ((),)),
        (P("data", None, None), (3,), (("data",),)),
        (P(None, ()), (), ()),
        (P("model", "data"), (3, 4), (("model",), ("data",))),
    ],
    ids=repr,
)
def test_the_pin_of_a_spec(spec, shape, dims):
    assert pin_of(spec, shape, MESH, "x") == Pin(Layout(dims), frozenset(), "x")


def test_equivalent_entries_are_normalized():
    assert P(("data",), (), ("model",)) == P("data", None, "model")
    assert repr(P(("data",), (), ("model", "x"))) == "P('data', None, ('model', 'x'))"
    assert hash(P(("data",))) == hash(P("data"))


def test_unconstrained_dims_are_open():
    assert pin_of(P("data", UNCONSTRAINED), (3, 4), MESH) == Pin(Layout((("data",), ())), frozenset({1}))
    assert P.UNCONSTRAINED is UNCONSTRAINED


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            P("data", "model"),
            (3,),
            "P('data', 'model') has 2 entries, but the array has rank 1 (shape (3,)). "
            "Remove 1: a spec has at most one entry per dim.",
        ),
        (
            P("date"),
            (3,),
            "P('date'): the mesh data=4, model=2 has no axis 'date'. Did you mean 'data'?",
        ),
        (
            P("data", "data"),
            (3, 4),
            "P('data', 'data') uses axis 'data' for dim 0 and for dim 1: an axis can shard one dim only.",
        ),
        (
            P(("data", "data")),
            (3,),
            "P(('data', 'data')) uses axis 'data' for dim 0 and for dim 0: an axis can shard one dim only.",
        ),
        (
            P(UNCONSTRAINED, UNCONSTRAINED),
            (3,),
            "P(UNCONSTRAINED, UNCONSTRAINED) has 2 entries, but the array has rank 1 (shape (3,)). "
            "Remove 1: a spec has at most one entry per dim.",
        ),
    ],
    ids=repr,
)
def test_a_spec_that_does_not_match_the_array_raises(spec, shape, message):
    with pytest.raises(ShardingError) as caught:
        pin_of(spec, shape, MESH)
    assert str(caught.value) == message


@pytest.mark.parametrize("entry", [3, ("data", 1), ["data", 1], 2.5])
def test_invalid_entries_raise(entry):
    with pytest.raises(TypeError) as caught:
        P(entry)
    assert str(caught.value) == (
        f"PartitionSpec accepts None, an axis name, a tuple of names or UNCONSTRAINED for each dim, not {entry!r}"
    )


def test_a_list_of_axes_is_a_tuple_of_axes():
    assert P(["data"]) == P("data")
    assert P(["data", "model"], None) == P(("data", "model"), None)


@pytest.mark.parametrize(
    ("layout", "spec"),
    [
        (Layout(()), P()),
        (Layout(((), ())), P()),
        (Layout((("data",), ())), P("data")),
        (Layout(((), ("model",))), P(None, "model")),
        (Layout((("data", "model"), (), ())), P(("data", "model"))),
    ],
    ids=str,
)
def test_the_spec_of_a_layout(layout, spec):
    assert spec_of(layout) == spec
    assert pin_of(spec, (8,) * len(layout.dims), MESH).layout == layout


def test_specs_are_tuples_that_print_and_pickle():
    spec = P("data", None, ("model", "x"))
    assert spec == ("data", None, ("model", "x"))
    assert repr(spec) == "P('data', None, ('model', 'x'))"
    assert repr(P(UNCONSTRAINED)) == "P(UNCONSTRAINED)"
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert type(again) is PartitionSpec


def test_equal_specs_are_one_object():
    spec = P(None, "data", ("model", "x"))
    assert P((), ("data",), ["model", "x"]) is spec
    assert P(None, "data") + P(("model", "x")) is spec
    assert pickle.loads(pickle.dumps(spec)) is spec
    assert P("data", unreduced={"model"}) is P("data", unreduced=["model"])
    assert P("data", unreduced={"model"}) is not P("data", reduced={"model"})


def test_unconstrained_is_one_object_after_pickling():
    assert pickle.loads(pickle.dumps(P(UNCONSTRAINED, "data"))) == P(UNCONSTRAINED, "data")


def test_unreduced_specs_are_sums():
    assert P("data").unreduced_kind is None
    spec = P(unreduced={"data"})
    assert spec.unreduced_kind is UnreducedKind.sum
    assert P(unreduced={"data"}, unreduced_kind=UnreducedKind.sum) is spec
    for kind in (UnreducedKind.max, UnreducedKind.min):
        with pytest.raises(UnsupportedError, match=f"unreduced_kind={kind} is not supported yet"):
            P(unreduced={"data"}, unreduced_kind=kind)
    with pytest.raises(ShardingError, match="needs unreduced axes"):
        P("data", unreduced_kind=UnreducedKind.sum)
    with pytest.raises(TypeError, match="must be an UnreducedKind or None, not 'sum'"):
        P(unreduced={"data"}, unreduced_kind="sum")
    assert ManualAxisType(unreduced={"data"}).update(unreduced=()).unreduced_kind is None

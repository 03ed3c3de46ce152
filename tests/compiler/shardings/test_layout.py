"""Layouts: their axes, their text, and the shapes of shards."""

import pytest

from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(()), "P()"),
        (Layout(((), ())), "P(None, None)"),
        (Layout((("data",), ())), "P('data', None)"),
        (Layout(((), ("model", "data"))), "P(None, ('model', 'data'))"),
        (Layout(((),), (("model", SUM),)), "P(None) + sum over 'model'"),
        (Layout((("data",),), (("model", MAX),)), "P('data') + max over 'model'"),
    ],
)
def test_a_layout_prints_as_its_spec(layout, text):
    assert str(layout) == text


def test_the_axes_of_a_layout_are_those_of_dims_and_partial_sums():
    layout = Layout((("model",), ()), (("data", SUM),))
    assert layout.axes == ("model", "data")
    assert layout.dim_of("model") == 0
    assert layout.dim_of("data") is None
    assert layout.is_partial("data")
    assert not layout.is_partial("model")


def test_replicated():
    assert Layout.replicated(2) == Layout(((), ()))
    assert Layout.replicated(0).axes == ()


def test_changing_a_layout_returns_a_new_one():
    layout = Layout((("model",), ()), (("data", SUM),))
    assert layout.with_dim(1, ("other",)) == Layout((("model",), ("other",)), (("data", SUM),))
    assert layout.without_partial("data") == Layout((("model",), ()))
    assert layout.without_partial("model") == layout
    assert layout == Layout((("model",), ()), (("data", SUM),))


@pytest.mark.parametrize(
    ("dims", "shape", "padded", "shard"),
    [
        (((), ()), (5, 7), (5, 7), (5, 7)),
        ((("data",), ()), (8, 7), (8, 7), (2, 7)),
        ((("data",), ("model",)), (5, 7), (8, 8), (2, 4)),
        ((("data", "model"), ()), (5, 7), (8, 7), (1, 7)),
        ((("model", "data"), ()), (17, 7), (24, 7), (3, 7)),
        ((("data",), ()), (0, 7), (0, 7), (0, 7)),
        ((("data",), ()), (1, 7), (4, 7), (1, 7)),
    ],
)
def test_shards_are_equal_blocks_of_the_padded_array(dims, shape, padded, shard):
    layout = Layout(dims)
    assert layout.padded_shape(shape, MESH) == padded
    assert layout.shard_shape(padded, MESH) == shard


def test_layouts_and_pins_compare_by_value():
    assert len({Layout((("data",),)), Layout((("data",),)), Layout((("model",),))}) == 2
    assert Pin(Layout(((),)), frozenset({0}), "x") == Pin(Layout(((),)), frozenset({0}), "x")
    assert Pin(Layout(((),)), frozenset({0})) != Pin(Layout(((),)))


@pytest.mark.parametrize(
    ("dims", "shape", "even"),
    [
        ((("data",), ("model",)), (8, 4), (("data",), ("model",))),
        ((("data",), ("model",)), (6, 4), ((), ("model",))),
        ((("model", "data"), ()), (6, 4), (("model",), ())),
        ((("data", "model"), ()), (4, 4), (("data",), ())),
        ((("data",), ()), (0, 4), (("data",), ())),
    ],
)
def test_an_even_layout_has_the_first_axes_that_divide_each_dim(dims, shape, even):
    assert Layout(dims, (("x", SUM),)).evenly(shape, MESH) == Layout(even, (("x", SUM),))

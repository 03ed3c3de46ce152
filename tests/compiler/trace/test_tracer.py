"""Tracers and frames: nesting, leaks, and uses that need a concrete value."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Frame
from shardwise.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)

F32, SCALAR = parse_type("f32[3]"), parse_type("f32[]")


def test_frames_nest_and_close():
    seen = []

    def inner(y):
        seen.append([frame.name for frame in open_frames()])
        return [y]

    def outer(x):
        build(inner, [F32], "inner")
        seen.append([frame.name for frame in open_frames()])
        return [x]

    build(outer, [F32], "outer")
    assert seen == [["outer", "inner"], ["outer"]]
    assert list(open_frames()) == []


def test_a_frame_closes_if_the_function_raises():
    with pytest.raises(ZeroDivisionError):
        build(lambda x: [x / 0 if 1 // 0 else x], [F32], "failing")
    assert list(open_frames()) == []


def test_a_frame_owns_its_tracers_only():
    one, other = Frame("one", stages_all=True), Frame("other", stages_all=True)
    tracer = one.input(F32)
    assert one.owns(tracer) and not other.owns(tracer) and not one.owns(3.0)


def test_ops_on_outer_values_stay_in_the_outer_frame():
    """A frame that does not stage all ops takes those on its own tracers: grad leaves the work on constants outside."""
    program, _ = build(lambda x, y: [sw.grad(lambda x: (x * jnp.sin(y)).sum())(x)], [F32, F32], "outer")
    assert [equation.op.name for equation in program.equations].count("sin") == 1


def test_a_tracer_has_the_type_of_its_value_and_no_elements():
    texts = []

    def function(x):
        texts.append(repr(x))
        assert (x.shape, x.dtype, x.ndim) == ((3,), np.float32, 1)
        return [x]

    build(function, [F32], "typed")
    assert texts == ["Traced<f32[3] in typed>"]


def test_a_leaked_tracer_raises_with_the_line_that_made_it():
    leaked = []

    def leaky(x):
        leaked.append(x * 2)  # the line in the message
        return [x]

    build(leaky, [F32], "leaky")
    line = leaky.__code__.co_firstlineno + 1
    with pytest.raises(UnexpectedTracerError) as caught:
        build(lambda y: [y + leaked[0]], [F32], "later")
    text = str(caught.value)
    assert f"test_tracer.py:{line}" in text
    assert "f32[3]" in text and "`leaky`" in text and "by mul" in text


@pytest.mark.parametrize(
    ("use", "type", "error"),
    [
        (bool, SCALAR, TracerBoolConversionError),
        (lambda x: [1, 2][x], parse_type("i32[]"), TracerIntegerConversionError),
        (int, SCALAR, ConcretizationTypeError),
        (float, SCALAR, ConcretizationTypeError),
        (complex, SCALAR, ConcretizationTypeError),
        (lambda x: x.item(), SCALAR, ConcretizationTypeError),
        (lambda x: x.tolist(), F32, ConcretizationTypeError),
        (np.asarray, F32, TracerArrayConversionError),
    ],
    ids=["bool", "index", "int", "float", "complex", "item", "tolist", "numpy"],
)
def test_uses_that_need_a_concrete_value_raise_with_the_line(use, type, error):
    def function(x):
        use(x)
        return [x]

    with pytest.raises(error) as caught:
        build(function, [type], "abstract")
    assert str(type) in str(caught.value)
    assert "`abstract`" in str(caught.value)
    assert "test_tracer.py:" in str(caught.value)

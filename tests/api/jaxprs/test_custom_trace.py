"""Trace: an interpreter as libraries write them, by tracers of their own, compared with the function itself."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.core import Trace, Tracer
from shardwise.extend.core import TraceTag, primitives, set_current_trace, take_current_trace
from shardwise.extend.linear_util import transformation, wrap_init


class RecordingTracer(Tracer):
    def __init__(self, trace, val):
        super().__init__(trace, sw.typeof(val))
        self.val = val


class RecordingTrace(Trace):
    """Records the names of primitives, and computes their results in the outer trace."""

    def __init__(self, outer, tag, names):
        super().__init__()
        self.outer, self.tag, self.names = outer, tag, names

    def value(self, x):
        return x.val if isinstance(x, RecordingTracer) and x._trace.tag is self.tag else x

    def process_primitive(self, primitive, tracers, params):
        values = [self.value(x) for x in tracers]
        self.names.append(primitive.name)
        out = primitive.bind_with_trace(self.outer, values, [sw.typeof(x) for x in values], params)
        return sw.tree.map(lambda x: RecordingTracer(self, x), out)


@transformation
def _record(tag, names, *values):
    with take_current_trace() as outer:
        trace = RecordingTrace(outer, tag, names)
        with set_current_trace(trace):
            results = yield [RecordingTracer(trace, x) for x in values], {}
            yield [trace.value(x) for x in results]


def record(function, *args):
    """Return the results of a function, and the names of the primitives that it applies."""
    names = []
    return _record(wrap_init(function), TraceTag(), names).call_wrapped(*args), names


@sw.custom_jvp
def cube(x):
    return x**3


cube.defjvps(lambda dx, y, x: 3 * x**2 * dx)


def program(x, y):
    z = jnp.tanh(x @ y) + 1
    total, _ = lax.scan(lambda sum, row: (sum + row, None), jnp.zeros(3), z)
    return [sw.jit(jnp.exp)(total), cube(-z)]


def test_primitives_reach_the_trace():
    x, y = np.ones((2, 4), np.float32) / 3, np.ones((4, 3), np.float32) / 5
    results, names = record(program, x, y)
    for result, expected in zip(results, program(jnp.array(x), jnp.array(y)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert names[:4] == ["dot_general", "tanh", "add", "scan"] and "jit" in names and names[-1] == "integer_pow"


def test_inside_of_other_transformations():
    names = []

    def f(x):
        (y,), recorded = record(lambda x: [jnp.sin(x) * 2], x)
        names[:] = recorded
        return y

    np.testing.assert_allclose(sw.jit(f)(1.0), 2 * np.sin(1.0), rtol=1e-6)
    assert names == ["sin", "mul"]
    np.testing.assert_allclose(sw.grad(f)(1.0), 2 * np.cos(1.0), rtol=1e-6)
    np.testing.assert_allclose(sw.vmap(f)(jnp.arange(3.0)), 2 * np.sin(np.arange(3)), rtol=1e-6)


def test_traces_may_be_nested():
    results, names = record(lambda x: record(lambda x: [jnp.cos(x)], x)[0], 1.0)
    assert names == ["cos"]
    np.testing.assert_allclose(results[0], np.cos(1.0), rtol=1e-6)


def test_a_trace_without_a_rule_is_an_error():
    with take_current_trace() as outer, set_current_trace(Trace()):
        with pytest.raises(NotImplementedError, match=r"Trace must define process_primitive, which exp needs"):
            primitives.exp_p.bind(jnp.float32(1))
        with set_current_trace(outer):
            assert primitives.exp_p.bind(jnp.float32(0)) == 1


class DoublingTracer(Tracer):
    """A tracer with a constructor and a property `aval` of its own, as quax has."""

    __slots__ = ("array",)

    def __init__(self, trace, array):
        self._trace = trace
        self.array = array

    @property
    def aval(self):
        return sw.typeof(self.array)


class DoublingTrace(Trace):
    """Computes primitives in the outer trace, and doubles their results."""

    def __init__(self, outer):
        super().__init__()
        self.outer = outer

    def process_primitive(self, primitive, tracers, params):
        arrays = [x.array if isinstance(x, DoublingTracer) else x for x in tracers]
        with set_current_trace(self.outer):
            return DoublingTracer(self, 2 * primitive.bind(*arrays, **params))


def test_tracers_with_a_constructor_of_their_own():
    @sw.jit
    def compute(x):
        with take_current_trace() as outer:
            trace = DoublingTrace(outer)
            with set_current_trace(trace):
                y = jnp.sin(DoublingTracer(trace, x))
                assert (y.shape, y.dtype, y.type) == ((3,), np.float32, sw.typeof(x))
            return trace.full_raise(y).array

    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(compute(x), 2 * np.sin(x), rtol=1e-6)

"""checking_leaks: a tracer that outlives its trace is an error at the end of the trace; others are not."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import UnexpectedTracerError


class Module:
    def __init__(self):
        self.states = {}


def leaking(store):
    def function(x):
        store(x)
        return x

    return function


TRACES = {
    "jit": lambda f: sw.jit(f)(3.0),
    "pmap": lambda f: sw.pmap(f)(np.ones(1)),
    "vmap": lambda f: sw.vmap(f)(np.ones(2)),
    "scan": lambda f: lax.scan(lambda c, x: (f(c), None), 1.0, np.arange(3.0)),
    "cond": lambda f: lax.cond(True, f, f, 1.0),
    "jit in jit": lambda f: sw.jit(sw.jit(f))(1.0),
}


@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", TRACES)
def test_leaks_are_found(name):
    leaked = []
    with sw.checking_leaks(), pytest.raises(UnexpectedTracerError, match=r"Leaked trace: .*\n  It was created at"):
        TRACES[name](leaking(leaked.append))
    TRACES[name](leaking(lambda x: None))  # without a leak, and without the setting


def test_the_message_names_what_refers_to_the_tracer():
    module = Module()

    def store(x):
        module.states["hidden"] = [x]

    with sw.check_tracer_leaks(), pytest.raises(UnexpectedTracerError) as raised:
        sw.jit(leaking(store))(1.0)
    text = str(raised.value)
    assert "<Tracer> is referred to by <list>[0]" in text
    assert "<list> is referred to by <dict>['hidden']" in text


FALSE_POSITIVES = {
    "vmap of jit": lambda: sw.vmap(sw.jit(lambda x: x))(np.arange(3)),
    "grad of jit": lambda: sw.grad(sw.jit(lambda x: x * x))(3.0),
    "closure": lambda: sw.jit(lambda y: sw.jit(lambda x: x + y)(y))(2.0),
    "grad of a closure": lambda: sw.grad(lambda y: sw.jit(lambda x: x * y)(y))(2.0),
    "scan under jvp": lambda: sw.jvp(lambda x: lax.scan(lambda c, _: (c, None), x, None, 1)[0], (3.0,), (1.0,)),
    "scan under vmap": lambda: sw.vmap(lambda x: lax.scan(lambda c, _: (c, None), x, None, 1)[0])(np.arange(5.0)),
    "loop": lambda: sw.jit(sw.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, 1.0)))(2.0),
    "checkpoint": lambda: sw.jit(lambda x: sw.vjp(sw.checkpoint(lambda x: sw.nn.relu(1.0 * x)), x))(1.0),
    "Jacobians with aux": lambda: sw.hessian(lambda x: (jnp.sum(x**3), (x, "a")), has_aux=True)(jnp.ones(2)),
}


@pytest.mark.parametrize("name", FALSE_POSITIVES)
def test_no_false_positives(name):
    expected = FALSE_POSITIVES[name]()
    with sw.checking_leaks():
        checked = FALSE_POSITIVES[name]()
    assert str(expected) == str(checked) or name == "checkpoint"  # which returns a function

"""named_scope: the names are in the locations of the ops traced inside, and change nothing else."""

import re
import threading

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.execute.request import partition_request

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def text_of(function, *args):
    request, _ = sw.jit(function).request(args, {})
    return partition_request(request, request.target())[0].module.text


def locations(function, *args):
    """Return scope and name of every op in the StableHLO; its location has the line between them."""
    found = re.findall(r'loc\("([^"]*)"', text_of(function, *args))
    return [re.sub(r"test_provenance_named_scope\.py:\d+/", "", name) for name in found]


def test_location_has_scope_line_and_op():
    def f(x):
        with sw.named_scope("outer"):
            y = x + x
            with sw.named_scope("inner"):
                z = jnp.exp(y)
        return -z

    line = f.__code__.co_firstlineno
    assert re.findall(r'loc\("([^"]*)"\("([^"]*)":(\d+):0\)', text_of(f, X)) == [
        (f"outer/test_provenance_named_scope.py:{line + 2}/add", __file__, str(line + 2)),
        (f"outer/inner/test_provenance_named_scope.py:{line + 4}/exp", __file__, str(line + 4)),
        (f"test_provenance_named_scope.py:{line + 5}/neg", __file__, str(line + 5)),
    ]


def test_as_a_decorator():
    @sw.named_scope("layer")
    def layer(x, depth):
        """A layer."""
        return layer(jnp.exp(x), depth - 1) if depth else x

    assert (layer.__name__, layer.__doc__) == ("layer", "A layer.")
    assert locations(lambda x: -layer(x, 2), X) == ["layer/exp", "layer/layer/exp", "neg"]


def test_derivatives_have_the_scope_of_the_primal_ops():
    def loss(x):
        with sw.named_scope("forward"):
            y = jnp.exp(x)
        return y.sum()

    found = locations(sw.vmap(sw.grad(loss)), X)
    assert "forward/exp" in found and "forward/mul" in found
    assert not any(name.endswith("sum") and "forward" in name for name in found)


def test_cached_trace_has_the_scope_of_each_call():
    traced = []

    @sw.jit
    def block(x):
        traced.append(x)
        with sw.named_scope("block"):
            return jnp.exp(x)

    def f(x):
        with sw.named_scope("first"):
            x = block(x)
        with sw.named_scope("second"):
            x = sw.checkpoint(block)(x)
        return block(x)

    assert locations(f, X) == ["first/block/exp", "second/block/exp", "block/exp"]
    assert len(traced) == 1


def test_ops_in_loops_have_the_enclosing_scopes():
    def f(x):
        def step(carry, y):
            with sw.named_scope("step"):
                return carry + jnp.exp(y), None

        with sw.named_scope("loop"):
            return sw.lax.scan(step, jnp.zeros(()), x)[0]

    found = locations(lambda x: sw.jit(f)(x) * 2, X[0])
    assert {"loop/step/exp", "loop/step/add", "loop/scan", "mul"} <= set(found)


def test_loops_in_derivative_rules_have_the_scope_of_the_call_once():
    @sw.custom_vjp
    def f(x):
        return jnp.exp(x)

    def pull_back(x, ct):
        return (sw.lax.scan(lambda carry, y: (jnp.sin(carry), None), ct, x)[0],)

    f.defvjp(lambda x: (f(x), x), pull_back)

    def loss(x):
        with sw.named_scope("model"):
            return f(x).sum()

    found = locations(lambda x: sw.jit(sw.grad(loss))(x) * 2, X[0])
    assert {"model/scan", "model/sin"} <= set(found)


def test_scopes_cause_no_recompilation():
    traced = []

    @sw.jit
    def f(x):
        traced.append(x)
        return jnp.exp(x) * x

    before = f(X)
    with sw.named_scope("other"):
        after = f(X)
    np.testing.assert_array_equal(before, after)
    assert len(traced) == 1 and len(f._launches) == 1

    def scoped(name):
        def g(x):
            with sw.named_scope(name):
                return jnp.exp(x)

        return sw.make_jaxpr(g)(X).program

    assert scoped("a") == scoped("b") and hash(scoped("a")) == hash(scoped("b"))


def test_program_text_shows_scopes():
    def f(x):
        with sw.named_scope("encoder"), sw.named_scope("attention"):
            return jnp.exp(x)

    line = f.__code__.co_firstlineno + 2
    assert f"# test_provenance_named_scope.py:{line} in encoder/attention\n" in str(sw.make_jaxpr(f)(X))


def test_names_with_odd_characters_reach_xla():
    def f(x):
        with sw.named_scope('a "quoted" \\ name\n'):
            return jnp.exp(x)

    np.testing.assert_allclose(sw.jit(f)(X), np.exp(X), rtol=1e-6)


def test_an_error_closes_the_scope():
    def f(x):
        with pytest.raises(ZeroDivisionError), sw.named_scope("broken"):
            raise ZeroDivisionError
        return jnp.exp(x)

    assert locations(f, X) == ["exp"]


def test_scope_object_can_be_reused():
    scope = sw.named_scope("s")

    def f(x):
        with scope:
            with scope:
                x = jnp.exp(x)
            x = -x
        return x + x

    assert locations(f, X) == ["s/s/exp", "s/neg", "add"]


def test_scopes_are_thread_local():
    found = []

    def elsewhere():
        found.append(locations(jnp.exp, X))

    def f(x):
        with sw.named_scope("here"):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return jnp.exp(x)

    assert locations(f, X) == ["here/exp"]
    assert all("here" not in name for names in found for name in names) and found


def test_name_must_be_a_string():
    with pytest.raises(TypeError) as caught:
        sw.named_scope(3)
    assert str(caught.value) == "named_scope needs a string, not 3"

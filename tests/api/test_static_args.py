"""jit's static and donated arguments, unused ones, inlining, and the log of recompilations."""

import logging
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base._jaxlib import split
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def power(x, n, *, negate=False):
    y = x
    for _ in range(n - 1):
        y = y * x
    return -y if negate else y


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": (1,), "static_argnames": ("n", "negate")},
        {"static_argnums": -1, "static_argnames": ("n", "negate")},
        {"static_argnames": ["n", "negate"]},
    ],
    ids=["number", "negative", "names"],
)
def test_static_by_number_and_by_name(options):
    f = sw.jit(power, **options)
    assert float(f(2.0, 3)) == 8.0
    assert float(f(2.0, n=4)) == 16.0
    assert float(f(3.0, 2, negate=True)) == -9.0
    assert float(sw.jit(lambda x: f(x, 3))(2.0)) == 8.0
    assert float(sw.grad(f)(2.0, 3)) == 12.0


def test_numbers_select_positional_and_names_keyword_arguments_if_both_are_passed():
    def traced(x, y):
        return [isinstance(value, sw.core.Tracer) for value in (x, y)]

    def run(call, **options):
        found = []
        call(sw.jit(lambda x, y: found.append(traced(x, y)), **options))
        return found[0]

    both = {"static_argnums": 1, "static_argnames": "x"}
    for options, by_position, by_name in [
        ({"static_argnums": 1, "static_argnames": ()}, [True, False], [True, True]),
        ({"static_argnums": (), "static_argnames": "y"}, [True, True], [True, False]),
        (both, [True, False], [True, True]),
        ({"static_argnums": 1}, [True, False], [True, False]),
        ({"static_argnames": "y"}, [True, False], [True, False]),
    ]:
        assert run(lambda f: f(2, 3), **options) == by_position
        assert run(lambda f: f(2, y=3), **options) == by_name
    assert run(lambda f: f(x=2, y=3), **both) == [False, True]


def test_equal_static_values_of_different_types_are_distinguished():
    seen = []

    def f(x, flag):
        seen.append(type(flag))
        return x

    g = sw.jit(f, static_argnums=1)
    for flag in (1, 1.0, True, 1):
        g(2.0, flag)
    assert seen == [int, float, bool]


def test_invalid_static_arguments_raise():
    with pytest.raises(
        ValueError, match=r"static argument 1 of `power` \(test_static_args\.py:\d+\) is \[3\] of type list"
    ):
        sw.jit(power, static_argnums=1)(2.0, [3])
    with pytest.raises(
        ValueError, match=r"static_argnames of `power` .* has 'm', but the parameters of the function are x, n, negate"
    ):
        sw.jit(power, static_argnames="m")
    with pytest.raises(
        ValueError, match=r"static_argnums of `power` .* has 5, but the function has 2 positional parameters"
    ):
        sw.jit(power, static_argnums=5)
    with pytest.raises(ValueError, match=r"argument 0 of `power` .* is both static and donated"):
        sw.jit(power, static_argnums=0, donate_argnums=0)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"static_argnums": "x"}, "static_argnums of `power` .* must be integers, not 'x'"),
        ({"donate_argnums": (0, 1.5)}, "donate_argnums of `power` .* must be integers, not 1.5"),
        ({"static_argnames": (0,)}, "static_argnames of `power` .* must be strings, not 0"),
    ],
    ids=lambda given: "",
)
def test_argnums_must_be_integers_and_argnames_strings(option, text):
    with pytest.raises(TypeError, match=text):
        sw.jit(power, **option)


def test_dynamic_arguments_beside_static_ones_keep_their_names():
    f = sw.jit(lambda n, x, *, k: x, static_argnums=0, static_argnames="k")
    with pytest.raises(TypeError, match="argument `x` of `<lambda>`"):
        f(2, "abc", k=1)


@pytest.mark.parametrize("spec", [None, P("data"), P("model", "data")], ids=str)
def test_donated_memory_is_reused(mesh, spec):
    f = sw.jit(lambda p, x: ({"w": p["w"] + x}, p["w"].sum()), donate_argnums=0)
    w = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    p = {"w": jnp.asarray(w) + 0 if spec is None else sw.device_put(w, NamedSharding(mesh, spec)) + 0}
    out, total = f(p, 1.0)
    np.testing.assert_array_equal(out["w"], w + 1)
    assert float(total) == w.sum()
    assert p["w"].is_deleted()
    assert not out["w"].is_deleted()
    with pytest.raises(RuntimeError, match=r"argument `p\['w'\]` of `<lambda>` is a f32\[8,8\] whose memory was freed"):
        f(p, 1.0)
    with pytest.raises(RuntimeError, match="an array that is read is a f32"):
        np.asarray(p["w"])


def pointers(x):
    """Return the buffer addresses of the shards."""
    return [shard.unsafe_buffer_pointer() for shard in split(x.buffers)]


@pytest.mark.parametrize("spec", [None, P("data"), P("model", "data"), P()], ids=str)
@pytest.mark.parametrize("rows", [8, 10], ids=["even", "uneven"])
def test_results_reuse_the_buffers_of_donated_arguments(mesh, spec, rows):
    """In consecutive steps, on one device and on eight; but not without donation."""

    def step(state, x):
        return {"w": state["w"] * 0.5 + x, "count": state["count"] + 1}

    w = np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)
    where = sw.devices()[0] if spec is None else NamedSharding(mesh, spec)
    state = {"w": sw.device_put(w, where) + 0, "count": jnp.zeros((), jnp.int32) + 0}
    first = pointers(state["w"])
    assert len(set(first)) == (1 if spec is None else 8)
    donating, keeping = sw.jit(step, donate_argnums=0), sw.jit(step)
    expected = w
    for _ in range(3):
        state = donating(state, 1.0)
        expected = expected * 0.5 + 1
        assert pointers(state["w"]) == first
    np.testing.assert_allclose(state["w"], expected)
    assert int(state["count"]) == 3
    assert not set(pointers(keeping(state, 1.0)["w"])) & set(first)


@pytest.mark.parametrize("donated", [(0, 1), 0, 1], ids=str)
def test_donated_array_passed_twice_raises(mesh, donated):
    def both(a, b):
        return a + b, a - b

    for where in (sw.devices()[0], NamedSharding(mesh, P("data"))):
        x = sw.device_put(np.arange(4.0, dtype=np.float32), where)
        with pytest.raises(
            RuntimeError, match=r"`both` gets the same array as `a` and as `b`, and one of them is donated: its"
        ):
            sw.jit(both, donate_argnums=donated)(x, x)
        closed = partial(both, b=x)
        with pytest.raises(RuntimeError, match="gets the same array as `a` and as a value that it closes over"):
            sw.jit(lambda a, closed=closed: closed(a), donate_argnums=0)(x)
        y = sw.device_put(np.arange(4.0, dtype=np.float32), where)
        assert sw.jit(both)(y, y)[0].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_donation_by_name():
    f = sw.jit(lambda x, y: x + y, donate_argnames=("y",))
    x, y = jnp.ones(4), jnp.ones(4)
    f(x, y=y)
    assert y.is_deleted() and not x.is_deleted()


def test_unusable_donation_warns():
    with pytest.warns(UserWarning, match=r"`x` of `<lambda>` is donated, but no result has its type and sharding"):
        sw.jit(lambda x: x.sum(), donate_argnums=0)(jnp.ones(4))


def test_delete():
    x = jnp.ones(3)
    x.delete()
    assert x.is_deleted()


def test_unused_arguments_are_not_transferred():
    elsewhere = sw.device_put(np.ones(3, np.float32), sw.devices()[5])
    here = sw.device_put(np.ones(3, np.float32), sw.devices()[2])
    out = sw.jit(lambda x, unused: x * 2)(here, elsewhere)
    assert out.devices() == {sw.devices()[2]}
    with pytest.raises(ValueError, match="cannot run on different devices"):
        sw.jit(lambda x, unused: x * 2, keep_unused=True)(here, elsewhere)


def test_inline_inlines_the_ops():
    inner = lambda x: x * 2 + 1  # noqa: E731
    for inline, calls in ((False, 1), (True, 0)):
        f = sw.jit(lambda x, inline=inline: sw.jit(inner, inline=inline)(x), static_argnames="inline")
        program = f.request((1.0,), {})[1].program
        assert sum(equation.op.name == "call" for equation in program.equations) == calls
        assert float(f(3.0)) == 7.0


def test_explain_cache_misses_logs_the_reasons(caplog):
    sw.config.update("jax_explain_cache_misses", True)
    try:
        with caplog.at_level(logging.WARNING, "shardwise"):
            f = sw.jit(power, static_argnums=1)
            f(jnp.ones(3), 2)
            assert not caplog.records
            f(jnp.ones(4), 2)
            f(jnp.ones(4), 3)
            f(jnp.ones(4), 3)
    finally:
        sw.config.update("jax_explain_cache_misses", False)
    first, second = [record.getMessage() for record in caplog.records]
    assert "compilation #2 of `power` (test_static_args.py:" in first
    assert "`x` is f32[4] with SingleDeviceSharding(cpu:0), before f32[3]" in first
    assert "settings and static arguments are" in second


def test_jit_of_concrete_arguments_can_close_over_a_tracer():
    assert float(sw.grad(lambda w: sw.jit(lambda y: y * w)(2.0))(3.0)) == 2.0
    np.testing.assert_array_equal(sw.vmap(lambda w: sw.jit(lambda y: y * w)(2.0))(jnp.arange(3.0)), [0, 2, 4])

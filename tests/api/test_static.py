"""jit's static and donated arguments, unused ones, inlining, and the log of recompilations."""

import logging

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
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
        {"static_argnums": (1,), "static_argnames": "negate"},
        {"static_argnums": -1, "static_argnames": ("negate",)},
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


def test_static_values_of_different_types_do_not_meet():
    seen = []

    def f(x, flag):
        seen.append(type(flag))
        return x

    g = sw.jit(f, static_argnums=1)
    for flag in (1, 1.0, True, 1):
        g(2.0, flag)
    assert seen == [int, float, bool]


def test_bad_static_arguments():
    with pytest.raises(ValueError, match=r"static argument 1 of `power` \(test_static\.py:\d+\) is \[3\] of type list"):
        sw.jit(power, static_argnums=1)(2.0, [3])
    with pytest.raises(
        ValueError, match=r"static_argnames of `power` .* name 'm', but its parameters are x, n, negate"
    ):
        sw.jit(power, static_argnames="m")
    with pytest.raises(ValueError, match=r"static_argnums of `power` .* has 5, but it has 2 positional parameters"):
        sw.jit(power, static_argnums=5)
    with pytest.raises(ValueError, match=r"argument 0 of `power` .* is static and donated"):
        sw.jit(power, static_argnums=0, donate_argnums=0)


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
    with pytest.raises(
        RuntimeError, match=r"argument `p\['w'\]` of `<lambda>` is a f32\[8,8\] whose memory was given up"
    ):
        f(p, 1.0)
    with pytest.raises(RuntimeError, match="an array that is read is a f32"):
        np.asarray(p["w"])


def test_donation_by_name():
    f = sw.jit(lambda x, y: x + y, donate_argnames=("y",))
    x, y = jnp.ones(4), jnp.ones(4)
    f(x, y=y)
    assert y.is_deleted() and not x.is_deleted()


def test_a_donation_that_cannot_be_used_warns():
    with pytest.warns(UserWarning, match=r"`x` of `<lambda>` is donated, but no result has its type and layout"):
        sw.jit(lambda x: x.sum(), donate_argnums=0)(jnp.ones(4))


def test_delete():
    x = jnp.ones(3)
    x.delete()
    assert x.is_deleted()


def test_unused_arguments_are_not_moved_and_do_not_matter():
    elsewhere = sw.device_put(np.ones(3, np.float32), sw.devices()[5])
    here = sw.device_put(np.ones(3, np.float32), sw.devices()[2])
    out = sw.jit(lambda x, unused: x * 2)(here, elsewhere)
    assert out.devices() == {sw.devices()[2]}
    with pytest.raises(ValueError, match="cannot run on different devices"):
        sw.jit(lambda x, unused: x * 2, keep_unused=True)(here, elsewhere)


def test_inline_leaves_no_call():
    inner = lambda x: x * 2 + 1  # noqa: E731
    for inline, calls in ((False, 1), (True, 0)):
        f = sw.jit(lambda x, inline=inline: sw.jit(inner, inline=inline)(x), static_argnames="inline")
        program = f.request((1.0,), {})[1].program
        assert sum(equation.op.name == "call" for equation in program.equations) == calls
        assert float(f(3.0)) == 7.0


def test_recompilations_are_explained(caplog):
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
    assert "is compiled for the 2. time" in first
    assert "`x` is f32[4] in SingleDeviceSharding(cpu:0), last time f32[3]" in first
    assert "settings and static arguments are" in second


def test_a_jit_of_known_arguments_inside_grad_may_close_over_the_tracer():
    assert float(sw.grad(lambda w: sw.jit(lambda y: y * w)(2.0))(3.0)) == 2.0
    np.testing.assert_array_equal(sw.vmap(lambda w: sw.jit(lambda y: y * w)(2.0))(jnp.arange(3.0)), [0, 2, 4])

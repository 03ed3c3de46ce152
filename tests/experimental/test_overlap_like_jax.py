"""Compare collectives that are started, and ordered functions, with JAX, from version 0.12 on."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy
from shardwise.experimental import overlap

jax = pytest.importorskip("jax")
theirs = pytest.importorskip("jax.experimental.overlap", reason="needs JAX 0.12")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax, order=overlap.program_order)
THERE = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax, order=theirs.program_order)
X = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32) / 4


def started(m, x):
    future = m.lax.psum_scatter_start(m.np.sin(x), "data", tiled=True)
    product = x @ x.T
    assert (future.shape, future.dtype) == ((1, 4), np.float32)
    return future.done() + m.np.exp(product).sum()


def trees(m, x):
    futures = m.lax.psum_scatter_start((x, {"twice": 2 * x}), "data", tiled=True)
    first, second = m.jax.tree.map(lambda future: future.done(), futures)
    return first * second["twice"]


def block(m, x):
    inner = m.order(lambda x, w: m.np.sin(x) @ w @ w.T, enforce=False, exclude_argnames="w")
    return inner(x @ x.T, x) + m.lax.psum(x, "data").sum()


def compare(function, mesh):
    their_mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ours, theirs = (
        m.jax.jit(m.jax.shard_map(function(m), mesh=mesh, in_specs=m.jax.P("data"), out_specs=m.jax.P("data")))(X)
        for m, mesh in ((HERE, mesh), (THERE, their_mesh))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# JAX 0.12 crashes on CPUs when it compiles an ordered function in which a collective is started.
@pytest.mark.parametrize("function", [started, trees])
def test_started_collectives(mesh, function):
    compare(lambda m: lambda x: function(m, x), mesh)


@pytest.mark.parametrize("strict", [False, True, (False, True)])
def test_ordered_functions(mesh, strict):
    compare(lambda m: m.order(lambda x: block(m, x), enforce=True, strict_in_out=strict), mesh)


def test_derivatives_of_ordered_functions():
    def gradient(m):
        return m.jax.grad(m.order(lambda x: (m.np.tanh(x @ x.T) @ x).sum(), enforce=True))(X)

    np.testing.assert_allclose(gradient(HERE), gradient(THERE), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"enforce": True, "exclude_argnames": "x"}, {"enforce": False, "strict_in_out": True}],
    ids=["no enforce", "excluded and enforced", "strict and not enforced"],
)
def test_errors(options):
    for m in (HERE, THERE):
        with pytest.raises((TypeError, ValueError)):
            m.order(lambda x: x, **options)

"""Transformations and control flow, nested three deep in every order: against numpy, JAX, and one device.

Each wraps a function from vectors to vectors into another one, so that any three can be nested. The same wrappers are
written in numpy: loops, `if`, and finite differences.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

HERE = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax)
SCALES = np.array([0.5, -0.25, 1.0], np.float32)


def base(m):
    return lambda x: m.np.exp(0.3 * x) * x


WRAPPERS = {
    "grad": lambda m, g: m.jax.grad(lambda x: g(x).sum()),
    "vmap": lambda m, g: lambda x: m.jax.vmap(g)(m.np.stack([x, 0.5 * x])).sum(axis=0),
    "jit": lambda m, g: m.jax.jit(g),
    "remat": lambda m, g: m.jax.checkpoint(g),
    "scan": lambda m, g: lambda x: m.lax.scan(lambda c, s: (0.5 * c + s * g(c), c * x), x, SCALES)[0],
    "cond": lambda m, g: lambda x: m.lax.cond(x.sum() > 0, g, lambda y: 2 * g(0.5 * y), x),
}


def nested(m, names):
    function = base(m)
    for name in reversed(names):
        function = WRAPPERS[name](m, function)
    return function


def slopes(g, step=2e-3):
    """Compute the gradient of the sum by fourth-order differences."""

    def found(x):
        weights = {2: -1 / 12, 1: 2 / 3, -1: -2 / 3, -2: 1 / 12}
        rows = np.eye(len(x)) * step
        return np.array([sum(w * g(x + k * row).sum() for k, w in weights.items()) / step for row in rows])

    return found


def iterated(g):
    def found(x):
        carry = x
        for scale in SCALES:
            carry = 0.5 * carry + scale * g(carry)
        return carry

    return found


IN_NUMPY = {
    "grad": slopes,
    "vmap": lambda g: lambda x: g(x) + g(0.5 * x),
    "jit": lambda g: g,
    "remat": lambda g: g,
    "scan": iterated,
    "cond": lambda g: lambda x: g(x) if x.sum() > 0 else 2 * g(0.5 * x),
}


def in_numpy(names):
    def function(x):
        return np.exp(0.3 * x) * x

    for name in reversed(names):
        function = IN_NUMPY[name](function)
    return function


ORDERS = list(itertools.product(WRAPPERS, repeat=3))
# In an order in which every wrapper soon occurs at every position: 67 is (1, 5, 1) in base 6, and prime.
SPREAD = [ORDERS[(67 * number) % len(ORDERS)] for number in range(len(ORDERS))]


def orders(often, whole=216):
    """Choose orders; `often` of them run with the fast tests."""
    return [
        pytest.param(names, id="-".join(names), marks=() if index < often else pytest.mark.slow)
        for index, names in enumerate(SPREAD[:whole])
    ]


def test_fast_orders_have_every_wrapper_at_every_position():
    for place in range(3):
        assert {names[place] for names in SPREAD[:24]} == set(WRAPPERS)


@pytest.mark.parametrize("names", orders(often=24))
def test_like_numpy(names):
    function = sw.jit(nested(HERE, names))
    for sign in (1, -1):
        x = sign * np.array([0.4, -0.2, 0.7])
        found = np.asarray(function(x.astype(np.float32)))
        np.testing.assert_allclose(found, in_numpy(names)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.jax
@pytest.mark.parametrize("names", orders(often=6))
def test_like_jax(names):
    jax = pytest.importorskip("jax")
    there = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)
    x = np.array([0.4, -0.2, 0.7], np.float32)
    expected = np.asarray(jax.jit(nested(there, names))(x))
    np.testing.assert_allclose(sw.jit(nested(HERE, names))(x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nested(HERE, names)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [8, 6, 3])
@pytest.mark.parametrize("names", orders(often=6, whole=36))
def test_on_eight_devices(names, size, mesh):
    x = np.linspace(-0.4, 0.8, size, dtype=np.float32)
    expected = sw.jit(nested(HERE, names))(x)
    placed = sw.device_put(x, NamedSharding(mesh, P("data")))
    np.testing.assert_allclose(sw.jit(nested(HERE, names))(placed), expected, rtol=1e-4, atol=1e-5)

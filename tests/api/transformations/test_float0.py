"""float0 arrays, the derivatives of integers, as arguments and results of transformations, compared with JAX."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.dtypes import float0

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=jnp, lax=sw.lax)
THERE = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)
ZERO = np.zeros((3,), float0)


def grad_of_int(m):
    return m.jax.grad(lambda x: 1.5 * x, allow_int=True)


def vjp_of_int(m, x):
    value, pullback = m.jax.vjp(lambda x, y: (2 * x, 3 * y), x, 2.0)
    return value, pullback((np.zeros(np.shape(x), float0), 1.0))


def region(m, function, spec):
    """Map a function of a float0 array with this spec, and an array, which returns both."""
    mesh, specs = m.jax.sharding.Mesh(m.jax.devices()[:2], ("i",)), (m.jax.P(*spec), m.jax.P("i"))
    return m.jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs)


PROGRAMS = {
    "argument of jit": lambda m: m.jax.jit(lambda x, zero: (zero, x + len(zero)))(1, ZERO),
    "keyword of jit": lambda m: m.jax.jit(lambda x, zero: {"zero": zero, "x": x})(np.ones(2), zero=ZERO),
    "jit in jit": lambda m: m.jax.jit(lambda x: m.jax.jit(lambda x, z: (x, z))(x, ZERO))(1.0),
    "grad": lambda m: grad_of_int(m)(3),
    "jit of grad": lambda m: m.jax.jit(grad_of_int(m))(3),
    "vmap of grad": lambda m: m.jax.vmap(grad_of_int(m))(m.np.arange(4)),
    "vmap, last axis": lambda m: m.jax.vmap(lambda z, x: z, 1, 1)(np.zeros((2, 3, 4), float0), np.ones((2, 3))),
    "vmap, size from float0": lambda m: m.jax.vmap(lambda z: 2.0)(ZERO),
    "jacrev": lambda m: m.jax.jacrev(lambda x: {"a": 2.0 * x, "b": 1.5 * x.sum()}, allow_int=True)(m.np.arange(3)),
    "jacrev of a Python int": lambda m: m.jax.jacrev(lambda x: 2.0 * x, allow_int=True)(3),
    "jacrev of int8 and float": lambda m: m.jax.jacrev(lambda x, y: x * y, (0, 1), allow_int=True)(
        np.arange(3, dtype=np.int8), 2.0
    ),
    "vjp": lambda m: vjp_of_int(m, m.np.array(3)),
    "jit of vjp": lambda m: m.jax.jit(lambda x: vjp_of_int(m, x))(m.np.arange(3)),
    "jvp": lambda m: m.jax.jvp(lambda x: 2 * x, (m.np.arange(3),), (ZERO,)),
    "jit of jvp": lambda m: m.jax.jit(lambda x, dx: m.jax.jvp(lambda x: (x, 2.0 * x), (x,), (dx,)))(
        m.np.arange(3), ZERO
    ),
    "linearize": lambda m: m.jax.linearize(lambda x, y: x * y, m.np.arange(3), 2.0)[1](ZERO, 1.0),
    "carry of scan": lambda m: m.lax.scan(lambda c, x: (c, x), ZERO, m.np.arange(2)),
    "operand of cond": lambda m: m.lax.cond(True, lambda z: (z, 1), lambda z: (z, 2), ZERO),
    "zeros": lambda m: [m.np.zeros(2, float0), m.np.ones((2, 1), float0), m.lax.full((2,), 0, float0)],
    "zeros_like": lambda m: [m.np.zeros_like(ZERO), m.np.zeros_like(m.np.ones(2), float0), m.lax.full_like(ZERO, 0)],
    "zeros_like of float0 with a dtype": lambda m: m.np.zeros_like(ZERO, np.float32),
    "zeros_like in jit": lambda m: m.jax.jit(m.np.zeros_like)(ZERO),
    "array": lambda m: [m.np.array(b"", float0), m.np.asarray(ZERO), m.np.array(ZERO, ndmin=2)],
    "device_put": lambda m: m.jax.device_put({"x": np.ones(2), "zero": ZERO}),
    "pmap": lambda m: m.jax.pmap(lambda z, x: (z, x + len(z)))(np.zeros((4, 2), float0), np.ones(4)),
    "pmap, size from float0": lambda m: m.jax.pmap(lambda z: 2.0)(ZERO),
    "pmap, replicated": lambda m: m.jax.pmap(lambda z, x: z, in_axes=(None, 0), out_axes=None)(ZERO, np.ones(4)),
    "pmap, result": lambda m: m.jax.pmap(lambda x: (np.zeros(2, float0), x), out_axes=(1, 0))(np.ones(4)),
    "shard_map": lambda m: region(m, lambda z, x: (z, x + len(z)), ("i", None))(np.zeros((4, 2), float0), np.ones(4)),
    "shard_map, replicated": lambda m: region(m, lambda z, x: (z, x), ())(ZERO, np.ones(4)),
    "jit of shard_map": lambda m: m.jax.jit(region(m, lambda z, x: (z, x), (None, "i")))(
        np.zeros((2, 4), float0), np.ones(4)
    ),
    "carry of while": lambda m: m.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0], c[1] + 1), (ZERO, 0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_jax(name):
    ours, our_tree = sw.tree.flatten(PROGRAMS[name](HERE))
    theirs, their_tree = jax.tree.flatten(PROGRAMS[name](THERE))
    assert str(our_tree) == str(their_tree)
    for mine, other in zip(ours, theirs, strict=True):
        assert (np.shape(mine), mine.dtype) == (np.shape(other), other.dtype)
        if mine.dtype != float0:
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other))


def test_the_shape_is_part_of_the_key_of_compiled_programs():
    sizes = sw.jit(lambda zero: zero.shape[0] * jnp.ones(()))
    assert [float(sizes(np.zeros((size,), float0))) for size in (3, 5, 3)] == [3.0, 5.0, 3.0]


def test_argument_names_skip_float0():
    with pytest.raises(TypeError, match=r"argument `y` of `f` .*is 'text' of type str"):

        @sw.jit
        def f(zero, y):
            return y

        f(ZERO, "text")


def test_out_shardings_apply_to_the_other_results(mesh):
    rows = sw.NamedSharding(mesh, sw.P("data"))
    zero, x = sw.jit(lambda x: (ZERO, x), out_shardings=rows)(np.arange(8))
    assert zero.dtype == float0
    assert x.sharding == rows

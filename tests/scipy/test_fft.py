"""Compare scipy.fft with scipy and JAX, also derivatives, vmap and sharded arrays."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy import fft
from shardwise.test_util import check_grads
from tests.agreement import Case, gradients_like, mesh_like_one_device, values_like_both, vmap_like_loop

try:
    import jax
    import jax.scipy.fft
except ImportError:  # one of the oracles
    jax = None

X = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
CASES = [
    *(Case(name, (X,), {"axis": 1}) for name in ("dct", "idct")),
    *(Case(name, (X,), {"axis": 0, "norm": "ortho"}) for name in ("dct", "idct")),
    *(
        Case(name, (X,), {"n": n, "axis": 1, "norm": norm})
        for name in ("dct", "idct")
        for n, norm in [(5, None), (11, "ortho")]
    ),
    *(Case(name, (X,), {"norm": "ortho"}) for name in ("dctn", "idctn")),
    *(Case(name, (X,), {"s": (6, 2), "axes": (1, 0)}) for name in ("dctn", "idctn")),
    *(Case(name, (X,), {"s": (9,)}) for name in ("dctn", "idctn")),
    *(Case(name, (np.arange(6, dtype=np.int32),)) for name in ("dct", "idct")),
]


def test_like_scipy_and_jax():
    values_like_both(fft, CASES, numpy=scipy.fft, theirs="scipy.fft")


@pytest.mark.slow
@pytest.mark.jax
def test_gradients_like_jax():
    pytest.importorskip("jax")
    gradients_like(fft, jax.scipy.fft, CASES, jax)


def test_vmap():
    vmap_like_loop(fft, CASES[:6])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("sharded_dim", ["first", "last"])
def test_sharded(mesh, sharded_dim):
    mesh_like_one_device(mesh, fft, CASES, sharded_dim)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    name=st.sampled_from(["dct", "idct"]),
    norm=st.sampled_from([None, "backward", "ortho"]),
    length=st.none() | st.integers(1, 9),
    is_complex=st.booleans(),
    data=st.data(),
)
def test_random_shapes_like_scipy(shape, name, norm, length, is_complex, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(sum(shape)).normal(size=(2, *shape)).astype(np.float32)
    x = (x[0] + 1j * x[1]).astype(np.complex64) if is_complex else x[0]
    actual = getattr(fft, name)(x, n=length, axis=axis, norm=norm)
    expected = getattr(scipy.fft, name)(x, n=length, axis=axis, norm=norm)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_inverses_and_derivatives():
    np.testing.assert_allclose(fft.idctn(fft.dctn(X)), X, atol=1e-5)
    check_grads(lambda x: fft.dct(x, norm="ortho"), (X[0],), 2, atol=0.02, rtol=0.02, eps=1e-2)
    assert fft.dct(jnp.ones(4, jnp.bfloat16)).dtype == np.float32


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fft.dct(X, type=3), NotImplementedError, "dct: only the transform of type 2 is supported, not type 3"),
        (lambda: fft.dct(X, norm="forward"), ValueError, "norm must be None, 'backward' or 'ortho', not 'forward'"),
        (lambda: fft.dct(X, axis=3), ValueError, "axis 3 does not exist"),
        (lambda: fft.dct(np.zeros((2, 0))), ValueError, "need one element or more"),
        (lambda: fft.dct(1.0), ValueError, "does not exist"),
        (lambda: fft.idct(X, n=0), ValueError, "need one element or more"),
        (lambda: fft.dctn(X, axes=(0, 0)), ValueError, "an axis repeats"),
        (lambda: fft.dctn(X, s=(2, 3), axes=(0,)), ValueError, "s has 2 sizes for 1 axes"),
        (lambda: fft.dct("a"), TypeError, "dct: needs an array"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_compiles_in_a_sharded_program(mesh):
    x = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    rows = sw.device_put(x, sw.NamedSharding(mesh, sw.P("data", None)))
    result = sw.jit(fft.dct)(rows)
    np.testing.assert_allclose(result, scipy.fft.dct(x), atol=1e-5)
    assert result.sharding.is_equivalent_to(rows.sharding, 2)  # rows are transformed where they are

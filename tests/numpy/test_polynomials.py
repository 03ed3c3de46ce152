"""Polynomials and windows, against numpy and JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from tests.agreement import (
    PARTS,
    Case,
    eagerly_like,
    gradients_like,
    mesh_like_one_device,
    values_like_both,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)


def f(*shape):
    return RNG.normal(size=shape).astype(np.float32)


P, Q, N = f(4), f(2), np.array([3, 0, -2, 1], np.int32)
CASES = [
    *(Case(name, (x, y)) for name in ("polyadd", "polysub") for x, y in ((P, Q), (N, N[:2]), (Q, N))),
    Case("polymul", (P, Q)),
    *(Case("polyder", (x, m)) for x in (P, N) for m in (0, 1, 3)),
    *(Case("polyint", (P, m)) for m in (0, 1, 2)),
    Case("polyint", (N, 2, np.array([5.0, 7.0], np.float32))),
    Case("polyint", (P, 3), {"k": 2}),
    Case("polyval", (P, f(2, 3))),
    Case("polyval", (N, N)),
    Case("polyval", (f(20), f(3) / 4), atol=1e-4),
    Case("polyval", (P[:0], Q)),
    *(Case("polyval", (p, x)) for p, x in ((f(4, 2), f()), (f(4, 1, 2), f(3, 1)))),
    Case("poly", (P,)),
    *(
        Case("vander", (x,), options)
        for x in (P, N)
        for options in ({}, {"N": 2}, {"N": 5, "increasing": True}, {"N": 0})
    ),
    Case("i0", (f(7) * 3,), rtol=1e-4),
    *(Case(name, (M,), atol=1e-6) for name in ("bartlett", "blackman", "hamming", "hanning") for M in (0, 1, 8)),
    *(Case("kaiser", (M, beta), rtol=1e-4) for M in (1, 6) for beta in (0, 2.5, np.array(14.0, np.float32))),
]
LIKE_JAX = [
    Case("polydiv", (P, Q), rtol=1e-3, atol=1e-4),
    Case("polydiv", (Q, P)),
    Case("polymul", (N, N)),
    Case("poly", (N,)),
    Case("poly", (np.array([1j, -1j, 2], np.complex64),), atol=1e-5),
    Case("poly", (P[:0],)),
    Case("i0", (2,)),
    Case("polyval", (f(20, 2), np.float32(0.5)), atol=1e-4),
    Case("polyfit", (f(9), f(9), 2), rtol=1e-3, atol=1e-3),
]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part], LIKE_JAX[part])


@pytest.mark.jax
def test_eager_trim_leading_zeros_like_jax():
    jax = pytest.importorskip("jax")
    coefficients = np.array([0.0, 1, 5], np.float32)
    eagerly_like(jnp, jax.numpy, [Case("polymul", (coefficients, Q), {"trim_leading_zeros": True})])


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_gradients_like_jax(part):
    jax = pytest.importorskip("jax")
    names = ("polyadd", "polymul", "polyint", "polyval", "poly", "i0")
    smooth = [case for case in CASES if case.name in names and case.args[0].dtype == np.float32]
    gradients_like(jnp, jax.numpy, smooth[part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap_like_loop(part):
    vmap_like_loop(jnp, CASES[part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_like_one_device(mesh, which, part):
    cases = []
    for size in (16, 13):
        p, q = f(size), f(5)
        cases += [Case(name, (p, q)) for name in ("polyadd", "polysub", "polymul")]
        cases += [
            Case("polyder", (p,)),
            Case("polyint", (p,)),
            Case("vander", (p, 4)),
            Case("polyval", (q, f(size, 3))),
        ]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def test_sharded_polyval_needs_no_communication(mesh):
    x = sw.device_put(f(64, 8), sw.sharding.NamedSharding(mesh, sw.sharding.PartitionSpec("data", "model")))
    assert (
        sw.explain(lambda x: (jnp.polyval(P, x), jnp.polyval(np.ones(30, np.float32), x), jnp.i0(x)))(x).counts() == {}
    )


def test_polydiv_like_numpy():
    for u, v in ((P, Q), (N, N[:2]), (P, P)):
        quotient, remainder = jnp.polydiv(u, v)
        expected = np.polydiv(u, v)
        np.testing.assert_allclose(quotient, expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(remainder[-expected[1].size :], expected[1], rtol=1e-2, atol=1e-3)
    quotient, remainder = jnp.polydiv(np.array([1.0, 5.0, 6.0]), np.array([1.0, 2.0]), trim_leading_zeros=True)
    assert (quotient.tolist(), remainder.shape) == ([1.0, 3.0], (0,))


@pytest.mark.slow
def test_roots_like_numpy():
    for coefficients in ([1.0, -3.0, 2.0], [0.0, 0.0, 2.0, 1.0, 1.0, 0.0], f(5)):
        p = np.asarray(coefficients, np.float32)
        expected = np.sort_complex(np.roots(p))
        np.testing.assert_allclose(np.sort_complex(np.asarray(jnp.roots(p))), expected, rtol=1e-3, atol=1e-3)
        padded = np.asarray(sw.jit(lambda p: jnp.roots(p, strip_zeros=False))(p))
        assert padded.shape == (p.size - 1,)
        np.testing.assert_allclose(np.sort_complex(padded[~np.isnan(padded)]), expected, rtol=1e-3, atol=1e-3)
    assert jnp.roots(np.zeros(3, np.float32)).shape == (0,)
    np.testing.assert_allclose(jnp.poly(np.diag([1.0, 2.0]).astype(np.float32)), [1, -3, 2], atol=1e-5)


@pytest.mark.slow
def test_polyfit_like_numpy():
    x, y = np.linspace(-1, 1, 12).astype(np.float32), f(12, 2)
    w = np.linspace(1, 2, 12).astype(np.float32)
    for options in ({}, {"w": w}):
        expected = np.polyfit(x, y, 3, **options)
        np.testing.assert_allclose(jnp.polyfit(x, y, 3, **options), expected, rtol=1e-3, atol=1e-4)
    for cov in (True, "unscaled"):
        ours, theirs = (numpy.polyfit(x, y[:, 0], 2, cov=cov) for numpy in (jnp, np))
        for our_part, their_part in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our_part, their_part, rtol=1e-3, atol=1e-4)
    ours, theirs = jnp.polyfit(x, y, 2, full=True), np.polyfit(x, y, 2, full=True)
    assert int(ours[2]) == theirs[2]
    for index in (0, 1, 3):
        np.testing.assert_allclose(ours[index], theirs[index], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.polyadd(f(2, 2), P), ValueError, r"polyadd: coefficients must have rank 1, not f32\[2,2\]"),
        (lambda: jnp.polyder(P, -1), ValueError, "polyder: the order m cannot be negative: -1"),
        (lambda: jnp.polyint(P, 2, k=np.ones(3)), ValueError, "polyint: k must be one constant or 2 constants"),
        (lambda: jnp.polydiv(P, P[:0]), ValueError, "polydiv: the divisor has no coefficients"),
        (lambda: jnp.vander(f(2, 2)), ValueError, "vander: x must have rank 1"),
        (lambda: jnp.vander(P, -1), ValueError, "vander: N cannot be negative: -1"),
        (lambda: jnp.poly(f(2, 3)), ValueError, "poly: seq_of_zeros must have rank 1 or be a square matrix"),
        (lambda: jnp.roots(f(2, 3)), ValueError, "roots: coefficients must have rank 1"),
        (lambda: sw.jit(jnp.roots)(P), ConcretizationTypeError, "roots: .* pass `strip_zeros=False`"),
        (
            lambda: sw.jit(lambda p: jnp.polymul(p, p, trim_leading_zeros=True))(P),
            ConcretizationTypeError,
            "polymul: .*traced",
        ),
        (lambda: jnp.polyfit(P, P, -1), ValueError, "polyfit: the degree cannot be negative: -1"),
        (lambda: jnp.polyfit(P, Q, 1), TypeError, "polyfit: y must have one value or one row per element of x"),
        (lambda: jnp.polyfit(P, P, 1, w=Q), TypeError, "polyfit: w must have one weight per element of x"),
        (
            lambda: jnp.polyfit(P, P, 3, cov=True),
            ValueError,
            "polyfit: 4 points are too few to scale the covariance of 4 coefficients",
        ),
        (lambda: jnp.hamming(1.5), TypeError, "hamming: the number of samples M must be a static integer"),
        (lambda: jnp.i0(1j), ValueError, "i0: needs real numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

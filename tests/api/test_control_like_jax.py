"""Compare control flow with JAX: values, dtypes, weak types and derivatives."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
from shardwise import tree

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax)
THERE = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)
RNG = np.random.default_rng(7)
X = RNG.uniform(0.5, 1.5, 4).astype(np.float32)
V = RNG.uniform(-1, 1, 4).astype(np.float32)
W = RNG.uniform(-0.5, 0.5, (4, 4)).astype(np.float32)
XS = RNG.uniform(-1, 1, (5, 4)).astype(np.float32)
COUNTS = np.arange(6, dtype=np.int32)


def often(names, every):
    """All names; only every n-th runs with the fast tests."""
    return [pytest.param(name, marks=pytest.mark.slow if index % every else ()) for index, name in enumerate(names)]


def close(ours, theirs, rtol=1e-5, atol=1e-6):
    mine, other = tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(mine) == len(other)
    for a, b in zip(mine, other, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol, atol)


# Values, dtypes and weak types of the results.
VALUES = {
    "cond": lambda m: [m.lax.cond(p, lambda x: x + 1, lambda x: x * 2, m.np.arange(3)) for p in (True, False)],
    "cond of a number": lambda m: [m.lax.cond(p, lambda: 1.5, lambda: 2.5) for p in (1, 0, 2.5, m.np.array(False))],
    "cond weak in false_fun": lambda m: m.lax.cond(True, lambda x: x, lambda x: 1.0, m.np.float32(3)),
    "switch weak in the first branch": lambda m: m.lax.switch(1, [lambda x: 1.0, lambda x: x], m.np.float32(3)),
    "cond weak in one branch": lambda m: m.lax.cond(True, lambda x: 1.0, lambda x: x, m.np.float32(3)),
    "cond weak in both": lambda m: m.lax.cond(False, lambda x: x * 2, lambda x: 1, 3),
    "cond of trees": lambda m: m.lax.cond(
        True,
        lambda t: {"a": t["b"], "b": (t["a"], None)},
        lambda t: {"a": t["b"] * 2, "b": (t["a"], None)},
        {"a": m.np.ones(2), "b": 2},
    ),
    "cond operand=": lambda m: m.lax.cond(True, lambda x: x + 1, lambda x: x, operand=m.np.ones(2)),
    "cond operand=None": lambda m: m.lax.cond(True, lambda _: m.np.ones(2), lambda _: m.np.zeros(2), operand=None),
    "cond of no results": lambda m: m.lax.cond(True, lambda x: None, lambda x: None, 1.0),
    "switch": lambda m: [
        m.lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x - 1], m.np.arange(3.0)) for i in (-7, 0, 1, 2, 9)
    ],
    "switch of one": lambda m: m.np.asarray(m.lax.switch(5, [lambda x: x + 1], m.np.int32(2))),
    "switch by u8": lambda m: m.lax.switch(m.np.uint8(200), [lambda: 1, lambda: 2]),
    "switch operand=None": lambda m: m.lax.switch(1, [lambda _: 1, lambda _: 2], operand=None),
    "while": lambda m: m.lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 3, c[1] * 2.0), (0, 1.0)),
    "while never": lambda m: m.lax.while_loop(lambda c: c < 0, lambda c: c - 1, 3),
    "while becomes strong": lambda m: m.lax.while_loop(lambda c: c < 5, lambda c: c + m.np.float32(1), 0.0),
    "while of booleans": lambda m: m.lax.while_loop(
        lambda c: c["go"], lambda c: {"go": c["n"] < 3, "n": c["n"] + 1}, {"go": True, "n": 0}
    ),
    "while of captures": lambda m: m.lax.while_loop(
        lambda c: c.sum() < m.np.asarray(XS).sum() + 10, lambda c: c + m.np.asarray(X), m.np.zeros(4)
    ),
    "while with a captured bound": lambda m: m.jax.jit(
        lambda n, s: m.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + s, c[1] + n), (0, m.np.float32(1)))
    )(7, 2),
    "fori": lambda m: m.lax.fori_loop(0, 5, lambda i, c: c + i, 0),
    "fori of floats": lambda m: m.lax.fori_loop(2, 5, lambda i, c: c * i, 1.0),
    "fori that returns its index": lambda m: m.lax.fori_loop(0, 3, lambda i, c: (i, c[0] + i), (0, 0)),
    "fori backwards": lambda m: m.lax.fori_loop(5, 2, lambda i, c: c + i, 7),
    "fori from below": lambda m: m.lax.fori_loop(-3, 2, lambda i, c: c + i, m.np.zeros(2, np.int32)),
    "fori of arrays": lambda m: m.lax.fori_loop(m.np.int32(1), m.np.int32(4), lambda i, c: c + i * 1.0, m.np.zeros(2)),
    "fori of traced bounds": lambda m: m.jax.jit(lambda a, b: m.lax.fori_loop(a, b, lambda i, c: c + i, 0))(2, 6),
    "fori of one traced bound": lambda m: m.jax.jit(lambda b: m.lax.fori_loop(0, b, lambda i, c: c + i, 0))(6),
    "fori of u8": lambda m: m.jax.jit(lambda b: m.lax.fori_loop(b * 0, b, lambda i, c: (c[0] + i, c[1] + 1), (b, 0)))(
        m.np.uint8(6)
    ),
    "fori takes the carry's type": lambda m: m.lax.fori_loop(0, 3, lambda i, c: c + i, m.np.uint8(250)),
    "fori of numpy bounds": lambda m: m.lax.fori_loop(np.int32(0), np.int32(3), lambda i, c: c + i, 1),
    "fori of bounds of u8": lambda m: m.lax.fori_loop(np.uint8(1), np.uint8(3), lambda i, c: c + i, 1),
    "fori in f16": lambda m: m.lax.fori_loop(0, 3, lambda i, c: c + np.float16(0.5), 0.0),
    "fori unrolled": lambda m: [m.lax.fori_loop(0, 5, lambda i, c: c + i, 0, unroll=u) for u in (1, 2, 5, 9, True)],
    "scan": lambda m: m.lax.scan(lambda c, x: (c + x, c * 2), 0, COUNTS),
    "scan becomes strong": lambda m: m.lax.scan(lambda c, x: (c + x, c), 0.0, X),
    "scan in f16": lambda m: m.lax.scan(lambda c, x: (c + x, c), 0.0, X.astype(np.float16)),
    "scan from an integer": lambda m: m.lax.scan(lambda c, x: (c + x, c), 0, X),
    "scan from an integer to a number": lambda m: m.lax.scan(lambda c, x: (c + 0.5, None), 0, X),
    "while in u8": lambda m: m.lax.while_loop(lambda c: c < 3, lambda c: c.astype(np.uint8) + 1, 0),
    "scan stays weak": lambda m: m.lax.scan(lambda c, _: (c * 2, c), 1.0, None, 4),
    "scan strong stays strong": lambda m: m.lax.scan(lambda c, _: (c * 2, 1), m.np.float32(1), length=3),
    "scan of trees": lambda m: m.lax.scan(
        lambda c, x: ({"a": c["b"], "b": c["a"] + x[0]}, [c["a"], x[1]["q"]]),
        {"a": m.np.zeros(4), "b": m.np.ones(4)},
        (XS, {"q": COUNTS[:5]}),
    ),
    "scan of nothing": lambda m: m.lax.scan(lambda c, x: (c + x.sum(), c), 0.0, np.zeros((0, 3), np.float32)),
    "scan length 0": lambda m: m.lax.scan(lambda c, _: (c + 1, (c, {"y": c * 2.0})), 5, length=0),
    "scan of no carry": lambda m: m.lax.scan(lambda c, x: (None, x * 2), None, COUNTS),
    "scan of no ys": lambda m: m.lax.scan(lambda c, x: (c + x, None), 0, COUNTS),
    "scan backwards": lambda m: m.lax.scan(lambda c, x: (c * 2 + x, c - x), 1, COUNTS, reverse=True),
    "scan unrolled": lambda m: [
        m.lax.scan(lambda c, x: (c * 2 + x, c - x), 1, COUNTS, reverse=r, unroll=u)
        for u in (1, 2, 4, 6, 8, True, False)
        for r in (False, True)
    ],
    "scan with length too": lambda m: m.lax.scan(lambda c, x: (c + x, x), 0, COUNTS, length=6),
    "scan of booleans": lambda m: m.lax.scan(lambda c, x: (c != x, c == x), True, np.array([True, False, False])),
    "scan of u8": lambda m: m.lax.scan(lambda c, x: (c * x, c), m.np.uint8(3), np.full(7, 3, np.uint8)),
    "scan of bf16": lambda m: m.lax.scan(lambda c, x: (c + x, c * x), m.np.bfloat16(1), XS[:, 0].astype("bfloat16")),
    "scan of complex": lambda m: m.lax.scan(lambda c, x: (c * x, c + x), 1 + 1j, (XS[:, 0] + 2j).astype("complex64")),
    "scan of a Python list": lambda m: m.lax.scan(lambda c, x: (c + x[0], x[1]), 0.0, [X, X * 2]),
    "map": lambda m: m.lax.map(lambda x: (x * 2, x.sum()), XS),
    "map in batches": lambda m: [m.lax.map(lambda x: x * 2 + x.sum(), XS, batch_size=b) for b in (1, 2, 4, 5, 7)],
    "map of trees in batches": lambda m: m.lax.map(
        lambda t: {"s": t["x"].sum() + t["n"]}, {"x": XS, "n": COUNTS[:5]}, batch_size=3
    ),
    "map of nothing": lambda m: m.lax.map(lambda x: x * 2, np.zeros((0, 3), np.float32)),
    "loops in loops in conds": lambda m: m.lax.cond(
        m.np.asarray(X).sum() > 0,
        lambda x: m.lax.fori_loop(
            0, 3, lambda i, c: m.lax.scan(lambda d, y: (d + y * i, d), c, x)[0] + i, m.np.float32(0)
        ),
        lambda x: m.lax.while_loop(lambda c: c < 3, lambda c: c + x.sum(), m.np.float32(0)),
        X,
    ),
    "conds in loops": lambda m: m.lax.scan(
        lambda c, x: m.lax.cond(x % 2 == 0, lambda: (c + x, 1.0), lambda: (c - x, m.lax.switch(x, [lambda: 2.0] * 2))),
        0,
        COUNTS,
    ),
}


# A carry that becomes strong is strong at every step here; JAX stacks it with its first type.
STACKED_WEAK_THERE = {"scan", "scan becomes strong", "scan of nothing"}


def same(name, ours, theirs):
    close(ours, theirs)
    if name in STACKED_WEAK_THERE:
        ours, theirs = ours[0], theirs[0]
    for a, b in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if a.dtype != np.bool_:  # JAX has weak booleans, which promote like others
            assert a.weak_type == b.weak_type, f"{a.type} is not {b.aval}"


@pytest.mark.parametrize("name", often(VALUES, 8))
def test_values(name):
    with np.errstate(all="ignore"):
        same(name, VALUES[name](HERE), VALUES[name](THERE))


@pytest.mark.parametrize("name", often(VALUES, 3))
def test_values_under_jit(name):
    same(name, sw.jit(lambda: VALUES[name](HERE))(), jax.jit(lambda: VALUES[name](THERE))())


def power(m, x):
    """A smooth function whose value is its residual."""
    return m.np.exp(0.3 * x)


# From a vector of 4 to a tree of smooth values: tested with every kind of derivative and vmap.
SMOOTH = {
    "cond true": lambda m, x: m.lax.cond(x.sum() > 0, lambda y: power(m, y), lambda y: y * y, x),
    "cond false": lambda m, x: m.lax.cond(x.sum() < 0, lambda y: power(m, y), lambda y: y * y, x),
    "cond by a number": lambda m, x: m.lax.cond(True, lambda y: power(m, y), lambda y: y * y, x),
    "cond of captures": lambda m, x: m.lax.cond(x.sum() > 0, lambda: power(m, x) * W.sum(), lambda: x * W[0]),
    "cond with a still branch": lambda m, x: m.lax.cond(
        x.sum() < 0, lambda y: (y * y, y), lambda y: (m.np.ones(4), y), x
    ),
    "cond of integers too": lambda m, x: m.lax.cond(
        x.sum() > 0, lambda y, n: (y * n, n + 1), lambda y, n: (y, n), x, m.np.int32(3)
    )[0],
    "switch": lambda m, x: [
        m.lax.switch(i, [lambda y: y, lambda y: power(m, y) * y, lambda y: y.sum() * y], x) for i in range(3)
    ],
    "cond in cond": lambda m, x: m.lax.cond(
        x.sum() > 0,
        lambda y: m.lax.cond(y[0] > 0.1, lambda z: power(m, z), lambda z: z, y) * y,
        lambda y: y,
        x,
    ),
    "scan carry": lambda m, x: m.lax.scan(lambda c, _: (power(m, c) * x, None), x, length=3)[0],
    "scan carry and ys": lambda m, x: m.lax.scan(lambda c, y: (c * power(m, y), c * y), x, m.np.asarray(XS)),
    "scan over x": lambda m, x: m.lax.scan(lambda c, y: (c * y, power(m, c)), m.np.float32(2), x),
    "scan over x, weak": lambda m, x: m.lax.scan(lambda c, y: (c * y, power(m, c)), 2.0, x),
    "scan backwards": lambda m, x: m.lax.scan(lambda c, y: (c * power(m, y), c * y), x.sum(), x * x, reverse=True),
    "scan unrolled": lambda m, x: m.lax.scan(lambda c, y: (c * power(m, y), c * y), x.sum(), x, unroll=3),
    "scan with a matrix": lambda m, x: m.lax.scan(
        lambda c, w: (power(m, w @ c), (w * c).sum()), x, m.np.stack([W, W.T, W * 2])
    ),
    "scan of consts": lambda m, x: m.lax.scan(lambda c, y: (c + power(m, x).sum() * y, x * c), 0.0, XS[:, 0]),
    "scan of a tree with a counter": lambda m, x: m.lax.scan(
        lambda c, y: ({"n": c["n"] + 1, "c": c["c"] * y * c["n"]}, c["n"] * y), {"n": 1, "c": x}, m.np.asarray(XS[:3])
    )[0]["c"],
    "scan that swaps": lambda m, x: m.lax.scan(lambda c, _: ((c[1], c[0] * x), c[1]), (x, 2 * x), length=3),
    "scan whose carry starts still": lambda m, x: m.lax.scan(lambda c, y: (c + y * y, c), m.np.float32(0), x),
    "scan of what does not change": lambda m, x: m.lax.scan(
        lambda c, y: (c * power(m, x), (power(m, W @ x), y)), x, m.np.asarray(XS)
    ),
    "scan that forgets": lambda m, x: m.lax.scan(lambda c, y: (m.np.ones(4), c * y), x, x),
    "scan of length 0": lambda m, x: m.lax.scan(lambda c, y: (c * y, c), x, m.np.zeros((0, 4))),
    "scan that hands on": lambda m, x: m.lax.scan(lambda c, y: (c, y), x, m.np.asarray(XS) * x),
    "scan in scan": lambda m, x: m.lax.scan(
        lambda c, y: m.lax.scan(lambda d, z: (d * power(m, z), d * y), c, x), m.np.float32(1), x
    ),
    "cond in scan": lambda m, x: m.lax.scan(
        lambda c, y: m.lax.cond(y[0] > 0, lambda: (c * y, c), lambda: (power(m, c), y)), x, m.np.asarray(XS)
    ),
    "scan in cond": lambda m, x: m.lax.cond(
        x.sum() > 0, lambda: m.lax.scan(lambda c, y: (c * y, c), x.sum(), x), lambda: (x.sum(), x)
    ),
    "fori": lambda m, x: m.lax.fori_loop(0, 3, lambda i, c: power(m, c) * i + x, x),
    "fori of trees": lambda m, x: m.lax.fori_loop(1, 4, lambda i, c: (c[1], c[0] * c[1] / i), (x, x * x)),
    "map": lambda m, x: m.lax.map(lambda y: power(m, y) * x, x),
    "map in batches": lambda m, x: m.lax.map(lambda y: power(m, y) * x, x, batch_size=3),
    "remat in scan": lambda m, x: m.lax.scan(
        lambda c, y: (m.jax.checkpoint(lambda d: power(m, d) * y)(c), c), x, m.np.asarray(XS)
    ),
    "scan in remat": lambda m, x: m.jax.checkpoint(
        lambda y: m.lax.scan(lambda c, z: (power(m, c) * z, c), y, m.np.asarray(XS))
    )(x),
    "cond in remat in scan": lambda m, x: m.lax.scan(
        lambda c, y: (m.jax.checkpoint(lambda d: m.lax.cond(y.sum() > 0, lambda: power(m, d), lambda: d * y))(c), c),
        x,
        m.np.asarray(XS),
    ),
    "jit in scan": lambda m, x: m.lax.scan(
        lambda c, y: (m.jax.jit(lambda d: power(m, d) * y)(c), c), x, m.np.asarray(XS)
    ),
    "while": lambda m, x: m.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, power(m, c[1]) * x), (0, x * x))[1],
    "while of x": lambda m, x: m.lax.while_loop(lambda c: c.sum() < 10, lambda c: power(m, c) * (1 + x), x),
    "while in scan": lambda m, x: m.lax.scan(
        lambda c, y: (m.lax.while_loop(lambda d: d.sum() < 6, lambda d: d + d * power(m, x), c) * y, c),
        x,
        m.np.asarray(XS),
    ),
}
ONLY_FORWARD = {"while", "while of x", "while in scan"}


def total(m, f):
    def loss(x):
        leaves = m.jax.tree.leaves(f(m, x))
        return sum((power(m, leaf) * leaf).sum() for leaf in leaves)

    return loss


def forward_derivatives(m, f):
    def found(x, v):
        loss = total(m, f)
        value, tangent = m.jax.jvp(lambda y: f(m, y), (x,), (v,))
        again, push = m.jax.linearize(lambda y: f(m, y), x)
        return {
            "jvp": (value, tangent),
            "linearize": (again, push(v)),
            "jacfwd": m.jax.jacfwd(loss)(x),
            "jvp of jvp": m.jax.jvp(lambda y: m.jax.jvp(loss, (y,), (v,))[1], (x,), (v,)),
        }

    return found


def reverse_derivatives(m, f):
    def found(x, v):
        loss = total(m, f)
        value, pull = m.jax.vjp(lambda y: f(m, y), x)
        return {
            "vjp": pull(value),
            "grad": m.jax.grad(loss)(x),
            "hessian": m.jax.hessian(loss)(x),
            "jacrev": m.jax.jacrev(lambda y: f(m, y))(x),
            "grad of grad": m.jax.grad(lambda y: (m.jax.grad(loss)(y) * v).sum())(x),
        }

    return found


@pytest.mark.parametrize("name", often(SMOOTH, 9))
def test_forward_mode(name):
    f = SMOOTH[name]
    ours = sw.jit(forward_derivatives(HERE, f))(X, V)
    close(ours, jax.jit(forward_derivatives(THERE, f))(X, V), 1e-3, 1e-3)


@pytest.mark.parametrize("name", often([name for name in SMOOTH if name not in ONLY_FORWARD], 8))
def test_reverse_mode(name):
    f = SMOOTH[name]
    ours = sw.jit(reverse_derivatives(HERE, f))(X, V)
    close(ours, jax.jit(reverse_derivatives(THERE, f))(X, V), 1e-3, 1e-3)


# Functions of (x, w, n): a vector of 4, a matrix and an integer scalar, each of which may be mapped or not.
MAPPED = {
    "cond by x": lambda m, x, w, n: m.lax.cond(x.sum() > 0, lambda: power(m, x), lambda: x * x),
    "cond by n": lambda m, x, w, n: m.lax.cond(n > 1, lambda y: w @ y, lambda y: y * n, x),
    "cond by a constant": lambda m, x, w, n: m.lax.cond(True, lambda: (x, w[0]), lambda: (w[0], w[1])),
    "switch": lambda m, x, w, n: m.lax.switch(n, [lambda: x, lambda: w[0], lambda: x * n]),
    "scan": lambda m, x, w, n: m.lax.scan(lambda c, row: (c * row + n, (row, c.sum())), x, w),
    "scan of a still carry": lambda m, x, w, n: m.lax.scan(lambda c, y: (c + 1, y * c), n, x),
    "scan of w": lambda m, x, w, n: m.lax.scan(lambda c, y: (w @ c, y), x, m.np.arange(3.0), reverse=True, unroll=2),
    "while by x": lambda m, x, w, n: m.lax.while_loop(lambda c: c.sum() < 8, lambda c: c * 2 + w[0] * 0 + 1, x),
    "while by n": lambda m, x, w, n: m.lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * w[0] + x), (0, x)
    ),
    "while by a constant": lambda m, x, w, n: m.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x, c[2] + 2), (0, w[0], n)
    ),
    "fori to n": lambda m, x, w, n: m.lax.fori_loop(0, n, lambda i, c: c * 2 + x * i, w[0]),
    "fori": lambda m, x, w, n: m.lax.fori_loop(0, 3, lambda i, c: (c[0] + n, c[1] * x + i), (n, x)),
    "map": lambda m, x, w, n: m.lax.map(lambda y: y * x + n, w, batch_size=3),
    "cond in while": lambda m, x, w, n: m.lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, m.lax.cond(c[0] % 2 == 0, lambda: c[1] + x, lambda: c[1] * 2)), (0, x)
    ),
    "while in scan in cond": lambda m, x, w, n: m.lax.cond(
        n > 1,
        lambda: m.lax.scan(
            lambda c, row: (m.lax.while_loop(lambda d: d.sum() < 4, lambda d: d + 1 + row * row, c), row), x, w
        )[0],
        lambda: x,
    ),
}
WAYS = [
    (axes, out)
    for axes in ((0, None, None), (None, 1, None), (None, None, 0), (1, 0, None), (0, 2, 0))
    for out in (0, -1)
    if out == 0 or axes in ((0, 2, 0), (1, 0, None))
]
BATCHES = (RNG.uniform(-1, 1, (3, 4)), RNG.uniform(-1, 1, (3, 4, 4)), [0, 2, 3])


def batched(axes):
    """The arguments, stacked along the mapped axes."""
    kinds = (np.float32, np.float32, np.int32)
    return [
        np.asarray(batch[0] if axis is None else np.stack(batch, axis), kind)
        for batch, axis, kind in zip(BATCHES, axes, kinds, strict=True)
    ]


@pytest.mark.parametrize("name", often(MAPPED, 4))
def test_vmap(name):
    def mapped(m):
        return [m.jax.vmap(lambda x, w, n: MAPPED[name](m, x, w, n), axes, out)(*batched(axes)) for axes, out in WAYS]

    close(sw.jit(lambda: mapped(HERE))(), jax.jit(lambda: mapped(THERE))(), 1e-4, 1e-4)


@pytest.mark.parametrize("name", often([n for n in MAPPED if "while" not in n and n != "fori to n"], 5))
def test_vmap_of_grad_and_grad_of_vmap(name):
    def derivatives(m):
        def loss(x, w, n):
            leaves = m.jax.tree.leaves(MAPPED[name](m, x, w, n))
            return sum((leaf * leaf).sum() * 1.0 for leaf in leaves if leaf.dtype == np.float32)

        def both(axes):
            args = batched(axes)
            each = m.jax.vmap(m.jax.grad(loss, (0, 1)), axes)(*args)
            whole = m.jax.grad(lambda x, w: m.jax.vmap(loss, axes)(x, w, args[2]).sum(), (0, 1))(*args[:2])
            return each, whole

        return [both(axes) for axes in ((0, None, None), (None, 1, 0))]

    close(sw.jit(lambda: derivatives(HERE))(), jax.jit(lambda: derivatives(THERE))(), 1e-4, 1e-4)

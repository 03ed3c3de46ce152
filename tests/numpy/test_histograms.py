"""bincount, digitize and histograms, against numpy and JAX; sharded, they send only counts."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import (
    PARTS,
    Case,
    eagerly_like,
    mesh_like_one_device,
    values_like_both,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 7)).astype(np.float32)
N = RNG.integers(0, 9, 20).astype(np.int32)
W = RNG.random(20).astype(np.float32)
EDGES = np.array([-2.0, -0.5, 0.0, 0.1, 2.0], np.float32)
POINTS = RNG.normal(size=(20, 3)).astype(np.float32)
CASES = [
    *(
        Case("digitize", (X, edges), {"right": right})
        for edges in (EDGES, EDGES[::-1].copy())
        for right in (False, True)
    ),
    *(Case("digitize", (EDGES, edges), {"right": right}) for edges in (EDGES, EDGES[::-1].copy()) for right in (0, 1)),
    Case("digitize", (np.array([np.nan, np.inf, -np.inf], np.float32), EDGES)),
    *(Case("histogram", (X,), {"bins": bins}) for bins in (1, 5, EDGES)),
    Case("histogram", (X,), {"bins": 4, "range": (-1, 1)}),
    Case("histogram", (X,), {"bins": 4, "weights": np.abs(X)}),
    Case("histogram", (X, EDGES), {"density": True}),
    Case("histogram", (np.ones(3, np.float32), 3)),
    Case("histogram_bin_edges", (X, 6)),
    Case("histogram_bin_edges", (X, 3), {"range": (2, 2)}),
    Case("histogram2d", (POINTS[:, 0].copy(), POINTS[:, 1].copy()), {"bins": 3}),
    Case("histogram2d", (POINTS[:, 0].copy(), POINTS[:, 1].copy()), {"bins": [3, EDGES], "weights": W}),
    Case("histogram2d", (POINTS[:, 0].copy(), POINTS[:, 1].copy(), EDGES), {"density": True}),
    Case("histogramdd", (POINTS,), {"bins": 2}),
    Case("histogramdd", (POINTS, (2, EDGES, 3)), {"range": [(-1, 1), None, (-2, 2)], "density": True}),
]
LIKE_JAX = [
    Case("bincount", (N,), {"length": 9}),
    Case("bincount", (N - 2,), {"length": 4}),
    Case("bincount", (N, W), {"length": 12}),
    Case("bincount", (N > 3, N), {"length": 2}),
    Case("digitize", (N, np.array([3, 5], np.int32))),
    Case("digitize", (X, np.zeros(0, np.float32))),
    Case("histogram", (N,), {"bins": 3, "weights": N}),
    Case("histogram", (N > 3, 2)),
    Case("histogram", (X.astype(np.float16), 3), atol=2e-2),
]
EAGER = [Case("bincount", (N,)), Case("bincount", (N, W), {"minlength": 15}), Case("bincount", (N[:0],))]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part], LIKE_JAX[part])
    for case in EAGER:
        expected = np.bincount(*case.args, **case.keywords)
        np.testing.assert_allclose(jnp.bincount(*case.args, **case.keywords), expected, 1e-5)


@pytest.mark.jax
def test_eager_bincount_like_jax():
    jax = pytest.importorskip("jax")
    eagerly_like(jnp, jax.numpy, EAGER)


@pytest.mark.table(default=1)
@PARTS
def test_vmap_like_loop(part):
    vmap_like_loop(jnp, [*CASES[::2], *LIKE_JAX[:4]][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_like_one_device(mesh, which, part):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x = RNG.normal(size=(rows, columns)).astype(np.float32)
        n = RNG.integers(0, 9, rows).astype(np.int32)
        cases += [Case("histogram", (x, 5)), Case("histogram", (x, EDGES)), Case("digitize", (x, EDGES))]
        cases += [Case("bincount", (n,), {"length": 9}), Case("histogramdd", (x[:, :2].copy(), (2, 3)))]
    mesh_like_one_device(mesh, jnp, cases[part], which)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("rows", [4096, 4093], ids=["even", "uneven"])
def test_sharded_counts_need_only_an_all_reduce(mesh, rows):
    x = sw.device_put(np.ones((rows, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    n = sw.device_put(np.ones(rows, np.int32), NamedSharding(mesh, P(("data", "model"))))
    for call, operand in (
        (lambda x: jnp.histogram(x, EDGES), x),
        (lambda x: jnp.histogram(x, 16), x),
        (lambda n: jnp.bincount(n, length=16), n),
        (lambda n: sw.ops.segment_sum(n, n, 16), n),
        (lambda n: sw.ops.segment_max(n, n, 16), n),
        (lambda n: jnp.histogramdd(n[:, None], 16), n),
    ):
        plan = sw.explain(call)(operand)
        assert set(plan.counts()) == {"all_reduce"}
        assert plan.wire_bytes <= 4 * 16 * 4 + 64
    assert sw.explain(lambda x: jnp.digitize(x, EDGES))(x).counts() == {}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.bincount(W), TypeError, r"bincount: x must hold integers, not f32\[20\]"),
        (lambda: jnp.bincount(N[None]), ValueError, r"bincount: x must have rank 1, not i32\[1,20\]"),
        (
            lambda: jnp.bincount(N, W[:3]),
            ValueError,
            r"bincount: the shape of weights f32\[3\] differs from that of x i32\[20\]",
        ),
        (
            lambda: sw.jit(jnp.bincount)(N),
            ConcretizationTypeError,
            r"bincount: i32\[20\] is traced, so its largest element and the shape of the result are unknown",
        ),
        (lambda: jnp.digitize(X, X), ValueError, "digitize: bins must be edges of rank 1"),
        (
            lambda: jnp.histogram(X, "auto"),
            NotImplementedError,
            "histogram: rules for the number of bins, such as 'auto', are not supported",
        ),
        (lambda: jnp.histogram(X, X), ValueError, "histogram: bins must be an integer or edges of rank 1"),
        (lambda: jnp.histogram(X, 0), ValueError, "histogram: the number of bins must be at least 1, not 0"),
        (
            lambda: jnp.histogram(X[:0]),
            ValueError,
            r"histogram: f32\[0,7\] has no elements, so it has no minimum and maximum",
        ),
        (lambda: jnp.histogram(X, weights=W), ValueError, "histogram: the shape of weights .* differs"),
        (lambda: jnp.histogram2d(W, W[:3]), ValueError, "histogram2d: x and y must have rank 1 and equal sizes"),
        (lambda: jnp.histogramdd(W), ValueError, "histogramdd: sample must have rank 2, with one point per row"),
        (
            lambda: jnp.histogramdd(POINTS, (2, 3)),
            ValueError,
            "histogramdd: bins and range must have 3 entries, one per column of .*, not 2",
        ),
        (
            lambda: jnp.histogramdd(POINTS, weights=W[:2]),
            ValueError,
            "histogramdd: weights .* must hold one weight per row",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

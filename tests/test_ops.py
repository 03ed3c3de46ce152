"""Compare segment reductions with numpy and JAX, on one device and on meshes."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import ops
from shardwise.errors import ConcretizationTypeError
from tests.agreement import Case, eagerly_like, gradients_like, mesh_like_one_device, values_like, vmap_like_loop

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
N = RNG.integers(-5, 9, 6).astype(np.int32)
IDS = np.array([0, 2, 2, -1, 7, 0], np.int32)
IDS_2D = np.array([[0, 1, 1], [3, 0, -2]], np.int32)
NAMES = ["segment_sum", "segment_prod", "segment_max", "segment_min"]
CASES = [
    *(Case(name, (x, IDS, 4)) for name in NAMES for x in (X, N)),
    *(Case(name, (X[:, None], IDS % 7, 9), {"unique_indices": False}) for name in NAMES),
    Case("segment_sum", (X, np.sort(IDS), 9), {"indices_are_sorted": True, "bucket_size": 2}),
    Case("segment_sum", (X.astype(np.float16), IDS, 4)),
    Case("segment_sum", (X, IDS, 4), {"mode": "clip"}),
    Case("segment_max", (X > 0, IDS, 4)),
]


def test_values_match_numpy():
    for name, identity, ufunc in (("sum", 0, np.add), ("prod", 1, np.multiply), ("max", -np.inf, np.maximum)):
        expected = np.full((4, 3), identity, np.float32)
        in_bounds = (IDS >= 0) & (IDS < 4)
        ufunc.at(expected, IDS[in_bounds], X[in_bounds])
        np.testing.assert_allclose(getattr(ops, f"segment_{name}")(X, IDS, 4), expected, rtol=1e-6)


@pytest.mark.jax
def test_values_and_gradients_match_jax():
    jax = pytest.importorskip("jax")
    values_like(ops, jax.ops, CASES, jax)
    smooth = [case for case in CASES if case.args[0].dtype == np.float32 and case.name != "segment_prod"]
    gradients_like(ops, jax.ops, smooth, jax)  # JAX has no gradient of segment_prod
    eagerly_like(ops, jax.ops, [Case(name, (X, np.abs(IDS))) for name in NAMES])


def test_vmap_matches_a_loop():
    vmap_like_loop(ops, CASES)


@pytest.mark.parametrize("which", ["first", "last"])
def test_mesh_matches_one_device(mesh, which):
    cases = []
    for rows in (16, 13):
        x = RNG.normal(size=(rows, 8)).astype(np.float32)
        cases += [Case(name, (x, RNG.integers(-1, 6, rows).astype(np.int32), 5)) for name in NAMES]
    mesh_like_one_device(mesh, ops, cases, which)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.segment_sum(X, X, 3), TypeError, r"segment_sum: segment_ids must be integers, not f32\[6,3\]"),
        (
            lambda: ops.segment_max(X, IDS_2D, 3),
            ValueError,
            r"segment_max: segment_ids must have one id for each row of f32\[6,3\], not i32\[2,3\]",
        ),
        (lambda: ops.segment_sum(X > 0, IDS, 3), TypeError, "segment_sum: cannot sum booleans"),
        (lambda: ops.segment_prod(X, IDS, -1), ValueError, "segment_prod: num_segments cannot be negative: -1"),
        (
            lambda: ops.segment_sum(X, IDS, 3, bucket_size=0),
            ValueError,
            "segment_sum: bucket_size must be at least 1, not 0",
        ),
        (lambda: ops.segment_sum(X, IDS, 3, mode="far"), ValueError, "segment_sum: unknown mode 'far'"),
        (lambda: sw.jit(ops.segment_sum)(X, IDS), ConcretizationTypeError, "segment_sum: segment_ids are traced"),
        (lambda: ops.index_add, AttributeError, "index_add"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

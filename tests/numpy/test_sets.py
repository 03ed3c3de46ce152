"""Compare set functions with numpy and JAX, eagerly and under jit with a static size."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from tests.agreement import PARTS, Case, eagerly_like, mesh_like_one_device, values_like, vmap_like_loop

RNG = np.random.default_rng(0)
N = RNG.integers(0, 9, (3, 4)).astype(np.int32)
M = RNG.integers(3, 14, 7).astype(np.int32)
ROWS = np.array([[1, 2], [0, 5], [1, 2], [0, 4], [0, 5]], np.int32)
WITH_NAN = np.array([3.0, np.nan, -0.0, 1.0, np.nan, 0.0, np.inf], np.float32)
EMPTY = np.zeros(0, np.float32)
ALL = {"return_index": True, "return_inverse": True, "return_counts": True}
UNIQUE = [
    Case("unique", (N,)),
    Case("unique", (N,), ALL),
    Case("unique", (WITH_NAN,), ALL),
    Case("unique", (WITH_NAN,), {"equal_nan": False, "return_counts": True}),
    *(Case("unique", (ROWS,), {"axis": axis, **ALL}) for axis in (0, -1)),
    Case("unique", (np.array([2j, 1, 2j, 1 + 1j], np.complex64),), {"return_inverse": True}),
    Case("unique", (np.array([True, False, True]),), {"return_counts": True}),
    Case("unique", (EMPTY,)),
    Case("unique_all", (N,)),
    Case("unique_counts", (M,)),
    Case("unique_inverse", (N,)),
    Case("unique_values", (WITH_NAN,)),
]
SETS = [
    *(Case(name, (N, M)) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    *(Case(name, (WITH_NAN, WITH_NAN[:3])) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    *(Case(name, (EMPTY, WITH_NAN[:1])) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    Case("intersect1d", (N, M), {"return_indices": True}),
    *(
        Case(name, (np.array([5, 1, 3]), np.array([3, 4])), {"assume_unique": True})
        for name in ("intersect1d", "setdiff1d", "setxor1d")
    ),
]
ISIN = [
    *(
        Case("isin", (N, M), {"invert": invert, "method": method})
        for invert in (False, True)
        for method in ("auto", "compare_all", "binary_search", "sort")
    ),
    Case("isin", (WITH_NAN, WITH_NAN[:3])),
    Case("isin", (N, EMPTY)),
    Case("isin", (2, M)),
]
SIZED = [
    *(Case("unique", (N,), {"size": size, **ALL, **fill}) for size in (3, 12) for fill in ({}, {"fill_value": -7})),
    Case("unique", (ROWS,), {"axis": 0, "size": 4, **ALL}),
    Case("unique", (EMPTY,), {"size": 2, "fill_value": 3}),
    Case("unique_all", (M,), {"size": 9}),
    Case("unique_values", (WITH_NAN,), {"size": 8, "fill_value": 5}),
    *(
        Case(name, (N, M), {"size": size})
        for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
        for size in (2, 19)
    ),
    *(
        Case(name, (N, M), {"size": 19, "fill_value": -1})
        for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
    ),
    Case("intersect1d", (N, M), {"size": 9, "return_indices": True}),
    Case("intersect1d", (N[:1] * 0, M), {"size": 2}),
    Case("setdiff1d", (np.array([5, 1, 3]), np.array([3, 4])), {"size": 4, "assume_unique": True}),
]


@pytest.mark.table(default=5)
@pytest.mark.parametrize("case", [*UNIQUE, *SETS], ids=str)
def test_eager_results_match_numpy(case):
    ours = getattr(jnp, case.name)(*case.args, **case.keywords)
    theirs = getattr(np, case.name)(*case.args, **case.keywords)
    is_tuple = isinstance(theirs, tuple)
    for actual, expected in zip(ours if is_tuple else [ours], theirs if is_tuple else [theirs], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_isin_matches_numpy():
    results = sw.jit(lambda: [jnp.isin(*case.args, **case.keywords) for case in ISIN])()
    for case, actual in zip(ISIN, results, strict=True):
        np.testing.assert_array_equal(actual, np.isin(*case.args, invert=case.keywords.get("invert", False)))


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_jitted_results_match_jax(part):
    jax = pytest.importorskip("jax")
    values_like(jnp, jax.numpy, [*SIZED, *ISIN][part], jax)


@pytest.mark.slow
@pytest.mark.jax
def test_eager_types_match_jax():
    jax = pytest.importorskip("jax")
    eagerly_like(jnp, jax.numpy, [UNIQUE[1], UNIQUE[4], SETS[0], SETS[12], Case("unique", (5,))])


@pytest.mark.table(default=1)
@PARTS
def test_vmap_matches_a_loop(part):
    vmap_like_loop(jnp, [*SIZED[::4], *ISIN[::4]][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_mesh_matches_one_device(mesh, which, part):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x = RNG.integers(0, 40, (rows, columns)).astype(np.int32)
        cases += [Case("unique", (x,), {"size": 40, **ALL}), Case("unique", (x % 3,), {"axis": 0, "size": 20})]
        cases += [
            Case(name, (x, x[0] + 3), {"size": 30}) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
        ]
        cases += [Case("isin", (x, x[0] + 3), {"method": method}) for method in ("compare_all", "sort")]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def test_isin_needs_no_collectives(mesh):
    sharding = sw.sharding.NamedSharding(mesh, sw.sharding.PartitionSpec("data", "model"))
    x = sw.device_put(np.ones((64, 32), np.int32), sharding)
    candidates = np.arange(5000, dtype=np.int32)
    for tests in (candidates[:3], candidates):
        assert sw.explain(lambda x, tests=tests: jnp.isin(x, tests))(x).counts() == {}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sw.jit(jnp.unique)(N),
            ConcretizationTypeError,
            r"unique: the elements are traced.* `unique\(..., size=...\)`",
        ),
        (lambda: sw.jit(jnp.setxor1d)(N, M), ConcretizationTypeError, "setxor1d: the elements are traced"),
        (
            lambda: jnp.unique(EMPTY, size=2),
            ValueError,
            r"unique: f32\[0\] is empty, so a result of size 2 needs padding",
        ),
        (lambda: jnp.unique(N, axis=2), ValueError, "unique: axis 2 does not exist in an array of rank 2"),
        (lambda: jnp.isin(N, M, method="guess"), ValueError, "isin: method 'guess' is none of auto, compare_all"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

"""Sets: against numpy and JAX, outside compiled functions and inside with a size."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from tests.agreement import Case, eagerly_like, mesh_like_one_device, values_like, vmap_like_loop

RNG = np.random.default_rng(0)
N = RNG.integers(0, 9, (3, 4)).astype(np.int32)
M = RNG.integers(3, 14, 7).astype(np.int32)
ROWS = np.array([[1, 2], [0, 5], [1, 2], [0, 4], [0, 5]], np.int32)
HOLES = np.array([3.0, np.nan, -0.0, 1.0, np.nan, 0.0, np.inf], np.float32)
NONE = np.zeros(0, np.float32)
ALL = {"return_index": True, "return_inverse": True, "return_counts": True}
UNIQUE = [
    Case("unique", (N,)),
    Case("unique", (N,), ALL),
    Case("unique", (HOLES,), ALL),
    Case("unique", (HOLES,), {"equal_nan": False, "return_counts": True}),
    *(Case("unique", (ROWS,), {"axis": axis, **ALL}) for axis in (0, -1)),
    Case("unique", (np.array([2j, 1, 2j, 1 + 1j], np.complex64),), {"return_inverse": True}),
    Case("unique", (np.array([True, False, True]),), {"return_counts": True}),
    Case("unique", (NONE,)),
    Case("unique_all", (N,)),
    Case("unique_counts", (M,)),
    Case("unique_inverse", (N,)),
    Case("unique_values", (HOLES,)),
]
SETS = [
    *(Case(name, (N, M)) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    *(Case(name, (HOLES, HOLES[:3])) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    *(Case(name, (NONE, HOLES[:1])) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")),
    Case("intersect1d", (N, M), {"return_indices": True}),
    *(
        Case(name, (np.array([5, 1, 3]), np.array([3, 4])), {"assume_unique": True})
        for name in ("intersect1d", "setdiff1d", "setxor1d")
    ),
]
MEMBERS = [
    *(
        Case("isin", (N, M), {"invert": invert, "method": how})
        for invert in (False, True)
        for how in ("auto", "compare_all", "binary_search", "sort")
    ),
    Case("isin", (HOLES, HOLES[:3])),
    Case("isin", (N, NONE)),
    Case("isin", (2, M)),
]
SIZED = [
    *(Case("unique", (N,), {"size": size, **ALL, **fill}) for size in (3, 12) for fill in ({}, {"fill_value": -7})),
    Case("unique", (ROWS,), {"axis": 0, "size": 4, **ALL}),
    Case("unique", (NONE,), {"size": 2, "fill_value": 3}),
    Case("unique_all", (M,), {"size": 9}),
    Case("unique_values", (HOLES,), {"size": 8, "fill_value": 5}),
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


@pytest.mark.parametrize("case", [*UNIQUE, *SETS], ids=str)
def test_like_numpy_outside_compiled_functions(case):
    ours = getattr(jnp, case.name)(*case.args, **case.keywords)
    theirs = getattr(np, case.name)(*case.args, **case.keywords)
    several = isinstance(theirs, tuple)
    for mine, wanted in zip(ours if several else [ours], theirs if several else [theirs], strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_members_like_numpy():
    found = sw.jit(lambda: [jnp.isin(*case.args, **case.keywords) for case in MEMBERS])()
    for case, mine in zip(MEMBERS, found, strict=True):
        np.testing.assert_array_equal(mine, np.isin(*case.args, invert=case.keywords.get("invert", False)))


@pytest.mark.slow
@pytest.mark.jax
def test_like_jax_inside():
    jax = pytest.importorskip("jax")
    values_like(jnp, jax.numpy, [*SIZED, *MEMBERS], jax)


@pytest.mark.slow
@pytest.mark.jax
def test_types_like_jax_outside():
    jax = pytest.importorskip("jax")
    eagerly_like(jnp, jax.numpy, [UNIQUE[1], UNIQUE[4], SETS[0], SETS[12], Case("unique", (5,))])


def test_vmap():
    vmap_like_loop(jnp, [*SIZED[::4], *MEMBERS[::4]])


@pytest.mark.parametrize("which", ["first", pytest.param("last", marks=pytest.mark.slow)])
def test_on_a_mesh(mesh, which):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x = RNG.integers(0, 40, (rows, columns)).astype(np.int32)
        cases += [Case("unique", (x,), {"size": 40, **ALL}), Case("unique", (x % 3,), {"axis": 0, "size": 20})]
        cases += [
            Case(name, (x, x[0] + 3), {"size": 30}) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
        ]
        cases += [Case("isin", (x, x[0] + 3), {"method": how}) for how in ("compare_all", "sort")]
    mesh_like_one_device(mesh, jnp, cases, which)


def test_membership_of_few_needs_nobody(mesh):
    from_spec = sw.sharding.NamedSharding(mesh, sw.sharding.PartitionSpec("data", "model"))
    x = sw.device_put(np.ones((64, 32), np.int32), from_spec)
    tests = np.arange(5000, dtype=np.int32)
    for few in (tests[:3], tests):
        assert sw.explain(lambda x, few=few: jnp.isin(x, few))(x).counts() == {}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sw.jit(jnp.unique)(N),
            ConcretizationTypeError,
            r"unique: the elements are traced.* `unique\(..., size=...\)`",
        ),
        (lambda: sw.jit(jnp.setxor1d)(N, M), ConcretizationTypeError, "setxor1d: the elements are traced"),
        (lambda: jnp.unique(NONE, size=2), ValueError, r"unique: f32\[0\] has no element that could follow 2 times"),
        (lambda: jnp.unique(N, axis=2), ValueError, "unique: axis 2 does not exist in an array of rank 2"),
        (lambda: jnp.isin(N, M, method="guess"), ValueError, "isin: method 'guess' is none of auto, compare_all"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

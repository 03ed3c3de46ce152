"""einsum and other products: against numpy and JAX, random equations, and their collectives on a mesh."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import (
    PARTS,
    Case,
    gradients_like,
    mesh_like_one_device,
    values_like_both,
    values_like_numpy,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1}


def f(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def equation(text, *shapes):
    return Case("einsum", (text, *(f(*shape) for shape in shapes)), rtol=1e-4, atol=1e-5)


EQUATIONS = [
    equation("ij,jk->ik", (2, 3), (3, 4)),
    equation("ij,jk", (2, 3), (3, 4)),
    equation("ij,kj->ki", (2, 3), (4, 3)),
    equation("ba", (2, 3)),
    equation("ij->", (2, 3)),
    equation("ii", (3, 3)),
    equation("ii->i", (3, 3)),
    equation("iij->ji", (3, 3, 2)),
    equation("iii->i", (3, 3, 3)),
    equation("ijij,j->i", (2, 3, 2, 3), (3,)),
    equation("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)),
    equation("i...,j...", (2, 3), (4, 3)),
    equation("ij,ij->ij", (2, 3), (1, 3)),
    equation("ij,ij->", (2, 3), (2, 1)),
    equation("bij,bjk->kbi", (2, 3, 4), (2, 4, 5)),
    equation("a,b,c->cab", (2,), (3,), (4,)),
    equation("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 2)),
    equation("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    equation(",ij->ji", (), (2, 3)),
    equation(" i j , j -> i ", (2, 3), (3,)),
    Case("einsum", (f(2, 3), [0, 1], f(3, 4), [1, 2], [2, 0]), rtol=1e-4),
    Case("einsum", (f(2, 3), [7, 4], f(3, 4), [4, 9])),
    Case("einsum", (f(2, 3), [..., 1], f(3), [1], [...])),
    Case("einsum", ("ij,jk->ik", f(0, 3), f(3, 2))),
    Case("einsum", ("ij,jk->ik", f(2, 0), f(0, 2))),
    *(
        Case("einsum", ("ij,jk,kl->il", f(2, 3), f(3, 4), f(4, 5)), {"optimize": how}, rtol=1e-4, atol=1e-5)
        for how in (True, False, "greedy")
    ),
]
PRODUCTS = [
    *(Case("inner", pair) for pair in ((f(3), f(3)), (f(2, 3), f(4, 3)), (2.0, f(3)), (f(2, 3), f(3)))),
    *(Case("outer", pair) for pair in ((f(3), f(4)), (f(2, 2), f(3)))),
    *(Case("tensordot", (f(2, 3, 4), f(3, 4, 5)), options) for options in ({}, {"axes": 2})),
    Case("tensordot", (f(2, 3, 4), f(4, 5)), {"axes": 1}),
    Case("tensordot", (f(2, 3), f(4)), {"axes": 0}),
    Case("tensordot", (f(2, 3, 4), f(4, 2, 5)), {"axes": ((0, 2), (1, 0))}),
    Case("tensordot", (f(2, 3), f(3, 2)), {"axes": (-1, 0)}),
    Case("vdot", (f(2, 3), f(3, 2))),
    Case("vdot", (f(3) + 1j * f(3), f(3) * 1j), atol=1e-5),
    Case("vecdot", (f(2, 3), f(3))),
    Case("vecdot", (f(3, 2), f(3, 1)), {"axis": 0}),
    Case("vecdot", ((f(3) + 1j * f(3)).astype(np.complex64), f(4, 3))),
    Case("matvec", (f(2, 3), f(5, 3))),
    Case("vecmat", ((f(5, 2) + 1j * f(5, 2)).astype(np.complex64), f(2, 3))),
    *(Case("kron", pair) for pair in ((f(2), f(3)), (f(2, 3), f(3, 1)), (f(2), f(2, 3)), (2.0, f(3)))),
    Case("cross", (f(4, 3), f(3))),
    Case("cross", (f(3, 4), f(4, 3)), {"axisa": 0, "axisc": 0}),
    Case("cross", (f(2, 3, 4), f(2, 3, 4)), {"axis": 1}),
    Case("matmul", (f(5, 1, 2, 3), f(4, 3, 2))),
    Case("dot", (f(2, 3), f(4, 3, 2))),
]
LIKE_JAX = [
    *(
        Case(name, (x, y), {"precision": "highest", "preferred_element_type": np.float32})
        for name, x, y in (
            ("matmul", f(5, 1, 2, 3), f(4, 3, 2)),
            ("matmul", f(3), f(4, 3, 2)),
            ("matmul", f(2, 3), f(3)),
            ("dot", f(2, 3), f(4, 3, 2)),
            ("dot", f(2, 3), f(3)),
            ("dot", f(2, 3), 2.0),
            ("inner", f(2, 3).astype(ml_dtypes.bfloat16), f(4, 3).astype(ml_dtypes.bfloat16)),
            ("tensordot", f(2, 3, 4), f(3, 4, 5)),
            ("vdot", f(3), f(3)),
            ("vecdot", f(2, 3), f(3)),
        )
    ),
    Case("einsum", ("ij->i", np.array([[100, 100]], np.int8))),
    Case("einsum", ("ij->i", np.array([[True, False]]))),
    Case("einsum", ("i,i->", np.array([True, True]), np.array([False, True]))),
    Case("einsum", ("i,j->ij", np.array([1, 2], np.int8), f(2).astype(np.float16))),
    Case(
        "einsum",
        ("ij,jk,k->i", *(f(*s).astype(ml_dtypes.bfloat16) for s in ((2, 3), (3, 4), (4,)))),
        {"preferred_element_type": np.float32},
        rtol=2e-2,
        atol=2e-2,
    ),
    Case(
        "einsum",
        ("ij,jk->ik", np.ones((2, 3), np.int8), np.ones((3, 2), np.int8)),
        {"preferred_element_type": np.int32},
    ),
    Case("einsum", (",", 2, 3.0)),
    Case("cross", (f(4, 2), f(4, 2))),
    Case("cross", (f(4, 3), f(4, 2))),
    Case("kron", (np.array([1, 2], np.int8), np.array([1.5], np.float16))),
]


def random_equations(count, seed=0):
    """Equations of up to four operands, with repeated names, broadcasts of size 1 and any result."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        terms, arrays = [], []
        for _ in range(rng.integers(1, 5)):
            names = "".join(rng.choice(list(SIZES), rng.integers(0, 4)))
            one = rng.random() < 0.1
            shape = [1 if one and names.count(name) == 1 else SIZES[name] for name in names]
            terms.append(names)
            arrays.append(rng.normal(size=shape).astype(np.float32))
        known = sorted(set("".join(terms)))
        result = "".join(rng.permutation(known)[: rng.integers(0, len(known) + 1)]) if known else ""
        full = {
            name
            for term, x in zip(terms, arrays, strict=True)
            for name, size in zip(term, x.shape, strict=True)
            if size == SIZES[name]
        }
        text = ",".join(terms) + (f"->{result}" if rng.random() < 0.8 else "")
        if set(result) <= full:
            yield Case("einsum", (text, *arrays), {"optimize": bool(rng.random() < 0.7)}, rtol=1e-3, atol=1e-4)


@pytest.mark.table(default=1)
@PARTS
def test_random_equations_like_numpy(part):
    values_like_numpy(jnp, list(random_equations(60))[part])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_random_equations_like_numpy(seed, mesh):
    cases = list(random_equations(150, seed))
    values_like_numpy(jnp, cases)
    vmap_like_loop(jnp, cases[:30])
    mesh_like_one_device(mesh, jnp, cases[30:60], "last")


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, [*EQUATIONS, *PRODUCTS][part], LIKE_JAX[part])


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_gradients_like_jax(part):
    jax = pytest.importorskip("jax")
    gradients_like(jnp, jax.numpy, [*EQUATIONS[4:20:2], *PRODUCTS[::2]][part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap(part):
    vmap_like_loop(jnp, [*EQUATIONS[::2], *PRODUCTS[::3]][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_on_a_mesh(mesh, which, part):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x, y = f(rows, columns), f(columns, rows)
        cases += [
            equation("ij,jk->ik", (rows, columns), (columns, rows)),
            equation("ij,kj->ki", (rows, columns), (5, columns)),
        ]
        cases += [
            equation("ii->i", (rows, rows)),
            equation("ii", (rows, rows)),
            equation("ij,ij->j", (rows, columns), (rows, columns)),
        ]
        cases += [Case(name, (x, y)) for name in ("outer", "kron")]
        cases += [
            Case("tensordot", (x, y), {"axes": 1}),
            Case("cross", (f(rows, 3), f(rows, 3))),
            Case("vdot", (x, x + 1)),
        ]
    mesh_like_one_device(
        mesh, jnp, [Case(c.name, c.args, c.keywords, rtol=1e-3, atol=1e-4) for c in cases][part], which
    )


def placed(mesh, shape, *spec):
    return sw.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("text", "operands", "collectives"),
    [
        ("bi,ij->bj", [((64, 16), "data"), ((16, 8),)], {}),  # the batch stays sharded
        ("bi,ij->bj", [((64, 16), "data"), ((16, 8), None, "model")], {}),
        ("bi,ij->bj", [((64, 16), None, "model"), ((16, 8), "model")], {"all_reduce": 1}),  # partial sums
        ("bqhd,bkhd->bhqk", [((8, 4, 2, 4), "data", None, "model"), ((8, 4, 2, 4), "data", None, "model")], {}),
        ("ii->i", [((64, 64), "data")], {}),
        ("i,j->ij", [((64,), "data"), ((32,), "model")], {}),
        ("bi,ij,jk->bk", [((64, 16), "data"), ((16, 8),), ((8, 4),)], {}),
    ],
    ids=["rows", "rows and columns", "contracted", "attention", "diagonal", "outer", "chain"],
)
def test_einsum_needs_only_these_collectives(mesh, text, operands, collectives):
    arrays = [placed(mesh, *operand) for operand in operands]
    plan = sw.explain(lambda *xs: jnp.einsum(text, *xs))(*arrays)
    assert plan.counts() == collectives


def test_no_unnecessary_transposes():
    x, y = f(2, 3, 4), f(2, 5, 4)
    program = str(sw.make_jaxpr(lambda x, y: jnp.einsum("bqd,bkd->bqk", x, y))(x, y))
    assert program.count("dot") == 1
    assert "transpose" not in program
    swapped = str(sw.make_jaxpr(lambda x, y: jnp.einsum("bqd,bkd->bkq", x, y))(x, y))
    assert "transpose" not in swapped


def test_custom_dot_general_computes_the_products():
    dimension_numbers = []

    def general(x, y, dims, **options):
        dimension_numbers.append(dims)
        return lax.dot_general(x, y, dims)

    x, y = f(2, 3), f(3, 4)
    np.testing.assert_allclose(jnp.einsum("ij,jk->ik", x, y, _dot_general=general), x @ y, rtol=1e-5)
    assert dimension_numbers == [(((1,), (0,)), ((), ()))]


@pytest.mark.parametrize("precision", [None, "highest", lax.Precision.HIGH])
def test_custom_dot_general_is_called_with_the_precision_and_the_promoted_dtype(precision):
    calls = []

    def general(x, y, dims, **options):
        calls.append(options)
        return lax.dot_general(x, y, dims, **options)

    x, y = np.ones((2, 3), np.int8), f(3, 4)
    result = jnp.einsum("ij,jk->ik", x, y, precision=precision, _dot_general=general)
    np.testing.assert_allclose(result, x @ y, rtol=1e-5)
    assert calls == [{"precision": precision, "preferred_element_type": np.float32}]


def test_out_sharding(mesh):
    sharding = NamedSharding(mesh, P("data"))
    assert jnp.einsum("ij,jk->ik", f(8, 4), f(4, 2), out_sharding=sharding).sharding == sharding


def test_einsum_path():
    x, y, z = f(2, 3), f(3, 4), f(4, 5)
    path, info = jnp.einsum_path("ij,jk,kl->il", x, y, z)
    assert path == np.einsum_path("ij,jk,kl->il", x, y, z, optimize="optimal")[0][1:]
    assert info.opt_cost > 0
    np.testing.assert_allclose(jnp.einsum("ij,jk,kl->il", x, y, z, optimize=path), x @ y @ z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.einsum("ij,jk", f(2, 3)), ValueError, r"einsum: invalid equation 'ij,jk' for f32\[2,3\]"),
        (lambda: jnp.einsum("ijk", f(2, 3)), ValueError, r"einsum: ijk->ijk names 3 dims of f32\[2,3\]"),
        (lambda: jnp.einsum("ij->k", f(2, 3)), ValueError, "einsum: invalid equation 'ij->k'"),
        (lambda: jnp.einsum("ij->ii", f(2, 3)), ValueError, "einsum: "),
        (lambda: jnp.einsum("ij,jk->ik", f(2, 3), f(4, 5)), ValueError, r"dims 'j' of ij,jk->ik have sizes 3 and 4"),
        (lambda: jnp.einsum("->"), ValueError, "einsum: the equation '->' needs at least one operand"),
        (lambda: jnp.einsum("i", f(2), out=1), NotImplementedError, "einsum: arrays are immutable"),
        (
            lambda: jnp.inner(f(3), f(4)),
            TypeError,
            r"inner: f32\[3\] and f32\[4\]: dim 0 of the left, 3, must equal dim 0",
        ),
        (lambda: jnp.tensordot(f(3), f(3), 2), TypeError, "tensordot: cannot contract 2 dims of .* and"),
        (lambda: jnp.tensordot(f(3), f(3), ((0,), ())), TypeError, "tensordot: axes .* pair 1 dims of .* with 0"),
        (
            lambda: jnp.tensordot(f(3), f(3), (0, 0, 0)),
            ValueError,
            "tensordot: axes must be a number of dims or a pair",
        ),
        (lambda: jnp.vecdot(1.0, f(3)), ValueError, "vecdot: operands must have rank 1 or more"),
        (lambda: jnp.matvec(f(3), f(3)), ValueError, "matvec: operands must be matrices and vectors"),
        (lambda: jnp.vecmat(f(3), f(3)), ValueError, "vecmat: operands must be vectors and matrices"),
        (lambda: jnp.cross(f(4), f(3)), ValueError, "cross: vectors must have 2 or 3 elements, not 4 and 3"),
        (
            lambda: jnp.matmul(f(2, 3), f(2, 3), precision="high"),
            TypeError,
            "matmul: .* must equal dim 0 of the right, 2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()

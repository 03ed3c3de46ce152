"""Decompositions and solvers beyond the laws: errors, NaN on failure, derivatives of functions of eigenvectors and
singular vectors, and the collectives on a mesh."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.linalg.batched import adjoint, as_dtype, batched_matmul, scale_columns
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg, Schur, Tridiagonal
from shardwise.compiler.ops.linalg.householder import Geqrf, HouseholderProduct, Ormqr, Qr
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation, solve
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve, TridiagonalSolve, symmetrize
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.sharding import NamedSharding

FROM_LEFT = TriangularSolve(left_side=True, is_lower=True)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Cholesky(), "f32[3]", "cholesky: needs an array of rank 2 or more, not f32[3]"),
        (Cholesky(), "f32[2,3]", "cholesky: needs square matrices, not f32[2,3]"),
        (Cholesky(), "bf16[3,3]", "cholesky: needs f32, f64, c64 or c128, not bf16[3,3]"),
        (Lu(), "i32[3,3]", "lu: needs f32, f64, c64 or c128, not i32[3,3]"),
        (Qr(full=False), "f16[3,3]", "qr: needs f32, f64, c64 or c128, not f16[3,3]"),
        (Eigh(), "f32[2,3]", "eigh: needs square matrices, not f32[2,3]"),
        (FROM_LEFT, "i32[3,3] i32[3,1]", "triangular_solve: needs floats or complex numbers, not i32[3,3]"),
        (FROM_LEFT, "f32[2,3,3] f32[3,1]", "triangular_solve: the batch dims of f32[2,3,3] and f32[3,1] differ"),
        (
            FROM_LEFT,
            "f32[3,3] f32[2,3]",
            "triangular_solve: a of type f32[3,3] needs b with 3 rows, not f32[2,3]",
        ),
        (FROM_LEFT, "f32[3,3] f64[3,1]", "triangular_solve: operands must have one dtype, not f32[3,3] and f64[3,1]"),
        (
            TridiagonalSolve(),
            "f32[3] f32[3] f32[2] f32[3,1]",
            "tridiagonal_solve: the diagonals need as many elements as b has rows, not f32[3], f32[3], f32[2] and "
            "f32[3,1]",
        ),
        (
            HouseholderProduct(),
            "f32[2,3] f32[2]",
            "householder_product: needs at least as many rows as columns, not f32[2,3]",
        ),
        (
            HouseholderProduct(),
            "f32[3,2] f32[3]",
            "householder_product: f32[3,2] holds at most 2 reflections per matrix, ",
        ),
        (Ormqr(), "f32[3,2] f32[2] f32[2,3]", "ormqr: reflections of size 3 need c with 3 rows, not f32[2,3]"),
        (PivotsToPermutation(2), "i32[3]", "lu_pivots_to_permutation: there are more pivots, i32[3], than rows, 2"),
    ],
    ids=str,
)
def test_wrong_operands_raise_type_error(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value).startswith(message)


def test_a_failure_makes_only_its_own_matrix_nan():
    good, bad = np.array([[4.0, 2.0], [2.0, 5.0]]), np.array([[1.0, 2.0], [2.0, 1.0]])
    factors = np.asarray(Cholesky()(jnp.array(np.stack([good, bad, good]))))
    np.testing.assert_allclose(factors[0], np.linalg.cholesky(good), rtol=1e-6)
    np.testing.assert_array_equal(factors[2], factors[0])
    np.testing.assert_array_equal(factors[1], [[np.nan, 0], [np.nan, np.nan]])
    nan = np.stack([good, np.full((2, 2), np.nan)])
    for op in (Eigh(), Svd(), Svd(vectors=False), Eig(left=True, right=True), Schur()):
        for result in op(jnp.array(nan)):
            assert not np.isnan(np.asarray(result)[0]).any(), op
            assert np.isnan(np.asarray(result)[1]).any(), op
    singular = [jnp.array(x) for x in ([[0.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 4.0]], [[1.0, 0.0], [1.0, 0.0]])]
    solved = np.asarray(TridiagonalSolve()(*singular, jnp.ones((2, 2, 1))))
    assert np.isnan(solved[0]).all() and np.isfinite(solved[1]).all()


# Functions of vectors that do not depend on their phases or on a rotation within an eigenspace.


def from_eigh(x):
    vectors, values = Eigh()(symmetrize(x))
    return batched_matmul(scale_columns(vectors, Mul()(values, values)), adjoint(vectors))


def from_svd(x):
    u, s, vh = Svd()(x)
    return batched_matmul(scale_columns(u, s * s), vh)


def from_full_svd(x):
    u, s, vh = Svd(full=True)(x)
    return batched_matmul(scale_columns(u, s * s), vh)


def from_eig(x):
    values, vectors = Eig(left=False, right=True, differentiable=True)(x)
    return batched_matmul(scale_columns(vectors, Mul()(values, values)), solve(vectors, as_dtype(x, np.complex128)))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=["real", "complex"])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (from_eigh, (2, 4, 4)),
        (from_svd, (2, 4, 3)),
        (from_svd, (3, 5)),
        (from_full_svd, (3, 3)),
        (from_eig, (2, 3, 3)),
    ],
    ids=["eigh", "svd tall", "svd wide", "svd square", "eig"],
)
def test_derivatives_match_finite_differences(function, shape, dtype):
    rng = np.random.default_rng(0)
    x, dx = (rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype == np.complex128 else 0) for _ in range(2))
    program = rewrite("program", [ArrayType(shape, dtype)], lambda x: [function(x)])
    derivative, _ = jvp_program(program, (True,))
    step = 1e-6
    ahead, behind = (evaluate(program, [x + by * dx])[0] for by in (step, -step))
    slope = evaluate(derivative, [x, dx])[1]
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: Svd(full=True)(x)[0], "svd: with full_matrices=True there is no derivative"),
        (lambda x: Eig(left=False, right=True)(x @ x.T)[1].real, "pass enable_eigvec_derivs=True"),
        (lambda x: Schur()(x @ x.T)[0], "schur: has no derivative"),
        (lambda x: Geqrf()(x)[0], "geqrf: has no derivative; differentiate `qr`"),
    ],
    ids=["svd", "eig", "schur", "geqrf"],
)
def test_missing_derivatives_raise_not_implemented(function, message):
    with pytest.raises(NotImplementedError, match=message.replace("(", r"\(")):
        sw.grad(lambda x: function(x).sum())(jnp.ones((3, 2)))


def test_derivatives_at_equal_eigenvalues_or_singular_values():
    """Eigenvectors of equal eigenvalues have no derivative, but the eigenvalues do; singular vectors do not rotate."""
    x = jnp.eye(3)
    grads = sw.jit(lambda x: [sw.grad(lambda x, f=f: f(x).sum())(x) for f in AT_EQUAL_VALUES])(x)
    assert np.isnan(np.asarray(grads[0])).any()
    np.testing.assert_allclose(grads[1], np.eye(3), atol=1e-6)
    assert np.isfinite(np.asarray(grads[2])).all()


AT_EQUAL_VALUES = (from_eigh, lambda x: Eigh()(x)[1], from_svd)


# On a mesh.

MESH = AbstractMesh((8,), ("x",))


def solve_matrices(a, b):
    return [solve(a, b)]


BATCHED = {
    "cholesky": (lambda a: [Cholesky()(a)], [(3, 3)]),
    "triangular_solve": (lambda a, b: [FROM_LEFT(a, b)], [(3, 3), (3, 2)]),
    "tridiagonal_solve": (lambda *xs: [TridiagonalSolve()(*xs)], [(3,), (3,), (3,), (3, 2)]),
    "qr": (Qr(full=False), [(4, 3)]),
    "lu": (Lu(), [(4, 3)]),
    "lu_pivots_to_permutation": (lambda a: [PivotsToPermutation(4)(Lu()(a)[1])], [(4, 3)]),
    "solve": (solve_matrices, [(3, 3), (3, 2)]),
    "eigh": (Eigh(), [(3, 3)]),
    "eig": (Eig(left=True, right=True), [(3, 3)]),
    "svd": (Svd(), [(4, 3)]),
    "schur": (Schur(), [(3, 3)]),
    "hessenberg": (Hessenberg(), [(3, 3)]),
    "tridiagonal": (Tridiagonal(), [(3, 3)]),
}
JAX_REPORTS = {"cholesky": "jax#13081", "triangular_solve": "jax#15680", "eigh": "jax#13087", "svd": "jax#13087"}


def values(shape, seed=0):
    """Return random matrices. Square ones are positive definite, so that all of the functions accept them."""
    matrices = np.random.default_rng(seed).normal(size=shape)
    if shape[-1] == shape[-2]:
        matrices = matrices @ np.swapaxes(matrices, -1, -2) + np.eye(shape[-1])
    return (matrices + (4 if shape[-1] == 3 and len(shape) == 2 else 0)).astype(np.float32)


@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
@pytest.mark.parametrize("name", BATCHED)
def test_each_device_factors_its_own_batch(name, size):
    """There are no collectives. jax#13081, #15680 and #13087 report that JAX gathers a sharded batch of such calls."""
    function, shapes = BATCHED[name]
    full = [(size, *shape) for shape in shapes]
    program = rewrite(name, [ArrayType(shape, np.float32) for shape in full], lambda *xs: list(function(*xs)))
    pins = [pin_of(P("x"), shape, MESH) for shape in full]
    local = run_stages(program, MESH, pins, [None] * len(program.outputs)).local
    assert local.collectives() == [], JAX_REPORTS.get(name, "")
    assert all(placement.layout.dims[0] == ("x",) for placement in local.outputs)
    args = [values(shape, index) for index, shape in enumerate(full)]
    for got, want in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["cholesky", "solve", "qr", "eigh", "svd"])
def test_gradients_of_a_sharded_batch_need_no_collectives(name):
    function, shapes = BATCHED[name]

    def total(*xs):
        return sum((x * x * x).sum() for x in function(*xs))

    full = [(13, *shape) for shape in shapes]
    program = rewrite(name, [ArrayType(shape, np.float32) for shape in full], lambda *xs: [sw.grad(total)(*xs)])
    local = run_stages(program, MESH, [pin_of(P("x"), shape, MESH) for shape in full], [None]).local
    assert local.collectives() == []
    args = [values(shape, index) for index, shape in enumerate(full)]
    np.testing.assert_allclose(evaluate_shards(local, args)[0], evaluate(program, args)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("spec", [P("data"), P(("data", "model")), P(None, "data"), P(None, None, "model")], ids=str)
def test_results_on_a_mesh_are_bitwise_equal_to_one_device(mesh, spec):
    """Batches of 6 and of 8, sharded along each dim, also along dims of the matrices."""
    calls = {name: call for name, call in BATCHED.items() if name not in ("tridiagonal_solve",)}
    for size in (6, 8):
        args = {name: [values((size, *s), n) for n, s in enumerate(shapes)] for name, (_, shapes) in calls.items()}

        def run(args, calls=calls):
            return {name: list(calls[name][0](*xs)) for name, xs in args.items()}

        placed = {name: [sw.device_put(x, NamedSharding(mesh, spec)) for x in xs] for name, xs in args.items()}
        sharded, expected = sw.jit(run)(placed), sw.jit(run)(args)
        for name in calls:
            for got, want in zip(sharded[name], expected[name], strict=True):
                assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), name

"""Factors and solves beyond the laws: what they refuse, what becomes of failures, derivatives where vectors may turn,
and what moves on a mesh."""

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
from shardwise.compiler.partition.simulate import simulate
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
            "triangular_solve: the matrices of f32[3,3] need as many rows of b, not f32[2,3]",
        ),
        (FROM_LEFT, "f32[3,3] f64[3,1]", "triangular_solve: operands must have one dtype, not f32[3,3] and f64[3,1]"),
        (
            TridiagonalSolve(),
            "f32[3] f32[3] f32[2] f32[3,1]",
            "tridiagonal_solve: diagonals need as many elements as b has rows, not f32[3], f32[3], f32[2] and f32[3,1]",
        ),
        (
            HouseholderProduct(),
            "f32[2,3] f32[2]",
            "householder_product: needs no fewer rows than columns, not f32[2,3]",
        ),
        (HouseholderProduct(), "f32[3,2] f32[3]", "householder_product: the matrices of f32[3,2] hold 2 reflections, "),
        (Ormqr(), "f32[3,2] f32[2] f32[2,3]", "ormqr: reflections of 3 numbers need as many rows, not f32[2,3]"),
        (PivotsToPermutation(2), "i32[3]", "lu_pivots_to_permutation: i32[3] holds more pivots than there are rows, 2"),
    ],
    ids=str,
)
def test_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value).startswith(message)


def test_a_failure_is_nan_for_its_own_matrix_alone():
    good, bad = np.array([[4.0, 2.0], [2.0, 5.0]]), np.array([[1.0, 2.0], [2.0, 1.0]])
    found = np.asarray(Cholesky()(jnp.array(np.stack([good, bad, good]))))
    np.testing.assert_allclose(found[0], np.linalg.cholesky(good), rtol=1e-6)
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_array_equal(found[1], [[np.nan, 0], [np.nan, np.nan]])
    nan = np.stack([good, np.full((2, 2), np.nan)])
    for op in (Eigh(), Svd(), Svd(vectors=False), Eig(left=True, right=True), Schur()):
        for result in op(jnp.array(nan)):
            assert not np.isnan(np.asarray(result)[0]).any(), op
            assert np.isnan(np.asarray(result)[1]).any(), op
    singular = [jnp.array(x) for x in ([[0.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 4.0]], [[1.0, 0.0], [1.0, 0.0]])]
    solved = np.asarray(TridiagonalSolve()(*singular, jnp.ones((2, 2, 1))))
    assert np.isnan(solved[0]).all() and np.isfinite(solved[1]).all()


def test_singular_matrices_have_factors():
    both, pivots = Lu()(jnp.zeros((2, 2)))
    assert both.tolist() == [[0, 0], [0, 0]] and pivots.tolist() == [0, 1]


# Derivatives of what does not change when the vectors turn.


def of_eigenvectors(x):
    vectors, values = Eigh()(symmetrize(x))
    return batched_matmul(scale_columns(vectors, Mul()(values, values)), adjoint(vectors))


def of_singular_vectors(x):
    u, s, vh = Svd()(x)
    return batched_matmul(scale_columns(u, s * s), vh)


def of_square_singular_vectors(x):
    u, s, vh = Svd(full=True)(x)
    return batched_matmul(scale_columns(u, s * s), vh)


def of_eig(x):
    values, vectors = Eig(left=False, right=True, differentiable=True)(x)
    return batched_matmul(scale_columns(vectors, Mul()(values, values)), solve(vectors, as_dtype(x, np.complex128)))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=["real", "complex"])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (of_eigenvectors, (2, 4, 4)),
        (of_singular_vectors, (2, 4, 3)),
        (of_singular_vectors, (3, 5)),
        (of_square_singular_vectors, (3, 3)),
        (of_eig, (2, 3, 3)),
    ],
    ids=["eigh", "svd tall", "svd wide", "svd square", "eig"],
)
def test_derivatives_where_vectors_may_turn(function, shape, dtype):
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
def test_what_has_no_derivative_says_so(function, message):
    with pytest.raises(NotImplementedError, match=message.replace("(", r"\(")):
        sw.grad(lambda x: function(x).sum())(jnp.ones((3, 2)))


def test_where_values_are_equal():
    """Vectors of equal eigenvalues have no derivative, the values have; singular vectors do not turn."""
    x = jnp.eye(3)
    found = sw.jit(lambda x: [sw.grad(lambda x, f=f: f(x).sum())(x) for f in EQUAL])(x)
    assert np.isnan(np.asarray(found[0])).any()
    np.testing.assert_allclose(found[1], np.eye(3), atol=1e-6)
    assert np.isfinite(np.asarray(found[2])).all()


EQUAL = (of_eigenvectors, lambda x: Eigh()(x)[1], of_singular_vectors)


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
REPORTED = {"cholesky": "jax#13081", "triangular_solve": "jax#15680", "eigh": "jax#13087", "svd": "jax#13087"}


def values(shape, seed=0):
    """Random matrices; square ones positive definite, so that all of the functions take them."""
    found = np.random.default_rng(seed).normal(size=shape)
    if shape[-1] == shape[-2]:
        found = found @ np.swapaxes(found, -1, -2) + np.eye(shape[-1])
    return (found + (4 if shape[-1] == 3 and len(shape) == 2 else 0)).astype(np.float32)


@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
@pytest.mark.parametrize("name", BATCHED)
def test_each_device_factors_its_own_batch(name, size):
    """Nothing moves. jax#13081, #15680 and #13087 report that a sharded batch of such calls is gathered in JAX."""
    function, shapes = BATCHED[name]
    full = [(size, *shape) for shape in shapes]
    program = rewrite(name, [ArrayType(shape, np.float32) for shape in full], lambda *xs: list(function(*xs)))
    pins = [pin_of(P("x"), shape, MESH) for shape in full]
    local = run_stages(program, MESH, pins, [None] * len(program.outputs)).local
    assert local.collectives() == [], REPORTED.get(name, "")
    assert all(placement.layout.dims[0] == ("x",) for placement in local.outputs)
    args = [values(shape, number) for number, shape in enumerate(full)]
    for got, want in zip(simulate(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["cholesky", "solve", "qr", "eigh", "svd"])
def test_so_it_is_with_its_gradient(name):
    function, shapes = BATCHED[name]

    def total(*xs):
        return sum((x * x * x).sum() for x in function(*xs))

    full = [(13, *shape) for shape in shapes]
    program = rewrite(name, [ArrayType(shape, np.float32) for shape in full], lambda *xs: [sw.grad(total)(*xs)])
    local = run_stages(program, MESH, [pin_of(P("x"), shape, MESH) for shape in full], [None]).local
    assert local.collectives() == []
    args = [values(shape, number) for number, shape in enumerate(full)]
    np.testing.assert_allclose(simulate(local, args)[0], evaluate(program, args)[0], rtol=1e-5, atol=1e-5)


def test_columns_to_solve_for_stay_cut():
    types = [ArrayType((4, 4), np.float32), ArrayType((4, 24), np.float32)]
    program = rewrite("program", types, lambda a, b: [FROM_LEFT(a, b)])
    local = run_stages(program, MESH, [pin_of(P(), (4, 4), MESH), pin_of(P(None, "x"), (4, 24), MESH)], [None]).local
    assert local.collectives() == []
    assert local.outputs[0].layout.dims == ((), ("x",))


@pytest.mark.parametrize("spec", [P("data"), P(("data", "model")), P(None, "data"), P(None, None, "model")], ids=str)
def test_on_devices_all_is_as_on_one(mesh, spec):
    """A batch of 6, or of 8, cut along each dim, of a matrix too: equal to the bit."""
    calls = {name: call for name, call in BATCHED.items() if name not in ("tridiagonal_solve",)}
    for size in (6, 8):
        args = {name: [values((size, *s), n) for n, s in enumerate(shapes)] for name, (_, shapes) in calls.items()}

        def run(args, calls=calls):
            return {name: list(calls[name][0](*xs)) for name, xs in args.items()}

        placed = {name: [sw.device_put(x, NamedSharding(mesh, spec)) for x in xs] for name, xs in args.items()}
        found, wanted = sw.jit(run)(placed), sw.jit(run)(args)
        for name in calls:
            for got, want in zip(found[name], wanted[name], strict=True):
                assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), name

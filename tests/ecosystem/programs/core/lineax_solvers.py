"""Lineax: the README's solves, all solvers, operators, and derivatives and batches of solves."""

import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx

from tests.ecosystem.report import explain, report, shard

matrix_key, vector_key = jr.split(jr.PRNGKey(0))
matrix = jr.normal(matrix_key, (16, 8))
vector = jr.normal(vector_key, (16,))
solution = lx.linear_solve(lx.MatrixLinearOperator(matrix), vector, solver=lx.QR())
report("readme", solution.value)


def quadratic_fn(y, args):
    return jax.numpy.sum((y - 1) ** 2)


y = jr.normal(jr.PRNGKey(0), (10,))
gradient_fn = jax.grad(quadratic_fn)
hessian = lx.JacobianLinearOperator(gradient_fn, y, tags=lx.positive_semidefinite_tag)
out = lx.linear_solve(hessian, gradient_fn(y, args=None), lx.CG(rtol=1e-6, atol=1e-6))
report("minimum", y - out.value)

wide = shard(matrix, "data")
square = shard(matrix.T @ matrix + 3 * jnp.eye(8), "data", "model")
right = shard(vector[:8], "data")


def solve(solver, matrix, vector, tags=()):
    return lx.linear_solve(lx.MatrixLinearOperator(matrix, tags), vector, solver).value


@jax.jit
def solve_all(square, right):
    definite = lx.positive_semidefinite_tag
    tolerances = {"rtol": 1e-5, "atol": 1e-6}
    return {
        "automatic": solve(lx.AutoLinearSolver(well_posed=True), square, right),
        "bicgstab": solve(lx.BiCGStab(**tolerances), square, right),
        "cg": solve(lx.CG(**tolerances), square, right, definite),
        "cholesky": solve(lx.Cholesky(), square, right, definite),
        "gmres": solve(lx.GMRES(**tolerances), square, right),
        "lu": solve(lx.LU(), square, right),
        "qr": solve(lx.QR(), square, right),
        "svd": solve(lx.SVD(), square, right),
    }


for name, value in solve_all(square, right).items():
    report(name, value)
explain(solve_all, square, right)


@jax.jit
def least_squares(matrix, vector):
    return solve(lx.AutoLinearSolver(well_posed=None), matrix, vector)


report("least squares", least_squares(wide, shard(vector, "data")))
report("diagonal", lx.linear_solve(lx.DiagonalLinearOperator(right), right).value)
bands = lx.TridiagonalLinearOperator(4 + right, right[1:], right[:-1])
report("tridiagonal", lx.linear_solve(bands, right, lx.Tridiagonal()).value)
triangular = solve(lx.Triangular(), jnp.tril(square), right, lx.lower_triangular_tag)
report("triangular", triangular)


def loss(matrix, vector):
    return jnp.sum(solve(lx.AutoLinearSolver(well_posed=True), matrix, vector) ** 2)


for name, value in zip(("matrix", "vector"), jax.jit(jax.grad(loss, (0, 1)))(square, right), strict=True):
    report(f"gradient of the {name}", value)
batch = shard(jr.normal(jr.PRNGKey(2), (8, 8)), "data")
report("batch", jax.jit(jax.vmap(lambda v: solve(lx.LU(), square, v)))(batch))
report("tangent", jax.jvp(lambda v: solve(lx.QR(), square, v), (right,), (right,))[1])


def composed(x):
    operator = lx.FunctionLinearOperator(lambda v: square @ v + x * v, jax.eval_shape(lambda: right))
    return lx.linear_solve(operator + lx.IdentityLinearOperator(jax.eval_shape(lambda: right)), right).value


report("operators", jax.jit(jax.jacfwd(composed))(2.0))

"""jaxopt: gradient, quasi-Newton, projected and proximal solvers, least squares, root finding, quadratic programs,
implicit differentiation of a ridge regression, with sharded data.
"""

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np

from tests.ecosystem.report import report, shard

jax.config.update("jax_enable_x64", True)  # a line search that stops early amplifies the rounding of 32 bits
rng = np.random.default_rng(0)
features = rng.normal(size=(64, 8))
targets = shard(features @ rng.normal(size=8) + 0.1 * rng.normal(size=64), "data")
features = shard(features, "data", "model")
start = jnp.zeros(8)


def ridge(weights, penalty, features, targets):
    return jnp.mean((features @ weights - targets) ** 2) + 0.5 * penalty * jnp.sum(weights**2)


for name, solver in {
    "gradient descent": jaxopt.GradientDescent(ridge, maxiter=20),
    "lbfgs": jaxopt.LBFGS(ridge, maxiter=20),
    "conjugate gradient": jaxopt.NonlinearCG(ridge, maxiter=20),
}.items():
    run = jax.jit(solver.run)
    weights, state = run(start, 0.1, features, targets)
    report(name, weights)
    report(f"{name} gradient norm", state.error)

for name, (projection, parameters) in {
    "non-negative": (jaxopt.projection.projection_non_negative, None),
    "l1 ball": (jaxopt.projection.projection_l1_ball, 1.5),
}.items():
    solver = jaxopt.ProjectedGradient(lambda w, x, y: ridge(w, 0.0, x, y), projection, maxiter=30)
    report(name, jax.jit(solver.run)(jnp.full(8, 0.1), parameters, x=features, y=targets).params)
lasso = jaxopt.ProximalGradient(jaxopt.objective.least_squares, jaxopt.prox.prox_lasso, maxiter=30)
report("lasso", jax.jit(lasso.run)(start, 0.1, data=(features, targets)).params)
report(
    "scipy", jaxopt.ScipyMinimize(fun=ridge, method="L-BFGS-B", maxiter=10).run(start, 0.1, features, targets).params
)


def decay(parameters, times, values):
    return parameters[0] * jnp.exp(-parameters[1] * times) - values


times = shard(np.linspace(0, 4, 32), "data")
values = 2.0 * jnp.exp(-0.7 * times)
report("gauss-newton", jax.jit(jaxopt.GaussNewton(decay).run)(jnp.array([1.0, 0.5]), times, values).params)
report("bisection", jaxopt.Bisection(lambda x, a: x**3 - a, 0.0, 3.0, maxiter=20).run(None, 5.0).params)
fixed_point = jaxopt.FixedPointIteration(lambda x, a: jnp.cos(a * x), maxiter=50)
report("fixed point", jax.grad(lambda a: fixed_point.run(0.5, a).params)(0.8))


@jax.jit
def solution(penalty, features, targets):
    solver = jaxopt.LBFGS(ridge, maxiter=50, implicit_diff=True)
    return solver.run(start, penalty, features, targets).params


report("implicit derivative", jax.jacrev(solution)(0.1, features, targets))
quadratic = jaxopt.OSQP(maxiter=100)
matrix = features.T @ features / 64 + jnp.eye(8)


def program(vector):
    bounds = jnp.eye(8), jnp.full(8, 0.2)
    return quadratic.run(params_obj=(matrix, vector), params_ineq=bounds).params.primal


report("quadratic program", jax.jit(program)(-jnp.arange(8.0)))

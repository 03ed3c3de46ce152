"""Optimistix: the README's fixed point, roots, least squares, minimisation, and derivatives of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx

from tests.ecosystem.report import explain, report, shard

y0 = jnp.array(1.0)
dt = jnp.array(0.1)


def implicit_euler(y, args):
    return y0 + jnp.tanh(y) * dt


solver = optx.Newton(rtol=1e-5, atol=1e-5)
report("readme", optx.fixed_point(implicit_euler, solver, y0).value)

rng = np.random.default_rng(0)
x = shard(rng.uniform(-1, 1, size=64).astype(np.float32), "data")
target = shard((2.0 * np.exp(-0.7 * np.asarray(x)) + 0.3).astype(np.float32), "data")


def residuals(parameters, data):
    inputs, outputs = data
    return parameters["scale"] * jnp.exp(parameters["rate"] * inputs) + parameters["offset"] - outputs


start = {"offset": jnp.array(0.0), "rate": jnp.array(0.0), "scale": jnp.array(1.0)}
for name, solver in {
    "gauss newton": optx.GaussNewton(rtol=1e-6, atol=1e-6),
    "levenberg marquardt": optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6),
    "dogleg": optx.Dogleg(rtol=1e-6, atol=1e-6),
}.items():
    fit = jax.jit(lambda data, solver=solver: optx.least_squares(residuals, solver, start, data).value)
    report(f"least squares: {name}", jax.tree.leaves(fit((x, target))))


def sum_of_squares(parameters, data):
    return jnp.mean(residuals(parameters, data) ** 2)


for name, solver in {
    "bfgs": optx.BFGS(rtol=1e-5, atol=1e-6),
    "nonlinear cg": optx.NonlinearCG(rtol=1e-5, atol=1e-6),
    "adam": optx.OptaxMinimiser(optax.adam(3e-2), rtol=1e-4, atol=1e-4),
}.items():

    @jax.jit
    def minimum(data, solver=solver):
        best = optx.minimise(sum_of_squares, solver, start, data, max_steps=2000, throw=False).value
        return sum_of_squares(best, data)

    report(f"minimise: {name}", minimum((x, target)))
explain(minimum, (x, target))

simplex = optx.minimise(lambda y, _: jnp.sum((y - 1) ** 2), optx.NelderMead(1e-5, 1e-5), jnp.zeros(2))
report("minimise: nelder mead", simplex.value)
golden = optx.minimise(
    lambda y, _: (y - 0.3) ** 2, optx.GoldenSearch(1e-4, 1e-4), jnp.array(0.5), options={"lower": 0.0, "upper": 1.0}
)
report("minimise: golden", golden.value)


@jax.jit
def root(constants):
    def equation(y, constants):
        return jnp.tanh(y) + y**3 - constants

    return optx.root_find(equation, optx.Newton(rtol=1e-5, atol=1e-5), jnp.zeros(64), constants).value


report("root", root(x))
report("gradient of a root", jax.jit(jax.grad(lambda c: jnp.sum(root(c) ** 2)))(x))
bisection = optx.root_find(
    lambda y, c: y**3 - c, optx.Bisection(rtol=1e-5, atol=1e-5), 1.0, 2.0, options={"lower": 0.0, "upper": 2.0}
)
report("bisection", bisection.value)
chord = jax.vmap(lambda c: optx.root_find(lambda y, _: y**3 - c, optx.Chord(1e-4, 1e-4), c, throw=False).value)
report("chord", chord(jnp.array([1.0, 1.1])))
through = jax.grad(
    lambda rate: (
        optx.fixed_point(
            lambda y, rate: jnp.cos(rate * y),
            optx.FixedPointIteration(rtol=1e-6, atol=1e-6),
            1.0,
            rate,
            adjoint=optx.RecursiveCheckpointAdjoint(),
        ).value
    )
)
report("gradient through the iteration", through(0.8))

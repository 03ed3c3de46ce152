"""Diffrax: the README's ODE, adaptive and implicit solvers, batches of solves, gradients by two adjoints."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Dopri5, ODETerm, diffeqsolve

from tests.ecosystem.report import explain, report, shard


def decay(t, y, args):
    return -y


solution = diffeqsolve(ODETerm(decay), Dopri5(), t0=0, t1=1, dt0=0.1, y0=jnp.array([2.0, 3.0]))
report("readme", solution.ys)


def lotka_volterra(t, y, args):
    a, b, c, d = args
    prey, predator = y
    return jnp.stack([a * prey - b * prey * predator, d * prey * predator - c * predator])


def trajectory(args, y0, solver, adjoint=None):
    return diffeqsolve(
        ODETerm(lotka_volterra),
        solver,
        t0=0.0,
        t1=5.0,
        dt0=0.1,
        y0=y0,
        args=args,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 5.0, 6)),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-5),
        adjoint=adjoint or diffrax.RecursiveCheckpointAdjoint(),
    )


rates, start = jnp.array([1.1, 0.4, 0.4, 0.1]), jnp.array([10.0, 5.0])
for solver in (diffrax.Tsit5(), diffrax.Kvaerno3()):
    run = jax.jit(lambda args, y0, solver=solver: trajectory(args, y0, solver).ys)
    report(type(solver).__name__, run(rates, start))
starts = shard(np.linspace([8, 4], [12, 6], 8).astype(np.float32), "data")
batched = jax.jit(jax.vmap(lambda y0: trajectory(rates, y0, diffrax.Tsit5()).ys))
report("batch", batched(starts))
for adjoint in (diffrax.RecursiveCheckpointAdjoint(), diffrax.BacksolveAdjoint()):

    @jax.jit
    @jax.grad
    def gradient(args, adjoint=adjoint):
        ys = jax.vmap(lambda y0: trajectory(args, y0, diffrax.Tsit5(), adjoint).ys)(starts)
        return jnp.mean(ys[:, -1] ** 2)

    report(f"gradient by {type(adjoint).__name__}", gradient(rates))
    explain(gradient, rates)

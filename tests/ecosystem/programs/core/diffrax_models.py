"""Diffrax: a neural ODE that is trained, an SDE, an event, dense output."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from diffrax import ODETerm, diffeqsolve

from tests.ecosystem.report import explain, report, shard


class NeuralODE(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, ts, y0):
        solution = diffeqsolve(
            ODETerm(lambda t, y, args: self.mlp(y)),
            diffrax.Tsit5(),
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=ts),
        )
        return solution.ys


model = NeuralODE(eqx.nn.MLP(2, 2, 16, 2, activation=jax.nn.softplus, key=jr.PRNGKey(0)))
ts = jnp.linspace(0.0, 1.0, 5)
ys = shard(np.random.default_rng(0).normal(size=(8, 5, 2)).astype(np.float32), "data")
optimizer = optax.adabelief(3e-3)
state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_value_and_grad
def loss(model, ys):
    return jnp.mean((ys - jax.vmap(model, in_axes=(None, 0))(ts, ys[:, 0])) ** 2)


@eqx.filter_jit
def step(model, state, ys):
    value, grads = loss(model, ys)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(model, updates), state, value


losses = []
for _ in range(3):
    model, state, value = step(model, state, ys)
    losses.append(float(value))
report("neural ODE", losses)
explain(jax.jit(lambda ys: loss(model, ys)), ys)


@jax.jit
def brownian(key):
    path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(), key=key)
    terms = diffrax.MultiTerm(ODETerm(lambda t, y, args: -y), diffrax.ControlTerm(lambda t, y, args: 0.1 * t, path))
    return diffeqsolve(terms, diffrax.Euler(), t0=0.0, t1=1.0, dt0=0.05, y0=1.0).ys


report("SDE", jax.vmap(brownian)(jr.split(jr.PRNGKey(1), 4)))


def falls(t, y, args):
    _, velocity = y
    return velocity, -8.0


event = diffrax.Event(lambda t, y, args, **kwargs: y[0])
landing = diffeqsolve(
    ODETerm(falls), diffrax.Tsit5(), t0=0.0, t1=jnp.inf, dt0=0.1, y0=(10.0, 0.0), event=event, max_steps=200
)
report("event", landing.ts)
dense = diffeqsolve(
    ODETerm(lambda t, y, args: -y),
    diffrax.Dopri5(),
    t0=0,
    t1=1,
    dt0=0.1,
    y0=jnp.array([2.0, 3.0]),
    saveat=diffrax.SaveAt(dense=True),
)
report("dense", dense.evaluate(0.33))

"""quadax: the README's adaptive quadrature, other rules, Romberg, infinite intervals, sampled integrals, derivatives of
integrals, sharded batches of integrals.
"""

import jax
import jax.numpy as jnp
import numpy as np
import quadax

from tests.ecosystem.report import report, shard

tolerances = {"epsabs": 1e-5, "epsrel": 1e-5}


def integrand(t, power=1.0):
    return t**power * jnp.log1p(t)


for rule in (quadax.quadgk, quadax.quadts, quadax.romberg):
    value, info = rule(integrand, jnp.array([0.0, 1.0]), **tolerances)
    report(rule.__name__, value)
    report(f"status of {rule.__name__}", info.status)
interval = jnp.array([-jnp.inf, 0.0, jnp.inf])
report("infinite, with a breakpoint", quadax.quadgk(lambda t: jnp.exp(-jnp.abs(t)), interval, **tolerances)[0])


def integral(power, upper):
    return quadax.quadgk(integrand, jnp.array([0.0, 1.0]) * upper, args=(power,), **tolerances)[0]


powers = shard(np.linspace(0.5, 3.0, 16, dtype=np.float32), "data")
uppers = shard(np.linspace(0.5, 2.0, 16, dtype=np.float32), "data")
batch, derivatives = jax.jit(jax.vmap(jax.value_and_grad(integral, (0, 1))))(powers, uppers)
report("batch", batch)
report("derivatives", derivatives)

samples = shard(
    np.sin(np.linspace(0, 3, 33, dtype=np.float32))[None] * np.arange(1, 9, dtype=np.float32)[:, None], "data"
)
report("simpson", jax.jit(lambda y: quadax.simpson(y, dx=3 / 32))(samples))
report("trapezoid", jax.jit(lambda y: quadax.trapezoid(y, dx=3 / 32))(samples))
report("cumulative", jax.jit(lambda y: quadax.cumulative_simpson(y, dx=3 / 32))(samples))
report("fixed order", quadax.GaussKronrodRule(order=21).integrate(integrand, 0.0, 1.0, ())[0])

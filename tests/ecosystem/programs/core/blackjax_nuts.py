"""BlackJAX: NUTS."""

import blackjax
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np

from tests.ecosystem.report import report, shard

observed = shard(np.random.default_rng(0).normal(10, 20, size=1000).astype(np.float32), "data")


def logdensity_fn(x):
    logpdf = stats.norm.logpdf(observed, x["loc"], x["scale"])
    return jnp.sum(logpdf)


nuts = blackjax.nuts(logdensity_fn, 1e-2, jnp.array([0.5, 0.01]))
state = nuts.init({"loc": 1.0, "scale": 2.0})
step = jax.jit(nuts.step)
positions = []
for key in jax.random.split(jax.random.key(0), 3):
    state, info = step(key, state)
    positions.append([float(state.position["loc"]), float(state.position["scale"])])
report("first steps", positions[0])

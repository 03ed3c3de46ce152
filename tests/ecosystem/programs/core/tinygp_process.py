"""tinygp: log probability of a Gaussian process, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from tinygp import GaussianProcess, kernels

from tests.ecosystem.report import report

x = np.sort(np.random.default_rng(0).uniform(0, 10, 20)).astype(np.float32)
y = np.sin(x).astype(np.float32)


@jax.jit
def log_probability(parameters):
    kernel = jnp.exp(parameters["amplitude"]) * kernels.Matern32(jnp.exp(parameters["scale"]))
    return GaussianProcess(kernel, x, diag=0.1).log_probability(y)


parameters = {"amplitude": 0.1, "scale": 0.3}
report("value", log_probability(parameters))
report("gradient", list(map(float, jax.tree.leaves(jax.grad(log_probability)(parameters)))))

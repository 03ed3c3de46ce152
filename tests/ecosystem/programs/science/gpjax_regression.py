"""GPJax: a Gaussian process regression that is fitted, predictions, kernels, a sparse variational process trained on
batches, with sharded data.
"""

import gpjax as gpx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import config

from tests.ecosystem.report import report, shard

config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-3, 3, size=(24, 1)), axis=0)
y = np.sin(4 * x) + np.cos(2 * x) + 0.3 * rng.normal(size=x.shape)
x, y = shard(x, "data"), shard(y, "data")
data = gpx.Dataset(X=x, y=y)
tests = jnp.linspace(-3.5, 3.5, 8)[:, None]

for name, kernel in {
    "Matern": gpx.kernels.Matern32(),
    "sum": gpx.kernels.Matern52() + gpx.kernels.Linear(),
    "product": gpx.kernels.Periodic() * gpx.kernels.RationalQuadratic(),
}.items():
    report(f"covariance of {name}", kernel.cross_covariance(x[:6], tests))

prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=gpx.kernels.RBF())
posterior = prior * gpx.likelihoods.Gaussian()
report("prior covariance", prior.predict(tests).covariance())
negative_mll = lambda model, data: -gpx.objectives.conjugate_mll(model, data)  # noqa: E731
report("log likelihood", gpx.objectives.conjugate_mll(posterior, data))
fitted, history = gpx.fit(
    model=posterior,
    objective=negative_mll,
    train_data=data,
    optim=optax.adam(0.05),
    num_iters=10,
    key=jr.key(1),
    verbose=False,
)
report("losses", history)
latent = fitted.predict(tests, train_data=data)
predictive = fitted.likelihood(latent)
report("mean", predictive.mean)
report("variance", predictive.variance)

sparse = gpx.variational_families.VariationalGaussian(model=posterior, inducing_inputs=tests)
_, history = gpx.fit(
    model=sparse,
    objective=lambda model, data: -gpx.objectives.elbo(model, data),
    train_data=data,
    optim=optax.adam(0.05),
    num_iters=5,
    batch_size=8,
    key=jr.key(3),
    verbose=False,
)
report("elbo", history)

"""NumPyro: the README's eight schools with NUTS, predictive samples, a sharded logistic regression with NUTS, SVI."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import TransformReparam
from numpyro.infer.util import log_density

from tests.ecosystem.report import explain, report, shard

J = 8
y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J), numpyro.handlers.reparam(config={"theta": TransformReparam()}):
        theta = numpyro.sample(
            "theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(mu, tau))
        )
    numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


mcmc = MCMC(NUTS(eight_schools), num_warmup=20, num_samples=20, progress_bar=False)
mcmc.warmup(random.PRNGKey(0), J, sigma, y=y, collect_warmup=True)
warmup = mcmc.get_samples()
# Trajectories amplify differences of rounding: only the first samples are equal.
report("first samples", [float(x) for name in ("mu", "tau", "theta_base") for x in np.ravel(warmup[name][:2])])
mcmc.run(random.PRNGKey(0), J, sigma, y=y, extra_fields=("potential_energy",))
samples = mcmc.get_samples()
report("shapes", [f"{name} {samples[name].shape}" for name in sorted(samples)])
report("finite", str(bool(jnp.isfinite(mcmc.get_extra_fields()["potential_energy"]).all())))
fixed = {"mu": jnp.full(5, 4.0), "tau": jnp.linspace(1.0, 3.0, 5), "theta_base": jnp.ones((5, J)) * 0.3}
predictive = Predictive(eight_schools, fixed)
report("predictive", predictive(random.PRNGKey(1), J, sigma)["obs"])

rng = np.random.default_rng(0)
features = shard(rng.normal(size=(64, 4)).astype(np.float32), "data")
labels = shard((np.asarray(features) @ [1.0, -2.0, 0.5, 0.0] > rng.normal(size=64)).astype(np.float32), "data")


def logistic(features, labels=None):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    weights = numpyro.sample("weights", dist.Normal(0, scale).expand([4]).to_event(1))
    bias = numpyro.sample("bias", dist.StudentT(3.0, 0.0, 1.0))
    with numpyro.plate("rows", features.shape[0]):
        numpyro.sample("labels", dist.Bernoulli(logits=features @ weights + bias), obs=labels)


params = {"scale": jnp.float32(1.2), "weights": jnp.array([0.5, -1.0, 0.2, 0.1]), "bias": jnp.float32(0.1)}


@jax.jit
def density(params, features, labels):
    return log_density(logistic, (features,), {"labels": labels}, params)[0]


gradient = jax.jit(jax.value_and_grad(density))
explain(gradient, params, features, labels)
value, grads = gradient(params, features, labels)
report("log density", [float(value), *(float(x) for leaf in jax.tree.leaves(grads) for x in np.ravel(leaf))])
kernel = NUTS(logistic, step_size=0.05, adapt_step_size=False, max_tree_depth=3)
mcmc = MCMC(kernel, num_warmup=0, num_samples=3, progress_bar=False)
mcmc.run(random.PRNGKey(2), features, labels, init_params={"scale": 0.1, "weights": jnp.zeros(4), "bias": 0.0})
report("logistic", [float(leaf[-1].sum()) for _, leaf in sorted(mcmc.get_samples().items())])

svi = SVI(logistic, AutoNormal(logistic), numpyro.optim.Adam(0.05), Trace_ELBO())
result = svi.run(random.PRNGKey(3), 20, features, labels, progress_bar=False)
report("svi losses", result.losses)
report("svi locations", result.params["weights_auto_loc"])

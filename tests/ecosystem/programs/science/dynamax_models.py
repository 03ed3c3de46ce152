"""dynamax: the README's Gaussian hidden Markov model fitted by EM, on one series and on a sharded batch, most
likely states, a parallel Kalman smoother and the gradient of its likelihood.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from dynamax.hidden_markov_model import GaussianHMM
from dynamax.linear_gaussian_ssm import LinearGaussianSSM
from dynamax.linear_gaussian_ssm.parallel_inference import lgssm_smoother

from tests.ecosystem.report import report, shard

model_key, data_key, start_key = jr.split(jr.PRNGKey(0), 3)
hmm = GaussianHMM(3, 2)
true_params, _ = hmm.initialize(model_key)
true_states, emissions = hmm.sample(true_params, data_key, 40)
report("sampled states", true_states)
report("sampled emissions", emissions)

params, props = hmm.initialize(start_key, method="prior")
params, log_likelihoods = hmm.fit_em(params, props, emissions, num_iters=4, verbose=False)
report("em", log_likelihoods)
report("fitted", np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)]))
report("smoothed", hmm.smoother(params, emissions).smoothed_probs)
report("most likely states", jax.jit(hmm.most_likely_states)(params, emissions))

batch = jax.vmap(lambda key: hmm.sample(true_params, key, 40)[1])(jr.split(data_key, 16))
batch = shard(batch, "data")
start, props = hmm.initialize(start_key, method="prior")
_, log_likelihoods = hmm.fit_em(start, props, batch, num_iters=3, verbose=False)
report("em of the batch", log_likelihoods)
report("marginals", jax.jit(jax.vmap(hmm.marginal_log_prob, (None, 0)))(true_params, batch))

linear = LinearGaussianSSM(state_dim=3, emission_dim=2)
linear_params, _ = linear.initialize(
    jr.PRNGKey(1), dynamics_weights=0.9 * jnp.eye(3) + 0.05, emission_weights=jnp.eye(2, 3)
)
_, series = linear.sample(linear_params, data_key, 16)
in_parallel = jax.jit(lgssm_smoother)(linear_params, shard(series, "data"))
report("parallel", [float(in_parallel.marginal_loglik), *np.ravel(in_parallel.smoothed_means).tolist()])


def likelihood(scale, series):
    scaled = linear_params._replace(dynamics=linear_params.dynamics._replace(cov=scale * jnp.eye(3)))
    return linear.marginal_log_prob(scaled, series)


report("gradient", jax.jit(jax.grad(likelihood))(0.3, series))

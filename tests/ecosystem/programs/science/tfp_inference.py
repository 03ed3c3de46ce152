"""TensorFlow Probability (tfp-nightly): a joint distribution of a sharded regression, Hamiltonian Monte Carlo with step
size adaptation, variational inference, bijectors, Gaussian processes, L-BFGS.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tensorflow_probability.substrates import jax as tfp

from tests.ecosystem.report import report, shard

tfd, tfb, tfpk = tfp.distributions, tfp.bijectors, tfp.math.psd_kernels
key = jax.random.PRNGKey(0)
rng = np.random.default_rng(0)

for name, distribution in {
    "gamma": tfd.Gamma(jnp.array([0.5, 3.0]), 2.0),
    "mixture": tfd.MixtureSameFamily(tfd.Categorical(logits=[0.0, 1.0]), tfd.Normal([-1.0, 2.0], 0.5)),
    "multivariate normal": tfd.MultivariateNormalTriL([1.0, -1.0], jnp.array([[1.0, 0.0], [0.5, 2.0]])),
    "truncated normal": tfd.TruncatedNormal(0.0, 1.0, -1.0, 2.0),
    "wishart": tfd.WishartTriL(5.0, jnp.eye(2)),
}.items():
    drawn = jax.jit(lambda key, distribution=distribution: distribution.sample(4, seed=key))(key)
    report(name, [float(jnp.sum(drawn)), *np.ravel(distribution.log_prob(drawn)).tolist()])

features = rng.normal(size=(64, 4)).astype(np.float32)
observed = shard((features @ [1.0, -2.0, 0.5, 0.0] + rng.normal(size=64) / 2).astype(np.float32), "data")
features = shard(features, "data")
model = tfd.JointDistributionNamedAutoBatched(
    {
        "scale": tfd.HalfNormal(1.0),
        "weights": tfd.Sample(tfd.Normal(0.0, 2.0), 4),
        "targets": lambda weights, scale: tfd.Normal(features @ weights, scale),
    }
)
drawn = model.sample(3, seed=key)
report("joint samples", np.concatenate([np.ravel(drawn[name]) for name in sorted(drawn)]))
report("joint log probability", model.log_prob(drawn))


def run_hmc(key, observed):
    def target(scale, weights):
        return model.log_prob(scale=scale, weights=weights, targets=observed)

    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, step_size=0.05, num_leapfrog_steps=3)
    kernel = tfp.mcmc.TransformedTransitionKernel(kernel, [tfb.Softplus(), tfb.Identity()])
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(kernel, num_adaptation_steps=4)
    return tfp.mcmc.sample_chain(6, [jnp.float32(1), jnp.zeros(4)], kernel=kernel, trace_fn=None, seed=key)


states = jax.jit(run_hmc)(key, observed)
report("hmc", np.concatenate([np.ravel(x) for x in states]))

pinned = model.experimental_pin(targets=observed)
surrogate_init, surrogate_fn = tfp.experimental.vi.build_factored_surrogate_posterior_stateless(
    event_shape=pinned.event_shape, bijector=pinned.experimental_default_event_space_bijector()
)


def variational_loss(*parameters, seed):
    surrogate = surrogate_fn(*parameters)
    return tfp.vi.monte_carlo_variational_loss(pinned.unnormalized_log_prob, surrogate, sample_size=4, seed=seed)


parameters, losses = tfp.math.minimize_stateless(
    variational_loss, init=surrogate_init(seed=key), num_steps=5, optimizer=optax.adam(0.1), seed=key
)
report("variational losses", losses)

x = jnp.linspace(0.1, 0.9, 6)
for name, bijector in {
    "chain": tfb.Chain([tfb.Softplus(), tfb.Shift(1.0), tfb.Scale(2.0)]),
    "simplex": tfb.SoftmaxCentered(),
}.items():
    y = bijector.forward(x)
    determinant = bijector.forward_log_det_jacobian(x, bijector.forward_min_event_ndims)
    report(f"bijector {name}", np.concatenate([np.ravel(y), np.ravel(determinant), np.ravel(bijector.inverse(y))]))

inputs = shard(np.linspace(-1, 1, 16, dtype=np.float32)[:, None], "data")


@jax.jit
def likelihood(amplitude, length_scale):
    kernel = tfpk.MaternFiveHalves(amplitude, length_scale)
    return tfd.GaussianProcess(kernel, inputs, observation_noise_variance=0.1).log_prob(jnp.sin(3 * inputs[:, 0]))


report("gaussian process", [float(x) for x in (likelihood(1.0, 0.5), *jax.grad(likelihood, (0, 1))(1.0, 0.5))])


@jax.jit
def minimize(start):
    def chain(x):
        return jnp.sum(jnp.cosh(x - jnp.linspace(0, 1, 8))) + jnp.sum((x[1:] - x[:-1]) ** 2)

    return tfp.optimizer.lbfgs_minimize(jax.value_and_grad(chain), start, max_iterations=15, tolerance=1e-5)


report("lbfgs", minimize(shard(np.zeros(8, np.float32), "data")).position)

"""Distrax: the README's distributions, KL divergences and bijectors, with those of TensorFlow Probability, `Lambda`, a
normalizing flow, a hidden Markov model.
"""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tensorflow_probability.substrates import jax as tfp

from tests.ecosystem.report import explain, report, shard

tfd, tfb = tfp.distributions, tfp.bijectors
key = jax.random.PRNGKey(1234)
mu, sigma = jnp.array([-1.0, 0.0, 1.0]), jnp.array([0.1, 0.2, 0.3])
mu_1, sigma_1 = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.2, 0.3, 0.4])

ours, theirs = distrax.MultivariateNormalDiag(mu, sigma), tfd.MultivariateNormalDiag(mu, sigma)
samples = ours.sample(seed=key)
report("log_prob", [float(ours.log_prob(samples)), float(theirs.log_prob(samples))])
other = tfd.MultivariateNormalDiag(mu_1, sigma_1)
report("kl_divergence", [float(ours.kl_divergence(other)), float(tfd.kl_divergence(ours, other))])
jitted_kl = jax.jit(lambda d_0, d_1: d_0.kl_divergence(d_1))
report("jitted kl_divergence", jitted_kl(ours, distrax.MultivariateNormalDiag(mu_1, sigma_1)))
report("sample_and_log_prob", np.concatenate([np.ravel(x) for x in ours.sample_and_log_prob(seed=key)]))
independent = distrax.Independent(tfd.Normal(mu, sigma_1), reinterpreted_batch_ndims=1)
report("independent", independent.log_prob(independent.sample(seed=key)))
wrapped = tfd.Sample(distrax.to_tfp(distrax.Normal(0.0, 1.0)), sample_shape=[3])
report("to_tfp", wrapped.log_prob(wrapped.sample(seed=key)))

for name, distribution in {
    "Bernoulli": distrax.Bernoulli(logits=jnp.array([-1.0, 0.5])),
    "Beta": distrax.Beta(2.0, jnp.array([3.0, 0.5])),
    "Categorical": distrax.Categorical(logits=jnp.arange(4.0)),
    "Dirichlet": distrax.Dirichlet(jnp.array([1.0, 2.0, 3.0])),
    "Gamma": distrax.Gamma(jnp.array([2.0, 3.0]), 1.5),
    "Gumbel": distrax.Gumbel(0.5, 2.0),
    "Laplace": distrax.Laplace(0.0, jnp.array([1.0, 2.0])),
    "Logistic": distrax.Logistic(1.0, 2.0),
    "LogStddevNormal": distrax.LogStddevNormal(0.0, -1.0),
    "MixtureSameFamily": distrax.MixtureSameFamily(
        distrax.Categorical(logits=jnp.array([0.2, 0.8])), distrax.Normal(jnp.array([-1.0, 2.0]), 0.5)
    ),
    "Multinomial": distrax.Multinomial(5, logits=jnp.zeros(3)),
    "OneHotCategorical": distrax.OneHotCategorical(logits=jnp.arange(3.0)),
    "Uniform": distrax.Uniform(-1.0, 2.0),
    "VonMises": distrax.VonMises(0.5, 2.0),
}.items():
    drawn = jax.jit(lambda distribution, key: distribution.sample(seed=key, sample_shape=(5,)))(distribution, key)
    report(name, [float(jnp.sum(drawn)), float(jnp.sum(distribution.log_prob(drawn)))])

x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
for name, bijector in {
    "chain": distrax.Chain([tfb.Tanh(), distrax.Tanh()]),
    "inverse": distrax.Inverse(distrax.Chain([distrax.Sigmoid(), distrax.ScalarAffine(0.5, 2.0)])),
    "lambda": distrax.Lambda(lambda x: jnp.sinh(2 * x + 3)),
    "block": distrax.Block(distrax.Tanh(), ndims=1),
    "tfp": tfb.Chain([tfb.Tanh(), distrax.to_tfp(distrax.Tanh())]),
}.items():
    inputs = jax.nn.sigmoid(x) if name == "inverse" else x
    results = bijector.forward(inputs), bijector.forward_log_det_jacobian(inputs, *([0] if name == "tfp" else []))
    if name in ("chain", "lambda"):
        results += (bijector.inverse(results[0]),)
    report(f"bijector {name}", np.concatenate([np.ravel(result) for result in results]))

hmm = distrax.HMM(
    distrax.Categorical(probs=jnp.array([0.6, 0.4])),
    distrax.Categorical(probs=jnp.array([[0.7, 0.3], [0.2, 0.8]])),
    distrax.Normal(jnp.array([-1.0, 1.0]), 0.5),
)
_, _, smoothed, log_likelihood = jax.jit(hmm.forward_backward)(jnp.array([-1.1, -0.7, 0.9, 1.2]))
report("hmm", [float(log_likelihood), *np.ravel(smoothed).tolist()])


def flow(params):
    """Return a flow of two affine coupling layers over a batch of points."""

    def coupling(params):
        def conditioner(x):
            return (jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]).reshape(*x.shape, 2)

        return conditioner

    mask = jnp.arange(4) % 2 == 0
    layers = [
        distrax.MaskedCoupling(
            mask if index else ~mask, coupling(layer), lambda p: distrax.ScalarAffine(p[..., 0], log_scale=p[..., 1])
        )
        for index, layer in enumerate(params)
    ]
    return distrax.Transformed(
        distrax.Independent(distrax.Normal(jnp.zeros(4), jnp.ones(4)), 1), distrax.Inverse(distrax.Chain(layers))
    )


rng = np.random.default_rng(0)
points = shard(rng.normal(1, 2, size=(64, 4)).astype(np.float32), "data")
params = [
    {
        "w1": shard(rng.normal(size=(4, 16)).astype(np.float32) / 4, None, "model"),
        "b1": shard(np.zeros(16, np.float32), "model"),
        "w2": shard(rng.normal(size=(16, 8)).astype(np.float32) / 8, "model"),
    }
    for _ in range(2)
]
optimizer = optax.adam(1e-2)
state = optimizer.init(params)


@jax.jit
def step(params, state, points):
    loss, grads = jax.value_and_grad(lambda params: -flow(params).log_prob(points).mean())(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


explain(step, params, state, points)
losses = []
for _ in range(5):
    params, state, loss = step(params, state, points)
    losses.append(float(loss))
report("flow", losses)

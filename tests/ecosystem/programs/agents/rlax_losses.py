"""RLax: the README's Q-learning; V-trace, GAE, lambda and n-step returns, Retrace, categorical and quantile Q-learning,
policy gradients, MPO, Pop-Art, transforms, exploration, and an actor-critic that is trained.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

from tests.ecosystem.report import explain, report, shard, spec_text

BATCH, STEPS, ACTIONS, ATOMS = 16, 6, 4, 11
rng = np.random.default_rng(0)


def normal(*shape):
    return shard(rng.normal(size=shape).astype(np.float32), "data")


def actions(*shape):
    return shard(rng.integers(0, ACTIONS, shape).astype(np.int32), "data")


q_before, q_after, chosen, rewards = normal(BATCH, ACTIONS), normal(BATCH, ACTIONS), actions(BATCH), normal(BATCH)
discounts = shard(np.full(BATCH, 0.9, np.float32), "data")


def squared_error(q_before, loss, *others):
    errors = jax.vmap(loss)(q_before, chosen, rewards, discounts, q_after, *others)
    return jnp.mean(rlax.l2_loss(errors)), errors


for name, loss, others in [
    ("Q-learning", rlax.q_learning, ()),
    ("double Q-learning", rlax.double_q_learning, (q_before,)),
    ("expected SARSA", rlax.expected_sarsa, (jax.nn.softmax(q_before),)),
]:
    gradient = jax.jit(jax.grad(squared_error, has_aux=True), static_argnums=1)
    gradients, errors = gradient(q_before, loss, *others)
    report(name, errors)
    report(f"{name}: gradient", gradients)
report("Q-learning: sharding of the errors", spec_text(errors))

sequences = {
    "rewards": normal(BATCH, STEPS),
    "discounts": shard(np.full((BATCH, STEPS), 0.95, np.float32), "data"),
    "values": normal(BATCH, STEPS),
    "next values": normal(BATCH, STEPS),
    "ratios": shard(rng.uniform(0.5, 1.5, (BATCH, STEPS)).astype(np.float32), "data"),
    "q": normal(BATCH, STEPS, ACTIONS),
    "next q": normal(BATCH, STEPS, ACTIONS),
    "actions": actions(BATCH, STEPS),
    "next actions": actions(BATCH, STEPS),
}


@jax.jit
@jax.vmap
def multistep(x):
    policy = jax.nn.softmax(x["next q"])
    values = jnp.concatenate([x["values"][:1], x["next values"]])
    r, d = x["rewards"], x["discounts"]
    return {
        "lambda returns": rlax.lambda_returns(r, d, x["next values"], 0.9),
        "n-step returns": rlax.n_step_bootstrapped_returns(r, d, x["next values"], 3),
        "GAE": rlax.truncated_generalized_advantage_estimation(r, d, 0.95, values),
        "V-trace": rlax.vtrace(x["values"], x["next values"], r, d, x["ratios"], 0.9),
        "V-trace advantages": rlax.vtrace_td_error_and_advantage(
            x["values"], x["next values"], r, d, x["ratios"]
        ).pg_advantage,
        "Q(lambda)": rlax.q_lambda(x["q"], x["actions"], r, d, x["next q"], 0.8),
        "transformed Q(lambda)": rlax.transformed_q_lambda(x["q"], x["actions"], r, d, x["next q"], 0.8),
        "Retrace": rlax.retrace(
            x["q"], x["next q"], x["actions"], x["next actions"], r, d, policy, x["ratios"] / 2, 0.9
        ),
        "entropy": rlax.entropy_loss(x["q"], jnp.ones(STEPS)),
        "policy gradient": rlax.policy_gradient_loss(x["q"], x["actions"], x["values"], jnp.ones(STEPS)),
        "clipped surrogate": rlax.clipped_surrogate_pg_loss(x["ratios"], x["values"], 0.2),
    }


for name, result in multistep(sequences).items():
    report(f"sequences: {name}", result)

atoms = jnp.linspace(-3.0, 3.0, ATOMS)
logits_before, logits_after = normal(BATCH, ACTIONS, ATOMS), normal(BATCH, ACTIONS, ATOMS)
quantiles = (jnp.arange(ATOMS) + 0.5) / ATOMS


@jax.jit
def distributional(before, after):
    categorical = jax.vmap(lambda b, a, r, d, t: rlax.categorical_q_learning(atoms, b, a, r, d, atoms, t))(
        before, chosen, rewards, discounts, after
    )
    quantile = jax.vmap(lambda b, a, r, d, t: rlax.quantile_q_learning(b, quantiles, a, r, d, t, t, huber_param=1.0))(
        before.swapaxes(1, 2), chosen, rewards, discounts, after.swapaxes(1, 2)
    )
    projected = jax.vmap(rlax.categorical_l2_project, in_axes=(None, 0, None))(
        atoms * 0.5, jax.nn.softmax(after[:, 0]), atoms
    )
    return categorical, quantile, projected, rlax.transform_to_2hot(rewards, -3.0, 3.0, ATOMS)


names = ("categorical Q-learning", "quantile Q-learning", "projection", "two-hot encoding")
for name, result in zip(names, distributional(logits_before, logits_after), strict=True):
    report(name, result)

softmax = rlax.softmax(temperature=0.5)
report("samples of softmax", jax.jit(softmax.sample)(jax.random.key(0), q_before))
report("log-probabilities of softmax", jax.jit(softmax.logprob)(chosen, q_before))
report("probabilities of epsilon-greedy", jax.jit(rlax.epsilon_greedy(0.1).probs)(q_before))
report("signed hyperbolic", rlax.signed_parabolic(rlax.signed_hyperbolic(q_before)) - q_before)
noise = rlax.add_ornstein_uhlenbeck_noise(jax.random.key(1), rewards, 0.1 * q_before[:, 0], 0.15, 0.2)
report("Ornstein-Uhlenbeck noise", noise)

weights = rlax.LagrangePenalty(alpha=jnp.array(0.1), epsilon=0.05)
mpo, statistics = jax.jit(
    lambda samples, q: rlax.mpo_loss(
        sample_log_probs=samples,
        sample_q_values=q,
        temperature_constraint=rlax.LagrangePenalty(jnp.array(0.7), 0.1),
        kl_constraints=[(samples.mean(0) ** 2, weights)],
    )
)(normal(8, BATCH), normal(8, BATCH))
report("MPO", mpo)
report("MPO: normalized weights", statistics.normalized_weights)

initialize, update_statistics = rlax.popart(3, 1e-1, 1e-2, 1e6)
layer = {"w": jnp.asarray(rng.normal(size=(5, 3)).astype(np.float32)), "b": jnp.zeros(3)}
statistics = initialize()
for _ in range(3):
    indices = shard(rng.integers(0, 3, BATCH).astype(np.int32), "data")
    layer, statistics = jax.jit(update_statistics)(layer, statistics, 5 + 2 * normal(BATCH), indices)
report("Pop-Art: scale", statistics.scale)
report("Pop-Art: weights", layer["w"])

observations = normal(BATCH, STEPS + 1, 8)
params = {
    "hidden": shard(rng.normal(scale=0.3, size=(8, 32)).astype(np.float32), None, "model"),
    "policy": shard(rng.normal(scale=0.3, size=(32, ACTIONS)).astype(np.float32), "model"),
    "value": shard(rng.normal(scale=0.3, size=32).astype(np.float32), "model"),
}
optimizer = optax.adam(1e-2)


def actor_critic(params, observations, taken, rewards, discounts):
    hidden = jnp.tanh(observations @ params["hidden"])
    logits, values = hidden[:, :-1] @ params["policy"], hidden @ params["value"]
    advantages = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(0, 0, None, 0))(
        rewards, discounts, 0.9, values
    )
    ones = jnp.ones((BATCH, STEPS))
    policy_loss = jax.vmap(rlax.policy_gradient_loss)(logits, taken, advantages, ones).mean()
    targets = jax.lax.stop_gradient(advantages + values[:, :-1])
    value_loss = rlax.l2_loss(values[:, :-1], targets).mean()
    return policy_loss + value_loss + 0.01 * jax.vmap(rlax.entropy_loss)(logits, ones).mean()


@jax.jit
def train(params, state, *batch):
    loss, gradients = jax.value_and_grad(actor_critic)(params, *batch)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


state = optimizer.init(params)
batch = (observations, sequences["actions"], sequences["rewards"], sequences["discounts"])
explain(train, params, state, *batch)
losses = []
for _ in range(6):
    params, state, loss = train(params, state, *batch)
    losses.append(float(loss))
report("actor-critic: losses", losses)
report("actor-critic: sharding of the hidden layer", spec_text(params["hidden"]))

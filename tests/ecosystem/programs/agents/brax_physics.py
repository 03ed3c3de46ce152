"""Brax: a batch of pendulums on the spring backend, a policy gradient through the physics, and PPO."""

import contextlib
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax

with contextlib.redirect_stdout(io.StringIO()):  # MJX prints that its optional engine is not installed
    from brax import envs
    from brax.training import acting, gradients
    from brax.training.agents.ppo import losses, networks

from tests.ecosystem.report import report, shard, spec_text

BATCH, STEPS = 8, 4
rng = np.random.default_rng(0)

env = envs.get_environment("inverted_pendulum", backend="spring")
starts = shard(jax.random.split(jax.random.PRNGKey(0), BATCH), "data")
weights = shard(rng.normal(scale=0.1, size=(env.observation_size, env.action_size)).astype(np.float32))


def play(weights, keys):
    """Return minus the rewards of a linear policy, and what it observes; it is differentiable through the physics."""

    def episode(key):
        def step(state, _):
            state = env.step(state, jnp.tanh(state.obs @ weights))
            return state, (state.reward - jnp.sum(state.obs**2), state.obs, state.done)

        return jax.lax.scan(step, env.reset(key), length=STEPS)[1]

    rewards, observations, ends = jax.vmap(episode)(keys)
    return -rewards.mean(), (observations, ends)


(cost, (observations, ends)), gradient = jax.jit(jax.value_and_grad(play, has_aux=True))(weights, starts)
report("pendulum: cost", cost)
report("pendulum: gradient times 1000", 1000 * gradient)
report("pendulum: observations", observations)
report("pendulum: ends", ends)
report("pendulum: sharding of the observations", spec_text(observations))

env = envs.training.wrap(envs.get_environment("fast"), episode_length=16)
network = networks.make_ppo_networks(2, 1, policy_hidden_layer_sizes=(16,), value_hidden_layer_sizes=(16,))
policy_key, value_key = jax.random.split(jax.random.PRNGKey(2))
params = losses.PPONetworkParams(network.policy_network.init(policy_key), network.value_network.init(value_key))
optimizer = optax.adam(1e-2)
loss = functools.partial(losses.compute_ppo_loss, ppo_network=network)
update = gradients.gradient_update_fn(loss, optimizer, pmap_axis_name=None, has_aux=True)


@jax.jit
def train(params, optimizer_state, state, key):
    """Play a few steps of all environments, and update the parameters by the loss of PPO."""
    key_play, key_loss = jax.random.split(key)
    policy = networks.make_inference_fn(network)((None, params.policy, params.value))
    state, transitions = acting.generate_unroll(env, state, policy, key_play, 4, extra_fields=("truncation",))
    transitions = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), transitions)
    (value, _), params, optimizer_state = update(params, None, transitions, key_loss, optimizer_state=optimizer_state)
    return params, optimizer_state, state, value, transitions.reward.mean()


optimizer_state, state = optimizer.init(params), jax.jit(env.reset)(starts)
history = []
for key in jax.random.split(jax.random.PRNGKey(3), 4):
    params, optimizer_state, state, value, reward = train(params, optimizer_state, state, key)
    history.append([float(value), float(reward)])
report("PPO: losses and rewards", history)
report("PPO: policy", [float(jnp.abs(x).sum()) for x in jax.tree.leaves(params.policy)])

"""Jumanji: the README's snake; batches of 2048, a maze and knapsacks with automatic resets, and a policy for the
knapsacks that is trained by REINFORCE.
"""

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from jumanji.wrappers import VmapAutoResetWrapper

from tests.ecosystem.report import report, shard

BATCH = 8

env = jumanji.make("Snake-v1")
report("readme: action", env.action_spec.generate_value())
state, timestep = jax.jit(env.reset)(jax.random.PRNGKey(0))
state, timestep = jax.jit(env.step)(state, env.action_spec.generate_value())
report("readme: grid", np.asarray(timestep.observation.grid).sum((0, 1)))
report("readme: fruit", [state.fruit_position.row, state.fruit_position.col])

ENVIRONMENTS = ("Game2048-v1", "Maze-v0", "Knapsack-v1")


def choose(key, observation):
    """Return a random valid action for each environment of a batch."""
    mask = observation.action_mask.reshape(BATCH, -1)
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf), axis=-1)


for name in ENVIRONMENTS:
    env = VmapAutoResetWrapper(jumanji.make(name))

    @jax.jit
    def episode(keys, actions_key, env=env):
        def step(carry, key):
            state, timestep = carry
            state, timestep = env.step(state, choose(key, timestep.observation))
            return (state, timestep), (timestep.reward, timestep.step_type)

        return jax.lax.scan(step, env.reset(keys), jax.random.split(actions_key, 6))

    keys = shard(jax.random.split(jax.random.PRNGKey(1), BATCH), "data")
    (state, timestep), (rewards, kinds) = episode(keys, jax.random.PRNGKey(2))
    report(f"{name}: rewards", rewards)
    report(f"{name}: kinds of steps", kinds)
    report(f"{name}: valid actions", np.asarray(timestep.observation.action_mask).reshape(BATCH, -1).sum(1))
    report(f"{name}: observations", [np.asarray(x, np.float64).sum() for x in jax.tree.leaves(timestep.observation)])

env = jumanji.make("Knapsack-v1")
rng = np.random.default_rng(0)
weights = shard(rng.normal(size=2).astype(np.float32))


def reinforce(weights, keys):
    def play(key):
        key_reset, key_actions = jax.random.split(key)
        state, timestep = env.reset(key_reset)

        def step(carry, key):
            state, timestep = carry
            seen = timestep.observation
            scores = jnp.stack([seen.values, seen.weights], axis=1) @ weights
            logits = jnp.where(seen.action_mask, scores, -1e9)
            action = jax.random.categorical(key, logits)
            state, timestep = env.step(state, action)
            return (state, timestep), (jax.nn.log_softmax(logits)[action], timestep.reward)

        _, (likelihoods, rewards) = jax.lax.scan(step, (state, timestep), jax.random.split(key_actions, 10))
        return likelihoods.sum(), rewards.sum()

    likelihoods, rewards = jax.vmap(play)(keys)
    return -jnp.mean(likelihoods * jax.lax.stop_gradient(rewards - rewards.mean())), rewards.mean()


train = jax.jit(jax.value_and_grad(reinforce, has_aux=True))
losses, rewards = [], []
for index in range(4):
    keys = shard(jax.random.split(jax.random.PRNGKey(index), BATCH), "data")
    (loss, reward), gradient = train(weights, keys)
    weights = weights - 0.1 * gradient
    losses.append(float(loss))
    rewards.append(float(reward))
report("REINFORCE: losses", losses)
report("REINFORCE: rewards", rewards)
report("REINFORCE: weights", weights)

"""gymnax: the README's environment, batches of episodes with `vmap` and `scan` in classic control, bsuite, MinAtar and
misc environments, derivatives of a transition, a policy that is trained by REINFORCE.
"""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import report, shard, spec_text

BATCH, STEPS = 8, 10
keys = jax.random.split(jax.random.key(0), BATCH)


def rollout(env, params, key, policy):
    """Return observations, rewards and ends of one episode."""
    key_reset, key_episode = jax.random.split(key)
    observation, state = env.reset(key_reset, params)

    def step(carry, key):
        observation, state = carry
        key_act, key_step = jax.random.split(key)
        action, likelihood = policy(key_act, observation)
        following, state, reward, terminated, truncated, _ = env.step(key_step, state, action, params)
        return (following, state), (following, reward, terminated | truncated, likelihood)

    return jax.lax.scan(step, (observation, state), jax.random.split(key_episode, STEPS))[1]


for name in ("Pendulum-v1", "Catch-bsuite", "Breakout-MinAtar", "FourRooms-misc"):
    env, params = gymnax.make(name)
    space = env.action_space(params)
    batch = jax.jit(
        jax.vmap(
            lambda key, env=env, params=params, space=space: rollout(
                env, params, key, lambda key, _: (space.sample(key), 0.0)
            )
        )
    )
    observations, rewards, ends, _ = batch(shard(keys, "data"))
    report(f"{name}: observations", observations.astype(jnp.float32).sum(range(2, observations.ndim)))
    report(f"{name}: rewards", rewards)
    report(f"{name}: ends", ends)
report("sharding of the rewards", spec_text(rewards))

env, params = gymnax.make("Pendulum-v1")
smooth = env.with_transition_gradients()
observation, state = smooth.reset(jax.random.key(1), params)
slope = jax.grad(lambda action: smooth.step(jax.random.key(2), state, action, params)[1].theta_dot)(jnp.array([0.5]))
report("derivative of a transition", slope)

env, params = gymnax.make("CartPole-v1")
rng = np.random.default_rng(0)
weights = {
    "hidden": shard(rng.normal(scale=0.5, size=(4, 16)).astype(np.float32), None, "model"),
    "out": shard(rng.normal(scale=0.5, size=(16, 2)).astype(np.float32), "model"),
}


def reinforce(weights, keys):
    def policy(key, observation):
        logits = jnp.tanh(observation @ weights["hidden"]) @ weights["out"]
        action = jax.random.categorical(key, logits)
        return action, jax.nn.log_softmax(logits)[action]

    observations, rewards, _, likelihoods = jax.vmap(lambda key: rollout(env, params, key, policy))(keys)
    returns = jnp.cumsum(rewards[:, ::-1], axis=1)[:, ::-1] - jnp.abs(observations[..., 2])
    return -jnp.mean(likelihoods * jax.lax.stop_gradient(returns - returns.mean(0)))


@jax.jit
def train(weights, keys):
    loss, gradients = jax.value_and_grad(reinforce)(weights, keys)
    return jax.tree.map(lambda x, g: x - 0.05 * g, weights, gradients), loss


losses = []
for index in range(4):
    weights, loss = train(weights, shard(jax.random.split(jax.random.key(index), BATCH), "data"))
    losses.append(float(loss))
report("REINFORCE: losses", losses)
report("REINFORCE: weights", weights["out"])

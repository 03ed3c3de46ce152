"""Pgx: the README's batch of random games, for tic-tac-toe, Go, 2048 and Kuhn poker, with automatic
resets, and REINFORCE for a policy of tic-tac-toe.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from pgx.experimental import auto_reset

from tests.ecosystem.report import report, shard, spec_text

GAMES = {
    "tic_tac_toe": 9,
    "go_9x9": 6,
    "2048": 8,
    "kuhn_poker": 4,
}
BATCH = 8


def random_action(key, state):
    logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
    return jax.random.categorical(key, logits, axis=-1)


for name, moves in GAMES.items():
    env = pgx.make(name)
    init, step = jax.jit(jax.vmap(env.init)), jax.jit(jax.vmap(auto_reset(env.step, env.init)))
    keys = jax.random.split(jax.random.key(42), BATCH)
    state = init(shard(keys, "data"))
    rewards, players = np.zeros(env.num_players), []
    for key in jax.random.split(jax.random.key(1), moves):
        key_act, key_step = jax.random.split(key)
        actions = jax.jit(random_action)(key_act, state)
        state = step(state, actions, shard(jax.random.split(key_step, BATCH), "data"))
        rewards += np.asarray(state.rewards).sum(0)
        players.append(np.asarray(state.current_player))
    report(f"{name}: rewards", rewards)
    report(f"{name}: players", players)
    report(
        f"{name}: observations",
        np.asarray(state.observation).astype(np.float32).sum(tuple(range(1, state.observation.ndim))),
    )
    report(f"{name}: legal actions", np.asarray(state.legal_action_mask).sum(-1))
    report(f"{name}: terminated", state.terminated)
    report(f"{name}: sharding", spec_text(state.observation))

env = pgx.make("tic_tac_toe")
rng = np.random.default_rng(0)
policy = {
    "hidden": shard(rng.normal(scale=0.3, size=(18, 32)).astype(np.float32), None, "model"),
    "out": shard(rng.normal(scale=0.3, size=(32, 9)).astype(np.float32), "model"),
}


def play(policy, keys):
    """Play whole games by the policy; return minus the log-likelihood of the moves, weighted by who won."""

    def move(state, key):
        keys = jax.random.split(key, BATCH)
        hidden = jnp.tanh(state.observation.reshape(BATCH, -1).astype(jnp.float32) @ policy["hidden"])
        logits = jnp.where(state.legal_action_mask, hidden @ policy["out"], jnp.finfo(jnp.float32).min)
        actions = jax.vmap(jax.random.categorical)(keys, logits)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]
        signs = jnp.where(state.current_player == 0, 1.0, -1.0) * ~state.terminated
        following = jax.vmap(env.step)(state, actions)
        return following, (signs * chosen, following.rewards[:, 0])

    start = jax.vmap(env.init)(keys)
    _, (likelihoods, rewards) = jax.lax.scan(move, start, jax.random.split(jax.random.key(7), 9))
    return -jnp.mean(likelihoods.sum(0) * jax.lax.stop_gradient(rewards.sum(0)))


@jax.jit
def train(policy, keys):
    loss, gradients = jax.value_and_grad(play)(policy, keys)
    return jax.tree.map(lambda x, g: x - 0.1 * g, policy, gradients), loss


losses = []
for index in range(4):
    keys = shard(jax.random.split(jax.random.key(index), BATCH), "data")
    policy, loss = train(policy, keys)
    losses.append(float(loss))
report("REINFORCE: losses", losses)
report("REINFORCE: policy", policy["out"])

"""mctx: the README's `gumbel_muzero_policy`, `muzero_policy` and a stochastic MuZero over a batch of learned models,
with invalid actions, Q-value transforms and the statistics of the trees.
"""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from tests.ecosystem.report import report, shard, spec_text

BATCH, STATES, ACTIONS = 16, 8, 5
rng = np.random.default_rng(0)
params = {
    "dynamics": shard(rng.normal(scale=0.5, size=(ACTIONS, STATES, STATES)).astype(np.float32), None, None, "model"),
    "reward": shard(rng.normal(size=(ACTIONS, STATES)).astype(np.float32)),
    "policy": shard(rng.normal(size=(STATES, ACTIONS)).astype(np.float32)),
    "value": shard(rng.normal(size=STATES).astype(np.float32)),
}
states = shard(rng.normal(size=(BATCH, STATES)).astype(np.float32), "data")
invalid = np.zeros((BATCH, ACTIONS), np.int32)
invalid[::3, 1] = 1
invalid = shard(invalid, "data")


def root_of(params, states):
    return mctx.RootFnOutput(prior_logits=states @ params["policy"], value=states @ params["value"], embedding=states)


def recurrent_fn(params, key, actions, states):
    """Advance a batch of states by an action each: a learned model without randomness."""
    del key
    following = jnp.tanh(jnp.einsum("bs,bst->bt", states, params["dynamics"][actions]))
    output = mctx.RecurrentFnOutput(
        reward=jnp.sum(params["reward"][actions] * states, axis=-1),
        discount=jnp.full(states.shape[:1], 0.9),
        prior_logits=following @ params["policy"],
        value=following @ params["value"],
    )
    return output, following


@jax.jit
def gumbel(params, states, invalid, key):
    return mctx.gumbel_muzero_policy(
        params, key, root_of(params, states), recurrent_fn, num_simulations=16, invalid_actions=invalid
    )


output = gumbel(params, states, invalid, jax.random.key(0))
report("gumbel: actions", output.action)
report("gumbel: weights", output.action_weights)
report("gumbel: visits", output.search_tree.node_visits)
report("gumbel: sharding of the weights", spec_text(output.action_weights))
summary = output.search_tree.summary()
report("gumbel: values", summary.value)
report("gumbel: Q-values", summary.qvalues)


@jax.jit
def muzero(params, states, invalid, key):
    return mctx.muzero_policy(
        params,
        key,
        root_of(params, states),
        recurrent_fn,
        num_simulations=12,
        invalid_actions=invalid,
        max_depth=4,
        qtransform=functools.partial(mctx.qtransform_by_min_max, min_value=-10.0, max_value=10.0),
        dirichlet_fraction=0.25,
        temperature=1.0,
    )


output = muzero(params, states, invalid, jax.random.key(1))
report("muzero: actions", output.action)
report("muzero: weights", output.action_weights)
report("muzero: children", output.search_tree.children_visits[:, 0])

CHANCES = 3


def decision_fn(params, key, actions, states):
    del key
    after = jnp.tanh(jnp.einsum("bs,bst->bt", states, params["dynamics"][actions]))
    logits = after[:, :CHANCES]
    return mctx.DecisionRecurrentFnOutput(chance_logits=logits, afterstate_value=after @ params["value"]), after


def chance_fn(params, key, outcomes, after):
    del key
    following = after * (1 + 0.2 * outcomes[:, None])
    output = mctx.ChanceRecurrentFnOutput(
        action_logits=following @ params["policy"],
        value=following @ params["value"],
        reward=jnp.sum(following, axis=-1),
        discount=jnp.full(after.shape[:1], 0.9),
    )
    return output, following


@jax.jit
def stochastic(params, states, key):
    return mctx.stochastic_muzero_policy(
        params, key, root_of(params, states), decision_fn, chance_fn, num_simulations=8, temperature=1.0
    )


output = stochastic(params, states, jax.random.key(2))
report("stochastic: actions", output.action)
report("stochastic: weights", output.action_weights)

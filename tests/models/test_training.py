"""Training steps of decoders on one device and on several."""

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.models import Decoder, train_state, train_step
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SMALL = Decoder(3, 16, 4, 2, 6, 40, 64)


def initial_state(sizes):
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), train_state(sizes))
    weights = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), state["weights"])
    return {**state, "weights": weights}


@pytest.mark.parametrize(
    "sizes",
    [
        Decoder(2, 16, 4, 1, 4, 24, 48, is_gated=False, is_tied=True),
        pytest.param(SMALL, marks=pytest.mark.slow),
    ],
)
def test_accumulated_gradients_equal_those_of_the_whole_batch_and_recomputation_changes_nothing(sizes):
    tokens = np.random.default_rng(1).integers(0, sizes.vocabulary, (6, 9)).astype(np.int32)
    state = initial_state(sizes)
    after, loss = jax.jit(train_step(sizes))(state, tokens)
    split, split_loss = jax.jit(train_step(sizes, 3, jax.checkpoint))(state, tokens.reshape(3, 2, 9))
    np.testing.assert_allclose(loss, split_loss, rtol=2e-3)
    for whole, parts in zip(jax.tree.leaves(after["mean"]), jax.tree.leaves(split["mean"]), strict=True):
        np.testing.assert_allclose(whole, parts, atol=2e-2 * np.abs(whole).max())  # products are bfloat16


def test_steps_on_a_mesh_train_as_on_one_device():
    tokens = np.random.default_rng(1).integers(0, 64, (8, 9)).astype(np.int32)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    state = initial_state(SMALL)
    sharded = jax.device_put(state, NamedSharding(mesh, P()))
    rows = NamedSharding(mesh, P(None, "data", "model"))
    sharded["weights"]["layers"]["up"] = jax.device_put(state["weights"]["layers"]["up"], rows)
    step, losses = jax.jit(train_step(SMALL)), ([], [])
    for _ in range(3):
        state, alone = step(state, tokens)
        sharded, together = step(sharded, jax.device_put(tokens, NamedSharding(mesh, P("data"))))
        losses[0].append(float(alone))
        losses[1].append(float(together))
    np.testing.assert_allclose(*losses, rtol=2e-3)
    assert losses[0][2] < losses[0][0]

"""flashbax: the README's flat buffer; trajectory, item and prioritised buffers of sharded experience, a queue, a mixer,
a Q-network that is trained on sampled transitions.
"""

import flashbax as fbx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import report, shard

flat = fbx.make_flat_buffer(max_length=32, min_length=2, sample_batch_size=1)
state = flat.init({"obs": jnp.array([0, 0]), "reward": jnp.array(0.0)})
ready = []
for step in range(3):
    state = flat.add(state, {"obs": jnp.array([3 * step + 1, 3 * step + 2]), "reward": jnp.array(3.0 * step + 3)})
    ready.append(bool(flat.can_sample(state)))
report("readme: can sample", ready)
transition = flat.sample(state, jax.random.PRNGKey(0)).experience
report("readme: transition", [transition.first["obs"], transition.second["obs"]])

rng = np.random.default_rng(0)
ROWS, LENGTH = 8, 12
example = {"obs": jnp.zeros(4), "action": jnp.array(0), "reward": jnp.array(0.0)}


def experience(length):
    """Return transitions of several environments, sharded along the environments."""
    return {
        "obs": shard(rng.normal(size=(ROWS, length, 4)).astype(np.float32), "data"),
        "action": shard(rng.integers(0, 3, (ROWS, length)).astype(np.int32), "data"),
        "reward": shard(rng.normal(size=(ROWS, length)).astype(np.float32), "data"),
    }


def report_sample(name, batch):
    for key, value in batch.items():
        report(f"{name}: {key}", value)


trajectories = fbx.make_trajectory_buffer(
    add_batch_size=ROWS, sample_batch_size=4, sample_sequence_length=3, period=1, min_length_time_axis=3, max_size=128
)
state = trajectories.init(example)
add, sample = jax.jit(trajectories.add), jax.jit(trajectories.sample)
for _ in range(3):  # more than max_size: the oldest are overwritten
    state = add(state, experience(LENGTH))
report("trajectories: index", state.current_index)
report_sample("trajectories", sample(state, jax.random.key(1)).experience)

prioritised = fbx.make_prioritised_trajectory_buffer(
    add_batch_size=ROWS,
    sample_batch_size=16,
    sample_sequence_length=2,
    period=1,
    min_length_time_axis=2,
    max_length_time_axis=LENGTH,
    priority_exponent=0.6,
    device="cpu",
)
state = jax.jit(prioritised.add)(prioritised.init(example), experience(LENGTH))
batch = jax.jit(prioritised.sample)(state, jax.random.key(2))
report("prioritised: indices before", batch.indices)
state = jax.jit(prioritised.set_priorities)(state, batch.indices, jnp.linspace(0.1, 5.0, 16))
batch = jax.jit(prioritised.sample)(state, jax.random.key(3))
report("prioritised: indices", batch.indices)
report("prioritised: probabilities", batch.probabilities)
report_sample("prioritised", batch.experience)

items = fbx.make_item_buffer(max_length=64, min_length=4, sample_batch_size=8, add_batches=True)
state = jax.jit(items.add)(items.init(example), jax.tree.map(lambda x: x[:, 0], experience(1)))
report_sample("items", jax.jit(items.sample)(state, jax.random.key(4)).experience)

queue = fbx.make_trajectory_queue(
    max_length_time_axis=LENGTH, add_batch_size=ROWS, add_sequence_length=4, sample_sequence_length=4
)
state = queue.init(example)
for _ in range(2):
    state = jax.jit(queue.add)(state, experience(4))
for take in range(2):
    state, batch = jax.jit(queue.sample)(state)
    report_sample(f"queue {take}", batch.experience)

mixed = [trajectories.init(example), trajectories.init(example)]
mixed = [add(state, experience(LENGTH)) for state in mixed]
mixer = fbx.make_mixer(buffers=[trajectories, trajectories], sample_batch_size=4, proportions=[0.5, 0.5])
report_sample("mixer", jax.jit(mixer.sample)(mixed, jax.random.key(5)).experience)

network = {
    "hidden": shard(rng.normal(scale=0.4, size=(4, 32)).astype(np.float32), None, "model"),
    "out": shard(rng.normal(scale=0.2, size=(32, 3)).astype(np.float32), "model"),
}
replay = fbx.make_flat_buffer(
    max_length=128, min_length=16, sample_batch_size=16, add_sequences=True, add_batch_size=ROWS
)
memory = jax.jit(replay.add)(replay.init(example), experience(LENGTH))
optimizer = optax.adam(1e-2)


def loss(network, pairs):
    def values(obs):
        return jnp.tanh(obs @ network["hidden"]) @ network["out"]

    chosen = jnp.take_along_axis(values(pairs.first["obs"]), pairs.first["action"][:, None], axis=1)[:, 0]
    target = pairs.first["reward"] + 0.9 * values(pairs.second["obs"]).max(1)
    return jnp.mean((chosen - jax.lax.stop_gradient(target)) ** 2)


@jax.jit
def train(network, optimizer_state, memory, key):
    value, gradients = jax.value_and_grad(loss)(network, replay.sample(memory, key).experience)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state)
    return optax.apply_updates(network, updates), optimizer_state, value


optimizer_state, losses = optimizer.init(network), []
for key in jax.random.split(jax.random.key(6), 6):
    network, optimizer_state, value = train(network, optimizer_state, memory, key)
    losses.append(float(value))
report("Q-learning: losses", losses)

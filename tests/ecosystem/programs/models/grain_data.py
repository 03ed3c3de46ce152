"""Grain: the README's `MapDataset`, filters, mixtures, `IterDataset` with prefetching and checkpoints of the iterator,
`DataLoader` with transformations and shards by process, batches on which a sharded model is trained.
"""

import grain
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import report, shard

numbers = grain.MapDataset.source(range(11)).shuffle(seed=42).map(lambda x: x + 1).batch(batch_size=2)
report("readme", np.concatenate(list(numbers)))
evens = grain.MapDataset.range(20).filter(lambda x: x % 2 == 0).seed(3).random_map(lambda x, rng: x + rng.integers(10))
report("filtered", [x for x in evens if x is not None])
mixed = grain.MapDataset.mix([grain.MapDataset.range(8), grain.MapDataset.range(100, 108)], weights=[0.25, 0.75])
report("mixed", [mixed[index] for index in range(12)])
report("repeated", [grain.MapDataset.range(3).repeat(2)[index] for index in range(6)])

rng = np.random.default_rng(0)
features = rng.normal(size=(64, 4)).astype(np.float32)
labels = features @ np.arange(1.0, 5.0, dtype=np.float32)


class Examples(grain.sources.RandomAccessDataSource):
    def __len__(self):
        return len(features)

    def __getitem__(self, index):
        return {"x": features[index], "y": labels[index]}


class AddNoise(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return {**element, "x": element["x"] + rng.normal(scale=0.01, size=4).astype(np.float32)}


loader = grain.DataLoader(
    data_source=Examples(),
    sampler=grain.samplers.IndexSampler(
        len(features), shard_options=grain.sharding.ShardByJaxProcess(), shuffle=True, num_epochs=1, seed=5
    ),
    operations=[AddNoise(), grain.transforms.Batch(16)],
    worker_count=0,
)
dataset = (
    grain.MapDataset.source(Examples())
    .seed(7)
    .shuffle()
    .random_map(AddNoise())
    .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
    .batch(16, batch_fn=lambda elements: jax.tree.map(lambda *leaves: np.stack(leaves), *elements))
)


@jax.jit
def step(weights, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(weights)
    return weights - 0.1 * grads, loss


def train(batches):
    """Return the losses of one epoch, and the weights after it."""
    weights, losses = shard(np.zeros(4, np.float32), "model"), []
    for batch in batches:
        weights, loss = step(weights, jax.tree.map(lambda x: shard(x, "data"), batch))
        losses.append(float(loss))
    return [*losses, *np.asarray(weights)]


report("data loader", train(loader))
report("iterator", train(dataset))
iterator = iter(dataset)
next(iterator)
state = iterator.get_state()
rest = list(iterator)
iterator = iter(dataset)
iterator.set_state(state)
resumed = list(iterator)
report("resumed", [float(np.abs(before["x"] - after["x"]).max()) for before, after in zip(rest, resumed, strict=True)])
on_device = dataset.map(lambda batch: jax.tree.map(jnp.asarray, batch))
report("on device", [float(batch["x"].sum()) for batch in on_device])

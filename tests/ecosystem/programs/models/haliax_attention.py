"""Haliax: the README's attention module with named axes, layers, `Stacked` blocks, dropout, random arrays and indexing;
training with parameters and activations sharded by axis mappings under `named_jit`.
"""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import mesh, report, spec_text

Batch, Pos, Embed, Head, Key, Mlp, Vocab, Layers = hax.make_axes(
    batch=8, position=6, embed=16, head=2, key=8, mlp=32, vocab=12, layers=2
)
KeyPos = Pos.alias("key_position")
ACTIVATIONS = {"batch": "data", "head": "model", "mlp": "model"}
PARAMETERS = {"embed": "data", "head": "model", "mlp": "model"}


class Attention(eqx.Module):
    query: hnn.Linear
    key: hnn.Linear
    value: hnn.Linear
    output: hnn.Linear

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key, 4)
        projections = (hnn.Linear.init(Embed, (Head, Key), key=key) for key in keys[:3])
        return Attention(*projections, hnn.Linear.init((Head, Key), Embed, key=keys[3]))

    def __call__(self, x, mask):
        keys, values = (layer(x).rename({"position": "key_position"}) for layer in (self.key, self.value))
        scores = hax.dot(self.query(x), keys, axis=Key) / jnp.sqrt(Key.size)
        weights = hnn.softmax(scores - 1e9 * (1.0 - mask), KeyPos)
        return self.output(hax.dot(weights, values, axis=KeyPos))


class Block(eqx.Module):
    attention: Attention
    mlp: hnn.MLP
    norm: hnn.LayerNorm

    @staticmethod
    def init(*, key):
        attention_key, mlp_key = jax.random.split(key)
        mlp = hnn.MLP.init(Embed, Embed, Mlp, 2, activation=hnn.gelu, key=mlp_key)
        return Block(Attention.init(key=attention_key), mlp, hnn.LayerNorm.init(Embed))

    def __call__(self, x, mask):
        x = x + self.attention(self.norm(x), mask)
        return x + self.mlp(x)


class Model(eqx.Module):
    embedding: hnn.Embedding
    blocks: hnn.Stacked
    head: hnn.Linear
    dropout: hnn.Dropout

    @staticmethod
    def init(*, key):
        embedding_key, block_key, head_key = jax.random.split(key, 3)
        blocks = hnn.Stacked.init(Layers, Block, gradient_checkpointing=True)(
            key=jax.random.split(block_key, Layers.size)
        )
        return Model(
            hnn.Embedding.init(Vocab, Embed, key=embedding_key),
            blocks,
            hnn.Linear.init(Embed, Vocab, key=head_key),
            hnn.Dropout(0.1),
        )

    def __call__(self, tokens, *, key):
        mask = hax.arange(Pos).broadcast_axis(KeyPos) >= hax.arange(KeyPos)
        x = self.dropout(self.embedding(tokens), key=key)
        return self.head(self.blocks.fold(x, mask))


optimizer = optax.adam(1e-2)


@hax.named_jit(out_axis_resources=PARAMETERS, axis_resources=PARAMETERS)
def initialized(key):
    model = Model.init(key=key)
    return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))


@hax.named_jit(axis_resources=ACTIVATIONS, out_axis_resources=PARAMETERS)
def step(model, state, tokens, key):
    def loss(model):
        logits = hax.shard(model(tokens, key=key))
        targets = hnn.one_hot(hax.roll(tokens, -1, Pos), Vocab)
        return hnn.cross_entropy_loss(logits, Vocab, targets, reduction=hax.mean).scalar()

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(model, updates), state, value, grads


rng = np.random.default_rng(0)
with hax.partitioning.set_mesh(mesh):
    tokens = hax.shard(hax.named(rng.integers(0, Vocab.size, (8, 6)), (Batch, Pos)), ACTIVATIONS)
    model, state = initialized(jax.random.PRNGKey(0))
    if mesh.size > 1:
        report("shardings", [spec_text(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))])
    losses = []
    for key in jax.random.split(jax.random.PRNGKey(1), 3):
        model, state, value, grads = step(model, state, tokens, key)
        losses.append(float(value))
    report("losses", losses)
    report("gradients", [float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(grads)])

    x = hax.shard(hax.random.normal(jax.random.PRNGKey(2), (Batch, Pos, Embed)), ACTIVATIONS)
    report("mean", hax.mean(x, (Pos, Embed)).array)
    report("indexed", x["batch", 3, "embed", 2:5].array)
    report("taken", hax.take(x, Embed, hax.named(jnp.array([1, 5]), "pick")).sum("batch").array)
    report("concatenated", hax.concatenate("embed", [x, -2 * x]).sum(Pos).array[:2])
    report(
        "einsum",
        hax.einsum("batch embed, position embed -> batch position", x["position", 0], x["batch", 1]).array,
    )
    report("argmax", hax.argmax(x, Embed).array)
    report("sorted", hax.sort(x, Embed)["batch", 0].array)
    report("variance", hax.var(x, "position")["batch", 2].array)
    report("rearranged", hax.rearrange(x, "{batch position embed} -> position (both: batch embed)").array[:, ::16])

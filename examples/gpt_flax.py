"""Train a small GPT, written with Flax NNX and Optax, on the text in the repository.

    python examples/gpt_flax.py                           8 virtual devices, mesh data=4, model=2
    python examples/gpt_flax.py --mesh data=8,model=1     another mesh: continues from the checkpoint of the first run

It needs `pip install flax optax`. `shardwise.as_jax()` lets their `import jax` mean Shardwise. The parameters have
their mesh axes in Flax's metadata.
"""

from functools import partial

import shardwise

shardwise.as_jax()  # before the first import of a library that imports jax
import jax  # noqa: E402
import optax  # noqa: E402
from characters import VOCABULARY, sequences  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from training_run import Run  # noqa: E402

LAYERS, WIDTH, HEADS, HIDDEN = 2, 64, 4, 256
BATCH, LENGTH, RATE = 16, 64, 3e-3
EMBED, HEAD, MLP, VOCAB = None, "model", "model", "model"  # the mesh axes of the dims of parameters


def initializer(*axes):
    """Return an initializer of matrices whose dims are sharded over these mesh axes."""
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)


class Block(nnx.Module):
    """Causal attention and an MLP, each after a normalization and inside a residual connection."""

    def __init__(self, rngs):
        self.norm1 = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            HEADS,
            WIDTH,
            kernel_init=initializer(EMBED, HEAD, None),
            out_kernel_init=initializer(HEAD, None, EMBED),
            use_bias=False,
            decode=False,
            rngs=rngs,
        )
        self.norm2 = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, kernel_init=initializer(EMBED, MLP), rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=False, kernel_init=initializer(MLP, EMBED), rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    """A language model: the logits of the next character at every position."""

    def __init__(self, rngs):
        normal = nnx.initializers.normal(WIDTH**-0.5)
        vocabulary = nnx.with_partitioning(normal, (VOCAB, EMBED))
        self.embed = nnx.Embed(VOCABULARY, WIDTH, embedding_init=vocabulary, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, embedding_init=normal, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions(jax.numpy.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x))


def init(mesh):
    """Return the graph of model and optimizer, and their state, computed on the devices that hold it."""

    @nnx.jit
    def create():
        model = GPT(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    with jax.set_mesh(mesh):
        return nnx.split(create())


def make_train_step(graph):
    """Return the training step: from the state of model and optimizer and a batch, to the new state and the loss."""

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, tokens):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            logits = model(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nnx.split((model, optimizer))[1], value

    return train_step


def batches(mesh):
    """Return an iterator of batches of the text, shuffled in every epoch and sharded over `data`."""
    sharding = NamedSharding(mesh, P("data"))
    return shardwise.data.BatchIterator(sequences(LENGTH), sharding, batch_size=BATCH, seed=0, epochs=None)


def main(arguments=None):
    run = Run.from_command_line("gpt_flax", __doc__, arguments, axes=("data", "model"), steps=300)
    graph, state = init(run.mesh)
    return run.train(make_train_step(graph), state, batches(run.mesh), items=BATCH * LENGTH)


if __name__ == "__main__":
    main()

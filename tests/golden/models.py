"""The models of the golden plans, as a user would write them, with shardings of their parameters and their batch.

A model is a loss and pytrees of `Leaf`s. `step` returns a training step, and `plan` its plan for abstract arguments.
Layers are a list, or stacked along the first dim and scanned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Leaf:
    """The shape, spec and dtype of an array; integers are below `words`.

    `times`: the number of layers of a stack.
    """

    shape: tuple[int, ...]
    spec: P
    dtype: Any = np.float32
    words: int = 0
    times: int = 1

    def stacked(self, count: int) -> "Leaf":
        return Leaf((count, *self.shape), P(None, *self.spec), self.dtype, times=count)

    @property
    def layer(self) -> "Leaf":
        """The slice of a stack for one iteration."""
        return self if self.times == 1 else Leaf(self.shape[1:], P(*self.spec[1:]), self.dtype, times=self.times)

    def struct(self, mesh: Any) -> Any:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=NamedSharding(mesh, self.spec))

    def value(self, rng: Any) -> Any:
        if self.words:
            return rng.integers(0, self.words, self.shape).astype(self.dtype)
        return (rng.normal(size=self.shape) / np.sqrt(self.shape[-1])).astype(self.dtype)


@dataclass(frozen=True)
class Model:
    """A loss, `loss(params, *batch)`, with its arguments.

    `axes`: the sizes of the mesh axes by name. `differentiated`: whether the function returns the gradients too.
    """

    loss: Callable[..., Any]
    params: Any
    batch: tuple[Leaf, ...]
    axes: Mapping[str, int]
    differentiated: bool = False

    def plan(self, optimizer: str = "sgd") -> Any:
        """Return the plan of a training step."""
        mesh = AbstractMesh(tuple(self.axes.values()), tuple(self.axes))
        arguments = jax.tree.map(lambda leaf: leaf.struct(mesh), self.arguments(optimizer))
        return jax.jit(self.step(optimizer)).lower(*arguments).plan

    def arguments(self, optimizer: str) -> tuple[Any, ...]:
        """Return the state of the optimizer, and the batch."""
        return ((self.params,) * (1 if optimizer == "sgd" else 3), *self.batch)

    def step(self, optimizer: str) -> Callable[..., Any]:
        """Return the training step (state, *batch) → (state, loss)."""
        update = {"sgd": sgd, "adam": adam}[optimizer]

        def step(state: Any, *batch: Any) -> Any:
            value_and_gradients = self.loss if self.differentiated else jax.value_and_grad(self.loss)
            value, grads = value_and_gradients(state[0], *batch)
            return update(grads, *state), value

        return step


def sgd(grads: Any, params: Any) -> Any:
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads),)


def adam(grads: Any, params: Any, means: Any, squares: Any) -> Any:
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
    squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, grads)
    params = jax.tree.map(lambda p, m, s: p - 0.1 * m / (jnp.sqrt(jnp.abs(s)) + 1e-2), params, means, squares)
    return params, means, squares


def make_layers(layer: Any, count: int, scanned: bool) -> Any:
    """Return the parameters of `count` layers: a list, or one pytree of stacks."""
    return jax.tree.map(lambda leaf: leaf.stacked(count), layer) if scanned else [layer] * count


def apply_layers(block: Callable[[Any, Any], Any], layers: Any, x: Any) -> Any:
    """Apply all layers to `x`."""
    if isinstance(layers, list):
        for layer in layers:
            x = block(layer, x)
        return x
    return lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0]


def mean_squared_error(x: Any, y: Any) -> Any:
    return jnp.mean(jnp.square(x - y))


# Residual blocks of two matrices with Megatron shardings: columns of the first, rows of the second.


def mlp(scanned: bool, rows: int = 256, width: int = 512, hidden: int = 2048, count: int = 4) -> Model:
    layer = {"up": Leaf((width, hidden), P(None, "model")), "down": Leaf((hidden, width), P("model", None))}

    def block(layer: Any, x: Any) -> Any:
        return x + jax.nn.relu(x @ layer["up"]) @ layer["down"]

    def loss(layers: Any, x: Any, y: Any) -> Any:
        return mean_squared_error(apply_layers(block, layers, x), y)

    batch = Leaf((rows, width), P("data", None))
    return Model(loss, make_layers(layer, count, scanned), (batch, batch), {"data": 4, "model": 2})


# Gradient accumulation over microbatches.


def accumulated_gradients(axis: str | None, micro: int = 4, rows: int = 4096, width: int = 512) -> Model:
    params = {"up": Leaf((width, width), P(axis, None)), "down": Leaf((width, width), P(None, axis))}

    def loss(params: Any, x: Any) -> Any:
        def add(total: Any, rows: Any) -> Any:
            return total + jnp.mean(jnp.square(jnp.tanh(rows @ params["up"]) @ params["down"])), None

        return lax.scan(add, 0.0, x)[0] / micro

    return Model(loss, params, (Leaf((micro, rows, width), P(None, "data", None)),), {"data": 8})


# Scanned layers inside a scan over microbatches, whose gradients are added up.


def microbatches(
    axes: Mapping[str, int], rows: str | None = None, tensor: str | None = None, micro: int = 5, count: int = 3,
    batch: int = 256, width: int = 64,
) -> Model:  # fmt: skip
    layer = {
        "norm": Leaf((width,), P(rows)),
        "up": Leaf((width, 4 * width), P(rows, tensor)),
        "down": Leaf((4 * width, width), P(tensor, rows)),
    }

    def block(x: Any, layer: Any) -> Any:
        hidden = jnp.tanh(x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["norm"] @ layer["up"])
        return x + hidden @ layer["down"], None

    def loss(layers: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(lax.scan(block, x, layers)[0]))

    def accumulated(layers: Any, x: Any) -> Any:
        def add(totals: Any, rows: Any) -> Any:
            return jax.tree.map(jnp.add, totals, jax.value_and_grad(loss)(layers, rows)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), layers)
        return jax.tree.map(lambda total: total / micro, lax.scan(add, (0.0, zeros), x)[0])

    inputs = Leaf((micro, batch, width), P(None, "data", None))
    return Model(accumulated, make_layers(layer, count, True), (inputs,), axes, differentiated=True)


# A transformer language model with a tied embedding.


@dataclass(frozen=True, eq=False)
class Parallelism:
    """The mesh axes of a transformer: of its batch; of heads and hidden features (`tensor`); of the rows of its
    weights.

    `sequence`: the axis of positions between the blocks.
    """

    axes: Mapping[str, int]
    batch: str | None = None
    tensor: str | None = None
    rows: str | None = None
    sequence: str | None = None


DATA = Parallelism({"data": 8}, batch="data")
FSDP = Parallelism({"data": 8}, batch="data", rows="data")
TENSOR = Parallelism({"model": 8}, tensor="model")
DATA_TENSOR = Parallelism({"data": 4, "model": 2}, batch="data", tensor="model")
FSDP_TENSOR = Parallelism({"data": 4, "model": 2}, batch="data", tensor="model", rows="data")
SEQUENCE = Parallelism({"data": 4, "model": 2}, batch="data", tensor="model", sequence="model")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer. The defaults are those of the language model of the benchmarks."""

    width: int = 256
    hidden: int = 1024
    words: int = 1024
    length: int = 128
    batch: int = 32
    heads: int = 8
    layers: int = 4


def norm(x: Any, scale: Any) -> Any:
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(x: Any, qkv: Any, out: Any) -> Any:
    q, k, v = jnp.einsum("btd,dihk->ibhtk", x, qkv)
    scores = jnp.einsum("bhqk,bhtk->bhqt", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -1e9)
    attended = jnp.einsum("bhqt,bhtk->bhqk", jax.nn.softmax(scores), v)
    return jnp.einsum("bhtk,hkd->btd", attended, out)


def cross_entropy(logits: Any, targets: Any) -> Any:
    logits = logits - lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    expert = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jnp.log(jnp.sum(jnp.exp(logits), -1)) - expert)


LANGUAGE_MODEL = Sizes()


def transformer(parallelism: Parallelism, scanned: bool, sizes: Sizes = LANGUAGE_MODEL, mesh: Any = None) -> Model:
    """Return a transformer language model. `mesh`: the devices of its constraints; without, it can only be planned."""
    width, hidden, heads = sizes.width, sizes.hidden, sizes.heads
    rows, tensor = parallelism.rows, parallelism.tensor
    layer = {
        "norm1": Leaf((width,), P(rows)),
        "qkv": Leaf((width, 3, heads, width // heads), P(rows, None, tensor, None)),
        "out": Leaf((heads, width // heads, width), P(tensor, None, rows)),
        "norm2": Leaf((width,), P(rows)),
        "up": Leaf((width, hidden), P(rows, tensor)),
        "down": Leaf((hidden, width), P(tensor, rows)),
    }
    params = {
        "embed": Leaf((sizes.words, width), P(None, rows)),
        "layers": make_layers(layer, sizes.layers, scanned),
        "norm": Leaf((width,), P(rows)),
    }
    mesh = mesh or AbstractMesh(tuple(parallelism.axes.values()), tuple(parallelism.axes))

    def constrain_positions(x: Any) -> Any:
        if parallelism.sequence is None:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(parallelism.batch, parallelism.sequence, None)))

    def block(layer: Any, x: Any) -> Any:
        x = constrain_positions(x + attention(norm(x, layer["norm1"]), layer["qkv"], layer["out"]))
        return constrain_positions(x + jax.nn.gelu(norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"])

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        x = apply_layers(block, params["layers"], constrain_positions(params["embed"][tokens]))
        return cross_entropy(norm(x, params["norm"]) @ params["embed"].T, targets)

    tokens = Leaf((sizes.batch, sizes.length), P(parallelism.batch, None), np.int32, sizes.words)
    return Model(loss, params, (tokens, tokens), parallelism.axes)


# Attention over a sharded sequence.


def long_attention(batch: int = 4, length: int = 2048, heads: int = 8, size: int = 32) -> Model:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(attention(x, params["qkv"], params["out"])))

    width = heads * size
    params = {"qkv": Leaf((width, 3, heads, size), P()), "out": Leaf((heads, size, width), P())}
    return Model(loss, params, (Leaf((batch, length, width), P(None, "data", None)),), {"data": 8})


# A large sharded vocabulary: the rows of the embedding, and with them the logits.


def vocabulary(words: int = 32768, width: int = 128, batch: int = 32, length: int = 32) -> Model:
    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        x = jnp.tanh(params["embed"][tokens] @ params["dense"])
        return cross_entropy(x @ params["embed"].T, targets)

    tokens = Leaf((batch, length), P("data", None), np.int32, words)
    params = {"embed": Leaf((words, width), P("model", None)), "dense": Leaf((width, width), P())}
    return Model(loss, params, (tokens, tokens), {"data": 4, "model": 2})


# A mixture of experts: a device has one expert and one group of tokens, and tokens are sent to their expert.


def experts(scanned: bool, tokens: int = 64, width: int = 128, hidden: int = 256, count: int = 2) -> Model:
    number = 8
    capacity = 2 * tokens // number
    layer = {
        "router": Leaf((width, number), P()),
        "up": Leaf((number, width, hidden), P("expert", None, None)),
        "down": Leaf((number, hidden, width), P("expert", None, None)),
    }

    def block(layer: Any, x: Any) -> Any:  # group, token, feature
        gates = jax.nn.softmax(jnp.einsum("gsd,de->gse", x, layer["router"]))
        expert = jax.nn.one_hot(jnp.argmax(gates, -1), number)
        slot = (jnp.cumsum(expert, 1) * expert - 1).astype(jnp.int32)
        dispatch = jax.nn.one_hot(slot, capacity)  # group, token, expert, slot
        expert_inputs = jnp.einsum("gsec,gsd->egcd", dispatch, x)
        hidden_units = jax.nn.relu(jnp.einsum("egcd,edh->egch", expert_inputs, layer["up"]))
        expert_outputs = jnp.einsum("egch,ehd->egcd", hidden_units, layer["down"])
        return x + jnp.einsum("gsec,egcd->gsd", dispatch * gates[..., None], expert_outputs)

    def loss(layers: Any, x: Any, y: Any) -> Any:
        return mean_squared_error(apply_layers(block, layers, x), y)

    batch = Leaf((number, tokens, width), P("expert", None, None))
    return Model(loss, make_layers(layer, count, scanned), (batch, batch), {"expert": 8})


# Convolutions over images with sharded rows.


def convolutions(scanned: bool, height: int = 128, width: int = 64, channels: int = 16, count: int = 3) -> Model:
    layer = {"kernel": Leaf((3, 3, channels, channels), P()), "bias": Leaf((channels,), P())}

    def block(layer: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME", dimension_numbers=dims)
        return x + jax.nn.relu(y + layer["bias"])

    def loss(layers: Any, x: Any, y: Any) -> Any:
        return mean_squared_error(apply_layers(block, layers, x), y)

    images = Leaf((4, height, width, channels), P(None, "space", None, None))
    return Model(loss, make_layers(layer, count, scanned), (images, images), {"space": 8})


# A pipeline with one stage per device; in each tick, microbatches move by one stage.


def pipeline(scanned: bool, batches: int = 16, rows: int = 32, width: int = 128) -> Model:
    stages = 8

    def loss(weights: Any, x: Any, y: Any) -> Any:
        def tick(state: Any, entering: Any) -> Any:
            state = jnp.roll(state, 1, 0).at[0].set(entering)
            state = jnp.tanh(jnp.einsum("srd,sde->sre", state, weights))
            return state, state[-1]

        state = jnp.zeros((stages, rows, width))
        microbatches = jnp.concatenate([x, jnp.zeros((stages - 1, rows, width))])
        if scanned:
            outputs = lax.scan(tick, state, microbatches)[1]
        else:
            ticks = []
            for entering in microbatches:
                state, last = tick(state, entering)
                ticks.append(last)
            outputs = jnp.stack(ticks)
        return mean_squared_error(outputs[stages - 1 :], y)

    batch = Leaf((batches, rows, width), P())
    return Model(loss, Leaf((stages, width, width), P("stage", None, None)), (batch, batch), {"stage": stages})

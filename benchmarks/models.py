"""Twelve small models: plain functions of parameters and a batch, each with the layout that an expert would write.

`MODELS` lists them. `training_step(model)` is a step of SGD with momentum: (state, batch) → (state, loss). The expert's
layouts are on a mesh with the axes `data` and `model`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.sharding import PartitionSpec as P

Tree = Any


@final
@dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
        name: its name.
        loss: a function of parameters and a batch.
        shapes: the shapes of the parameters, as a tree of tuples.
        batch: the shapes of the batch's arrays; those of integers are pairs of a shape and the number of values.
        expert: rules from patterns of parameter names to specs, on the axes `data` and `model`.
    """

    name: str
    loss: Callable[[Tree, Tree], Any]
    shapes: Tree
    batch: Mapping[str, Any]
    expert: Mapping[str, P] = field(default_factory=dict)

    def state(self, seed: int = 0) -> Tree:
        """Return parameters and momentum as numpy arrays."""
        random = np.random.default_rng(seed)
        is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
        params = jax.tree.map(
            lambda shape: (random.standard_normal(shape) * 0.3 / np.sqrt(shape[0] if shape else 1)).astype(np.float32),
            self.shapes,
            is_leaf=is_shape,
        )
        return {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}

    def examples(self, seed: int = 1) -> Tree:
        """Return a batch of numpy arrays."""
        random = np.random.default_rng(seed)

        def array(shape: Any) -> np.ndarray:
            if shape and isinstance(shape[0], tuple):
                return random.integers(0, shape[1], shape[0]).astype(np.int32)
            return random.standard_normal(shape).astype(np.float32)

        return {name: array(shape) for name, shape in self.batch.items()}


def training_step(model: Model) -> Callable[[Tree, Tree], tuple[Tree, Any]]:
    """Return a step of SGD with momentum."""

    def step(state: Tree, batch: Tree) -> tuple[Tree, Any]:
        loss, grads = jax.value_and_grad(model.loss)(state["params"], batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, loss

    step.__name__ = f"{model.name}_step"
    return step


def _norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1))


def _mlp(params: Tree, batch: Tree) -> Any:
    x = nn.relu(batch["x"] @ params["up"] + params["bias"])
    return jnp.mean((x @ params["down"] - batch["y"]) ** 2)


def _attention(x: Any, p: Tree, causal: bool) -> Any:
    q, k, v = (jnp.einsum("btd,dhe->bthe", x, p[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bqhd,hde->bqe", jnp.einsum("bhqk,bkhe->bqhe", nn.softmax(scores), v), p["out"])


def _block(x: Any, p: Tree, causal: bool) -> Any:
    x = x + _attention(_norm(x, p["scale1"]), p, causal)
    return x + nn.gelu(_norm(x, p["scale2"]) @ p["up"]) @ p["down"]


def _block_shapes(layers: int, width: int, heads: int) -> Tree:
    projection = (layers, width, heads, width // heads)
    return {
        **dict.fromkeys(("query", "key", "value"), projection),
        "out": (layers, heads, width // heads, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "scale1": (layers, width),
        "scale2": (layers, width),
    }


_BLOCK_EXPERT = {
    "query|key|value": P(None, None, "model"),
    "out": P(None, "model"),
    "up": P(None, None, "model"),
    "down": P(None, "model"),
}


def _gpt(params: Tree, batch: Tree) -> Any:
    x = params["embed"][batch["tokens"]]
    x, _ = lax.scan(lambda x, p: (_block(x, p, True), None), x, params["layers"])
    return _cross_entropy(x @ params["embed"].T, batch["targets"])


def _moe(params: Tree, batch: Tree) -> Any:
    x = batch["x"]
    gates = nn.softmax(x @ params["router"])
    hidden = nn.relu(jnp.einsum("bd,edf->ebf", x, params["up"]))
    out = jnp.einsum("ebf,efd->ebd", hidden, params["down"])
    return jnp.mean((jnp.einsum("be,ebd->bd", gates, out) - batch["y"]) ** 2)


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _conv_net(params: Tree, batch: Tree) -> Any:
    x = batch["image"]
    for name in ("conv1", "conv2", "conv3"):
        x = nn.relu(_conv(x, params[name], 2))
    return _cross_entropy(x.mean((1, 2)) @ params["head"], batch["label"])


def _vit(params: Tree, batch: Tree) -> Any:
    image = batch["image"]
    count, height, width, channels = image.shape
    patches = image.reshape(count, height // 4, 4, width // 4, 4, channels).transpose(0, 1, 3, 2, 4, 5)
    x = patches.reshape(count, height * width // 16, 16 * channels) @ params["patch"] + params["position"]
    x, _ = lax.scan(lambda x, p: (_block(x, p, False), None), x, params["layers"])
    return _cross_entropy(x.mean(1) @ params["head"], batch["label"])


def _recommender(params: Tree, batch: Tree) -> Any:
    users, items = params["users"][batch["user"]], params["items"][batch["item"]]
    x = nn.relu(jnp.concatenate([users, items], -1) @ params["hidden"])
    return jnp.mean((x @ params["out"] - batch["rating"]) ** 2)


def _lstm(params: Tree, batch: Tree) -> Any:
    def cell(carry: Any, x: Any) -> Any:
        hidden, memory = carry
        gates = x @ params["inputs"] + hidden @ params["hidden"]
        i, f, o, g = jnp.split(gates, 4, -1)
        memory = nn.sigmoid(f) * memory + nn.sigmoid(i) * jnp.tanh(g)
        hidden = nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    x = batch["x"]
    zeros = jnp.zeros((x.shape[0], params["hidden"].shape[0]))
    _, outputs = lax.scan(cell, (zeros, zeros), x.transpose(1, 0, 2))
    return jnp.mean((outputs[-1] @ params["out"] - batch["y"]) ** 2)


def _u_net(params: Tree, batch: Tree) -> Any:
    first = nn.relu(_conv(batch["image"], params["down1"]))
    second = nn.relu(_conv(first, params["down2"], 2))
    middle = nn.relu(_conv(second, params["middle"]))
    count, height, width, channels = middle.shape
    raised = jnp.broadcast_to(middle[:, :, None, :, None], (count, height, 2, width, 2, channels))
    raised = raised.reshape(count, 2 * height, 2 * width, channels)
    out = _conv(nn.relu(_conv(jnp.concatenate([raised, first], -1), params["up"])), params["out"])
    return jnp.mean((out - batch["mask"]) ** 2)


def _graph_network(params: Tree, batch: Tree) -> Any:
    x = batch["nodes"] @ params["embed"]
    for name in ("layer1", "layer2"):
        messages = nn.relu(x[batch["source"]] @ params[name]["message"])
        total = jnp.zeros_like(x).at[batch["target"]].add(messages)
        x = nn.relu(x @ params[name]["self"] + total)
    return jnp.mean((x @ params["head"] - batch["y"]) ** 2)


def _diffusion(params: Tree, batch: Tree) -> Any:
    time = jnp.sin(batch["time"][:, None] * jnp.arange(1, 33)) @ params["time"]
    noisy = batch["image"] + batch["noise"] * batch["time"][:, None, None, None]
    x = nn.silu(_conv(noisy, params["in"]) + time[:, None, None, :])
    x = x + nn.silu(_conv(x, params["middle"]))
    return jnp.mean((_conv(x, params["out"]) - batch["noise"]) ** 2)


def _retrieval(params: Tree, batch: Tree) -> Any:
    def tower(x: Any, p: Tree) -> Any:
        x = nn.relu(x @ p["hidden"]) @ p["out"]
        return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)

    query, document = tower(batch["query"], params["query"]), tower(batch["document"], params["document"])
    scores = query @ document.T * 10
    return -jnp.mean(jnp.diagonal(nn.log_softmax(scores)))


def _mixer(params: Tree, batch: Tree) -> Any:
    x = batch["x"]
    for name in ("layer1", "layer2"):
        p = params[name]
        x = x + jnp.swapaxes(nn.gelu(jnp.swapaxes(x, 1, 2) @ p["tokens_up"]) @ p["tokens_down"], 1, 2)
        x = x + nn.gelu(x @ p["channels_up"]) @ p["channels_down"]
    return _cross_entropy(x.mean(1) @ params["head"], batch["label"])


_MIXER_LAYER = {
    "tokens_up": (16, 64),
    "tokens_down": (64, 16),
    "channels_up": (128, 512),
    "channels_down": (512, 128),
}
_TOWER = {"hidden": (128, 512), "out": (512, 64)}

MODELS = {
    model.name: model
    for model in (
        Model(
            "mlp",
            _mlp,
            {"up": (256, 1024), "bias": (1024,), "down": (1024, 256)},
            {"x": (512, 256), "y": (512, 256)},
            {"up": P(None, "model"), "bias": P("model"), "down": P("model")},
        ),
        Model(
            "gpt",
            _gpt,
            {"embed": (1024, 128), "layers": _block_shapes(4, 128, 8)},
            {"tokens": ((32, 64), 1024), "targets": ((32, 64), 1024)},
            {"embed": P("model"), **_BLOCK_EXPERT},
        ),
        Model(
            "moe",
            _moe,
            {"router": (64, 8), "up": (8, 64, 256), "down": (8, 256, 64)},
            {"x": (256, 64), "y": (256, 64)},
            {"up|down": P("model")},
        ),
        Model(
            "conv_net",
            _conv_net,
            {"conv1": (3, 3, 3, 32), "conv2": (3, 3, 32, 64), "conv3": (3, 3, 64, 128), "head": (128, 64)},
            {"image": (64, 32, 32, 3), "label": ((64,), 64)},
            {"conv2": P(None, None, None, "model"), "conv3": P(None, None, "model")},
        ),
        Model(
            "vit",
            _vit,
            {"patch": (48, 64), "position": (64, 64), "layers": _block_shapes(2, 64, 8), "head": (64, 64)},
            {"image": (32, 32, 32, 3), "label": ((32,), 64)},
            _BLOCK_EXPERT,
        ),
        Model(
            "recommender",
            _recommender,
            {"users": (8192, 64), "items": (4096, 64), "hidden": (128, 256), "out": (256, 8)},
            {"user": ((512,), 8192), "item": ((512,), 4096), "rating": (512, 8)},
            {"users|items": P("model")},
        ),
        Model(
            "lstm",
            _lstm,
            {"inputs": (64, 512), "hidden": (128, 512), "out": (128, 64)},
            {"x": (64, 16, 64), "y": (64, 64)},
            {"inputs|hidden": P(None, "model")},
        ),
        Model(
            "u_net",
            _u_net,
            {
                "down1": (3, 3, 8, 16),
                "down2": (3, 3, 16, 32),
                "middle": (3, 3, 32, 32),
                "up": (3, 3, 48, 16),
                "out": (3, 3, 16, 8),
            },
            {"image": (16, 32, 32, 8), "mask": (16, 32, 32, 8)},
            {"middle": P(None, None, None, "model")},
        ),
        Model(
            "graph_network",
            _graph_network,
            {
                "embed": (32, 128),
                "layer1": {"message": (128, 128), "self": (128, 128)},
                "layer2": {"message": (128, 128), "self": (128, 128)},
                "head": (128, 8),
            },
            {"nodes": (512, 32), "source": ((2048,), 512), "target": ((2048,), 512), "y": (512, 8)},
            {"message|self": P(None, "model")},
        ),
        Model(
            "diffusion",
            _diffusion,
            {"in": (3, 3, 8, 64), "time": (32, 64), "middle": (3, 3, 64, 64), "out": (3, 3, 64, 8)},
            {"image": (32, 16, 16, 8), "noise": (32, 16, 16, 8), "time": (32,)},
            {"in|middle": P(None, None, None, "model"), "out": P(None, None, "model")},
        ),
        Model(
            "retrieval",
            _retrieval,
            {"query": _TOWER, "document": _TOWER},
            {"query": (256, 128), "document": (256, 128)},
            {"hidden": P(None, "model"), "out": P("model")},
        ),
        Model(
            "mixer",
            _mixer,
            {"layer1": _MIXER_LAYER, "layer2": _MIXER_LAYER, "head": (128, 64)},
            {"x": (64, 16, 128), "label": ((64,), 64)},
            {"_up": P(None, "model"), "_down": P("model")},
        ),
    )
}

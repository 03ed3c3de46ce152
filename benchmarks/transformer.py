"""A training step of a transformer language model with data, fully sharded and tensor parallelism."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from benchmarks.programs import Side
from benchmarks.workload import Mesh, Pin, Put, Spec, Workload, no_pin, without

RATE, DECAY, SQUARE_DECAY, EPSILON = 1e-3, 0.9, 0.999, 1e-8
DATA, MODEL = "data", "model"
Optimizer = Literal["sgd", "adam"]


@final
@dataclass(frozen=True)
class Parallel:
    """The mesh axes of the batch, of every weight (FSDP), and of heads and hidden features (tensor parallel)."""

    mesh: Mesh
    batch: str | None = None
    weights: str | None = None
    tensor: str | None = None

    def layouts(self) -> dict[str, Spec]:
        """Return the specs of all parameters."""
        columns = (self.weights, self.tensor)
        rows = (self.tensor, self.weights) if self.tensor else columns
        return {
            **dict.fromkeys(("q", "k", "v", "up"), columns),
            **dict.fromkeys(("out", "down"), rows),
            **dict.fromkeys(("norm", "norm1", "norm2"), (None,)),
            "embed": (self.weights, None),
        }


EIGHT: Mesh = ((8,), (DATA,))
FOUR_BY_TWO: Mesh = ((4, 2), (DATA, MODEL))
KINDS = {
    "data parallel": Parallel(EIGHT, batch=DATA),
    "FSDP": Parallel(EIGHT, batch=DATA, weights=DATA),
    "tensor parallel": Parallel(((8,), (MODEL,)), tensor=MODEL),
    "data × tensor": Parallel(FOUR_BY_TWO, batch=DATA, tensor=MODEL),
    "FSDP × tensor": Parallel(FOUR_BY_TWO, batch=DATA, weights=DATA, tensor=MODEL),
}


@final
@dataclass(frozen=True)
class Model:
    """The sizes, the optimizer, whether the layers are a scan, and how many of them an iteration has."""

    layers: int
    batch: int = 8
    length: int = 16
    width: int = 32
    heads: int = 4
    hidden: int = 64
    words: int = 64
    optimizer: Optimizer = "adam"
    scanned: bool = False
    unroll: int = 1

    def with_training(self, optimizer: Optimizer, scanned: bool = False) -> "Model":
        return replace(self, optimizer=optimizer, scanned=scanned)

    def shapes(self) -> dict[str, Any]:
        d, h = self.width, self.hidden
        layer = {
            **dict.fromkeys(("q", "k", "v", "out"), (d, d)),
            "up": (d, h),
            "down": (h, d),
            **dict.fromkeys(("norm1", "norm2"), (d,)),
        }
        stacked = {name: (self.layers, *shape) for name, shape in layer.items()}
        return {"embed": (self.words, d), "norm": (d,), "layers": stacked if self.scanned else [layer] * self.layers}


def training_step(
    library: Any, model: Model, parallel: Parallel, pin: Pin, explicit: bool = False
) -> Callable[..., Any]:
    """Return the step (parameters, tokens) → (parameters, loss); with Adam, means and squares follow the parameters.

    `explicit`: for a mesh with Explicit axes, where a sum over a sharded dim and an index need `out_sharding`.
    """
    jnp, lax, nn = library.numpy, library.lax, library.nn
    rows, tensor, layouts = parallel.batch, parallel.tensor, parallel.layouts()
    activations = library.sharding.PartitionSpec(rows, None, None) if explicit else None

    def rms_norm(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def gathered(name: str, value: Any) -> Any:
        return pin(value, *without(layouts[name], parallel.weights))

    def contract(x: Any, weights: Any) -> Any:
        """Multiply by weights whose rows are tensor parallel."""
        return jnp.matmul(x, weights, out_sharding=activations) if explicit else x @ weights

    def attention(x: Any, weights: Any) -> Any:
        batch, length, width = x.shape
        shape = (batch, length, model.heads, width // model.heads)
        q, k, v = (
            pin((x @ weights[name]).reshape(shape).transpose(0, 2, 1, 3), rows, tensor, None, None) for name in "qkv"
        )
        scores = q @ k.transpose(0, 1, 3, 2) * shape[-1] ** -0.5
        attended = nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)) @ v
        return contract(attended.transpose(0, 2, 1, 3).reshape(batch, length, width), weights["out"])

    def block(x: Any, weights: Any) -> Any:
        weights = {name: gathered(name, value) for name, value in weights.items()}
        x = pin(x + attention(rms_norm(x, weights["norm1"]), weights), rows, None, None)
        h = pin(nn.gelu(rms_norm(x, weights["norm2"]) @ weights["up"]), rows, None, tensor)
        return pin(x + contract(h, weights["down"]), rows, None, None)

    def loss(params: Any, tokens: Any) -> Any:
        embed = gathered("embed", params["embed"])
        words = tokens[:, :-1]
        x = pin(embed.at[words].get(out_sharding=activations) if explicit else embed[words], rows, None, None)
        if model.scanned:
            x, _ = lax.scan(lambda x, weights: (block(x, weights), None), x, params["layers"], unroll=model.unroll)
        else:
            for weights in params["layers"]:
                x = block(x, weights)
        logits = pin(rms_norm(x, params["norm"]) @ embed.T, rows, None, None)
        target_logits = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(nn.logsumexp(logits, axis=-1) - target_logits)

    def pin_gradients(grads: Any) -> Any:
        """Pin gradients to the shardings of their parameters."""
        lead = (None,) if model.scanned else ()
        layers = grads["layers"] if isinstance(grads["layers"], list) else [grads["layers"]]
        pinned = [{name: pin(g, *lead, *layouts[name]) for name, g in layer.items()} for layer in layers]
        rest = {name: pin(grads[name], *layouts[name]) for name in ("embed", "norm")}
        return {**rest, "layers": pinned[0] if model.scanned else pinned}

    def descend(params: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        return library.tree.map(lambda p, g: p - RATE * g, params, pin_gradients(grads)), value

    def adam(params: Any, means: Any, squares: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        grads = pin_gradients(grads)
        means = library.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, grads)
        squares = library.tree.map(lambda s, g: SQUARE_DECAY * s + (1 - SQUARE_DECAY) * g * g, squares, grads)
        params = library.tree.map(lambda p, m, s: p - RATE * m / (jnp.sqrt(s) + EPSILON), params, means, squares)
        return params, means, squares, value

    return descend if model.optimizer == "sgd" else adam


def arguments(model: Model, parallel: Parallel, put: Put) -> tuple[Any, ...]:
    """Return the sharded arguments of a training step."""
    rng = np.random.default_rng(0)
    layouts = parallel.layouts()

    def sharded(entry: Any, value: Callable[[Any], Any], name: str = "") -> Any:
        if isinstance(entry, dict):
            return {name: sharded(part, value, name) for name, part in entry.items()}
        if isinstance(entry, list):
            return [sharded(part, value) for part in entry]
        spec = layouts[name]
        return put(value(entry).astype(np.float32), *(None,) * (len(entry) - len(spec)), *spec)

    shapes = model.shapes()
    params = sharded(shapes, lambda shape: rng.normal(size=shape) / np.sqrt(model.width))
    moments = [sharded(shapes, np.zeros) for _ in range(2 if model.optimizer == "adam" else 0)]
    tokens = rng.integers(0, model.words, (model.batch, model.length + 1)).astype(np.int32)
    return params, *moments, put(tokens, parallel.batch, None)


def workload(name: str, model: Model, parallel: Parallel) -> Workload:
    return Workload(
        name,
        parallel.mesh,
        lambda library, pin: training_step(library, model, parallel, pin),
        lambda put: arguments(model, parallel, put),
    )


def on_one_device(side: Side, model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the step and its arguments, on one device."""
    unsharded = Parallel(((1,), (DATA,)))
    step = training_step(side.library, model, unsharded, no_pin)
    return step, arguments(model, unsharded, lambda value, *spec: side.put(value))


def on_mesh(side: Side, model: Model) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the step and its arguments, data × tensor parallel on a mesh of eight devices."""
    return workload("", model, KINDS["data × tensor"]).on(side)

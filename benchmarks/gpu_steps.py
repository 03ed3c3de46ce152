"""Training steps at the size of GPUs, for a library with JAX's names: models under several kinds of parallelism.

Arguments are ShapeDtypeStructs, so that a step can be compiled for a topology that is not present.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

LAYERS, MODEL, HIDDEN, HEADS, VOCABULARY, LENGTH = 8, 4096, 16384, 32, 32768, 2048
EXPERTS, CAPACITY = 8, 320  # of a mixture: experts, and the tokens of a sequence that each one takes
CHANNELS, PIXELS, CLASSES = 1024, 32, 1024  # of a convolutional net
LONG = 8192  # the length of long sequences, which are sharded
ATTENTION = dict.fromkeys(("query", "key", "value", "out"), (MODEL, MODEL))
Axes = str | tuple[str, ...] | None
Spec = tuple[Axes, ...]


@final
@dataclass(frozen=True)
class Model:
    """A model of equal layers.

    Attributes:
        layer: x, weights of a layer → x, for a library with JAX's names.
        weights: the shapes of the weights of a layer.
        ends: the shapes of the weights before and after the layers.
        loss: params, inputs, the function that applies all layers → loss, for a library.
        inputs: the shape of one row of the inputs, and their dtype.
    """

    layer: Callable[..., Any]
    weights: Mapping[str, tuple[int, ...]]
    ends: Mapping[str, tuple[int, ...]]
    loss: Callable[..., Any]
    inputs: tuple[tuple[int, ...], str] = ((LENGTH + 1,), "int32")


@final
@dataclass(frozen=True)
class Parallelism:
    """How a step is sharded.

    Attributes:
        axes: the names of the mesh axes.
        sizes: their sizes for a number of devices.
        weights: the axes of the dims of each weight; under "" those of the weights that are not listed.
        inputs: the axes of the dims of the inputs.
        state: the axes of the dims of optimizer states; None if they are those of the weights.
        activations: the axes of the dims of activations before each layer; None if they are not constrained.
        rows: the rows of the batch per device along its axes.
        model: the model; None for the dense transformer.
    """

    axes: tuple[str, ...]
    sizes: Callable[[int], tuple[int, ...]]
    weights: Mapping[str, Spec]
    inputs: Spec
    state: Spec | None = None
    activations: Spec | None = None
    rows: int = 1
    model: Model | None = None


def _all(devices: int) -> tuple[int, ...]:
    return (devices,)


def _norm(library: Any, x: Any) -> Any:
    jnp = library.numpy
    wide = x.astype(jnp.float32)
    return (wide * library.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _attend(library: Any, x: Any, w: Any) -> Any:
    jnp = library.numpy
    heads = (*x.shape[:2], HEADS, MODEL // HEADS)
    normed = _norm(library, x)
    query, key, value = ((normed @ w[name]).reshape(heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) * (HEADS / MODEL) ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    attention = library.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
    return x + jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(x.shape) @ w["out"]


def _dense_layer(library: Any, x: Any, w: Any) -> Any:
    x = _attend(library, x, w)
    return x + library.nn.gelu(_norm(library, x) @ w["up"]) @ w["down"]


def _mixture_layer(library: Any, x: Any, w: Any) -> Any:
    """Each token goes to its first expert, as long as that one takes tokens."""
    jnp, nn = library.numpy, library.nn
    x = _attend(library, x, w)
    normed = _norm(library, x)
    gates = nn.softmax((normed @ w["router"]).astype(jnp.float32))
    chosen = nn.one_hot(gates.argmax(-1), EXPERTS, dtype=jnp.float32)
    place = jnp.cumsum(chosen, 1) * chosen - 1
    sent = nn.one_hot(place.astype(jnp.int32), CAPACITY, dtype=x.dtype) * chosen.astype(x.dtype)[..., None]
    inputs = jnp.einsum("bsec,bsd->ebcd", sent, normed)
    hidden = nn.gelu(jnp.einsum("ebcd,edh->ebch", inputs, w["up"]))
    outputs = jnp.einsum("ebch,ehd->ebcd", hidden, w["down"])
    return x + jnp.einsum("bsec,ebcd->bsd", sent * gates.astype(x.dtype)[..., None], outputs)


def _conv_layer(library: Any, x: Any, w: Any) -> Any:
    normed = _norm(library, x)
    convolved = library.lax.conv_general_dilated(
        normed, w["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return x + library.nn.relu(convolved) @ w["mix"]


def _language_loss(library: Any, params: Any, tokens: Any, apply_layers: Callable[..., Any]) -> Any:
    jnp, nn = library.numpy, library.nn
    x = apply_layers(params["embed"].astype(jnp.bfloat16)[tokens[:, :-1]])
    logits = (_norm(library, x) @ params["logits"].astype(jnp.bfloat16)).astype(jnp.float32)
    labels = nn.one_hot(tokens[:, 1:], VOCABULARY, dtype=jnp.float32)
    return -(nn.log_softmax(logits) * labels).sum(-1).mean()


def _image_loss(library: Any, params: Any, images: Any, apply_layers: Callable[..., Any]) -> Any:
    jnp, nn = library.numpy, library.nn
    x = apply_layers(images.astype(jnp.bfloat16) @ params["embed"].astype(jnp.bfloat16))
    logits = (x.mean((1, 2)) @ params["logits"].astype(jnp.bfloat16)).astype(jnp.float32)
    return -nn.log_softmax(logits)[:, 0].mean()


WORDS = {"embed": (VOCABULARY, MODEL), "logits": (MODEL, VOCABULARY)}
DENSE = Model(_dense_layer, {**ATTENTION, "up": (MODEL, HIDDEN), "down": (HIDDEN, MODEL)}, WORDS, _language_loss)
MIXTURE = Model(
    _mixture_layer,
    {**ATTENTION, "router": (MODEL, EXPERTS), "up": (EXPERTS, MODEL, HIDDEN), "down": (EXPERTS, HIDDEN, MODEL)},
    WORDS,
    _language_loss,
)
IMAGES = Model(
    _conv_layer,
    {"kernel": (3, 3, CHANNELS, CHANNELS), "mix": (CHANNELS, CHANNELS)},
    {"embed": (48, CHANNELS), "logits": (CHANNELS, CLASSES)},
    _image_loss,
    ((PIXELS, PIXELS, 48), "float32"),
)
LONG_SEQUENCES = Model(DENSE.layer, DENSE.weights, WORDS, _language_loss, ((LONG + 1,), "int32"))

_COLUMNS, _ROWS = (None, "model"), ("model", None)  # of a weight; one half of a layer's weights is sharded by each
_EXPERTS = ("expert", "data", None)
KINDS = {
    "data parallel": Parallelism(("data",), _all, {"": ()}, ("data",)),
    "ZeRO-1": Parallelism(("data",), _all, {"": ()}, ("data",), state=("data",)),
    "FSDP": Parallelism(("data",), _all, {"": ("data",)}, ("data",)),
    "tensor parallel": Parallelism(
        ("model",), _all, {"": _COLUMNS, "out": _ROWS, "down": _ROWS, "embed": _ROWS}, (), rows=8
    ),
    "FSDP × tensor": Parallelism(
        ("data", "model"),
        lambda devices: (devices // 4, 4),
        {"": ("data", "model"), **dict.fromkeys(("out", "down", "embed"), ("model", "data"))},
        ("data",),
    ),
    "HSDP": Parallelism(("node", "data"), lambda devices: (devices // 8, 8), {"": ("data",)}, (("node", "data"),)),
    "mixture, FSDP and experts": Parallelism(
        ("data", "expert"),
        lambda devices: (devices // 8, 8),
        {"": (("data", "expert"),), "up": _EXPERTS, "down": _EXPERTS, "router": ()},
        (("data", "expert"),),
        model=MIXTURE,
    ),
    "convolutions, FSDP": Parallelism(
        ("data",),
        _all,
        {"": ("data",), "kernel": (None, None, "data"), "embed": (None, "data")},
        ("data",),
        rows=32,
        model=IMAGES,
    ),
    "long sequences, FSDP": Parallelism(
        ("data",), _all, {"": ("data",)}, (), activations=(None, "data"), model=LONG_SEQUENCES
    ),
}


def training_step(library: Any, model: Model, scanned: bool, constrain: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a training step with Adam: weights and states in f32, products in bf16, layers recomputed.

    Args:
        library: JAX, or a library with its names.
        model: the model.
        scanned: whether the layers are a scan.
        constrain: constrains the sharding of activations before each layer.
    """
    jnp, lax = library.numpy, library.lax

    def layer(x: Any, weights: Any) -> Any:
        return model.layer(
            library, constrain(x), {name: weight.astype(jnp.bfloat16) for name, weight in weights.items()}
        )

    def apply_layers(layers: Any, x: Any) -> Any:
        block = library.checkpoint(layer)
        if scanned:
            return lax.scan(lambda x, weights: (block(x, weights), None), x, layers)[0]
        for weights in layers:
            x = block(x, weights)
        return x

    def loss(params: Any, inputs: Any) -> Any:
        return model.loss(library, params, inputs, partial(apply_layers, params["layers"]))

    def step(params: Any, mean: Any, square: Any, inputs: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, inputs)
        mean = library.tree.map(lambda a, g: 0.9 * a + 0.1 * g, mean, grads)
        square = library.tree.map(lambda a, g: 0.99 * a + 0.01 * g * g, square, grads)
        params = library.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
        return params, mean, square, value

    return step


def lower_step(library: Any, devices: list[Any], kind: str, scanned: bool) -> Any:
    """Lower a step for devices, present or not.

    Args:
        library: JAX, or a library with its names.
        devices: its devices.
        kind: a key of KINDS.
        scanned: whether the layers are a scan.
    """
    how = KINDS[kind]
    mesh = library.sharding.Mesh(np.array(devices).reshape(how.sizes(len(devices))), how.axes)
    step, arguments = jitted_step(library, mesh, kind, scanned)
    return step.lower(*arguments)


def abstract_mesh(library: Any, devices: int, kind: str) -> Any:
    """Return the abstract mesh of a step for a number of devices."""
    return library.sharding.AbstractMesh(KINDS[kind].sizes(devices), KINDS[kind].axes)


def jitted_step(library: Any, mesh: Any, kind: str, scanned: bool) -> tuple[Any, tuple[Any, ...]]:
    """Return a jitted step, and its arguments as structs on a mesh.

    Args:
        library: JAX, or a library with its names.
        mesh: the mesh, with the axes of the kind.
        kind: a key of KINDS.
        scanned: whether the layers are a scan.
    """
    sharding, how = library.sharding, KINDS[kind]
    model = how.model or DENSE

    def struct(shape: tuple[int, ...], dtype: Any, *spec: Axes) -> Any:
        placed = sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))
        return library.ShapeDtypeStruct(shape, dtype, sharding=placed)

    def weight(name: str, shape: tuple[int, ...], leading: tuple[int, ...], state: bool) -> Any:
        spec = how.state if state and how.state else how.weights.get(name, how.weights[""])
        return struct((*leading, *shape), library.numpy.float32, *[None] * len(leading), *spec)

    def tree(state: bool) -> Any:
        if scanned:
            layers: Any = {name: weight(name, shape, (LAYERS,), state) for name, shape in model.weights.items()}
        else:
            one = model.weights.items()
            layers = [{name: weight(name, shape, (), state) for name, shape in one} for _ in range(LAYERS)]
        return {"layers": layers, **{name: weight(name, shape, (), state) for name, shape in model.ends.items()}}

    first = how.inputs[0] if how.inputs else None
    batch_axes = (first,) if isinstance(first, str) else first or ()
    batch = how.rows * math.prod(mesh.shape[axis] for axis in batch_axes)
    shape, dtype = model.inputs
    inputs = struct((batch, *shape), getattr(library.numpy, dtype), *how.inputs)
    arguments = tree(False), tree(True), tree(True)
    outs = library.tree.map(lambda each: each.sharding, arguments)
    loss = sharding.NamedSharding(mesh, sharding.PartitionSpec())

    def constrain(x: Any) -> Any:
        if how.activations is None:
            return x
        spec = sharding.PartitionSpec(*how.activations)
        return library.lax.with_sharding_constraint(x, sharding.NamedSharding(mesh, spec))

    step = training_step(library, model, scanned, constrain)
    jitted = library.jit(step, out_shardings=(*outs, loss), donate_argnums=(0, 1, 2))
    return jitted, (*arguments, inputs)

"""Minimal programs with patterns that a partitioner must handle well."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workload import Mesh, Pin, Put, Workload

RATE = 0.1
EIGHT: Mesh = ((8,), ("x",))
DATA_MODEL: Mesh = ((4, 2), ("data", "model"))
A_B: Mesh = ((4, 2), ("a", "b"))

Program = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def descent(library: Any, loss: Program) -> Program:
    """Return one step of gradient descent on the first argument of `loss`."""

    def step(params: Any, *args: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, *args)
        return library.tree.map(lambda p, g: p - RATE * g, params, grads), value

    return step


def attention(library: Any, pin: Pin) -> Program:
    """Return attention over a sharded sequence. Operands are (batch, sequence, heads, features)."""
    jnp, nn = library.numpy, library.nn

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = pin(jnp.einsum("bqhd,bkhd->bhqk", q, pin(k, *(None,) * 4)) * q.shape[-1] ** -0.5, None, None, "x")
        return pin(jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), pin(v, *(None,) * 4)), None, "x")

    return attend


def attention_gradient(library: Any, pin: Pin) -> Program:
    forward = attention(library, pin)
    return library.grad(lambda qkv, targets: library.numpy.mean((forward(*qkv) - targets) ** 2))


def experts(library: Any, pin: Pin) -> Program:
    """Return a training step of a mixture of experts; groups of tokens and experts are sharded along the same axis.

    Each token goes to its best expert, which has a capacity per group.
    """
    jnp, nn = library.numpy, library.nn

    def loss(params: Any, x: Any, targets: Any) -> Any:
        _, length, _ = x.shape
        count = params["up"].shape[0]
        capacity = 2 * length // count
        weights = nn.softmax(x @ params["router"])
        expert = nn.one_hot(jnp.argmax(weights, -1), count, dtype=x.dtype)
        slot = jnp.cumsum(expert, 1) * expert - 1.0
        dispatch = pin(nn.one_hot(slot.astype(jnp.int32), capacity, dtype=x.dtype) * expert[..., None], "x")
        expert_inputs = pin(jnp.einsum("gsec,gsd->egcd", dispatch, x), "x")
        h = pin(jnp.maximum(jnp.einsum("egcd,edf->egcf", expert_inputs, params["up"]), 0.0), "x")
        expert_outputs = pin(jnp.einsum("egcf,efd->egcd", h, params["down"]), "x")
        outputs = pin(jnp.einsum("gsec,egcd->gsd", dispatch * weights[..., None], expert_outputs), "x")
        return jnp.mean((outputs - targets) ** 2)

    return descent(library, loss)


def convolution(library: Any, pin: Pin) -> Program:
    """Return a training step of two convolutions over images whose rows are sharded."""
    jnp, lax = library.numpy, library.lax

    def conv(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, x: Any, targets: Any) -> Any:
        h = pin(jnp.maximum(conv(x, params["first"]), 0.0), None, "x")
        return jnp.mean((pin(conv(h, params["second"]), None, "x") - targets) ** 2)

    return descent(library, loss)


def pipeline(library: Any, pin: Pin) -> Program:
    """Return a training step of a pipeline: a scan shifts the states of all stages by one stage per step."""
    jnp, lax = library.numpy, library.lax

    def loss(weights: Any, x: Any, targets: Any) -> Any:
        stages, width, _ = weights.shape
        _, rows, _ = x.shape

        def step(state: Any, entering: Any) -> Any:
            state = pin(jnp.concatenate([entering[None], state[:-1]]), "x")
            state = pin(jnp.tanh(jnp.einsum("srd,sde->sre", state, weights)), "x")
            return state, state[-1]

        entering = jnp.concatenate([x, jnp.zeros((stages - 1, rows, width), x.dtype)])
        _, leaving = lax.scan(step, jnp.zeros((stages, rows, width), x.dtype), entering)
        return jnp.mean((leaving[stages - 1 :] - targets) ** 2)

    return descent(library, loss)


def vocabulary(library: Any, pin: Pin) -> Program:
    """Return a training step of embedding and cross-entropy with a sharded vocabulary."""
    jnp, nn = library.numpy, library.nn

    def loss(params: Any, tokens: Any) -> Any:
        x = pin(params["in"][tokens[:, :-1]], "data", None, None)
        logits = pin(x @ params["out"].T, "data", None, "model")
        target_log_probs = jnp.take_along_axis(nn.log_softmax(logits), tokens[:, 1:, None], -1)
        return -jnp.mean(target_log_probs)

    return descent(library, loss)


def _single_argument(value: Callable[[], Any], *spec: Any) -> Callable[[Put], tuple[Any, ...]]:
    return lambda put: (put(value(), *spec),)


def _attention_arguments(put: Put) -> tuple[Any, ...]:
    return tuple(put(normal(4, 1024, 4, 32, seed=seed), None, "x") for seed in range(3))


def _gradient_arguments(put: Put) -> tuple[Any, ...]:
    return _attention_arguments(put), put(normal(4, 1024, 4, 32, seed=3), None, "x")


def _experts_arguments(put: Put) -> tuple[Any, ...]:
    width, hidden, count = 64, 256, 8
    params = {
        "router": put(normal(width, count)),
        "up": put(normal(count, width, hidden), "x"),
        "down": put(normal(count, hidden, width), "x"),
    }
    return params, put(normal(8, 64, width, seed=1), "x"), put(normal(8, 64, width, seed=2), "x")


def _convolution_arguments(put: Put) -> tuple[Any, ...]:
    params = {"first": put(normal(3, 3, 8, 32) / 8), "second": put(normal(3, 3, 32, 8) / 16)}
    return params, put(normal(4, 128, 64, 8, seed=1), None, "x"), put(normal(4, 128, 64, 8, seed=2), None, "x")


def _pipeline_arguments(put: Put) -> tuple[Any, ...]:
    weights = put(normal(8, 128, 128) / 12, "x")
    return weights, put(normal(16, 32, 128, seed=1)), put(normal(16, 32, 128, seed=2))


def _vocabulary_arguments(put: Put) -> tuple[Any, ...]:
    params = {"in": put(normal(8192, 64, seed=0), "model"), "out": put(normal(8192, 64, seed=1), "model")}
    tokens = np.random.default_rng(2).integers(0, 8192, (32, 65)).astype(np.int32)
    return params, put(tokens, "data", None)


def _reshard(mesh: Mesh, before: tuple[Any, ...], after: tuple[Any, ...], name: str) -> Workload:
    """Return a workload that reshards a 2048×2048 matrix."""

    def program(library: Any, pin: Pin) -> Program:
        return lambda x: pin(x, *after)

    return Workload(name, mesh, program, _single_argument(lambda: normal(2048, 2048), *before), "everyone")


WORKLOADS = [
    Workload("sequence attention", EIGHT, attention, _attention_arguments),
    Workload("sequence attention, gradient", EIGHT, attention_gradient, _gradient_arguments),
    Workload("mixture of experts", EIGHT, experts, _experts_arguments),
    Workload("spatial convolution", EIGHT, convolution, _convolution_arguments),
    Workload("pipeline by shifting", EIGHT, pipeline, _pipeline_arguments),
    Workload("sharded vocabulary", DATA_MODEL, vocabulary, _vocabulary_arguments),
    Workload(
        "cumsum along a sharded dim (4096×64)",
        EIGHT,
        lambda library, pin: lambda x: library.numpy.cumsum(x, 0),
        _single_argument(lambda: normal(4096, 64), "x"),
        "nobody",
    ),
    Workload(
        "top_k 8 along a sharded dim (64×65536)",
        EIGHT,
        lambda library, pin: lambda x: library.lax.top_k(x, 8),
        _single_argument(lambda: normal(64, 65536), None, "x"),
        "nobody",
    ),
    Workload(
        "x[1:] - x[:-1] along a sharded dim (4096×64)",
        EIGHT,
        lambda library, pin: lambda x: x[1:] - x[:-1],
        _single_argument(lambda: normal(4096, 64), "x"),
        "nobody",
    ),
    _reshard(A_B, (("a", "b"), None), (None, "a"), "P(('a','b')) → P(None,'a'), 16.8 MB"),
    _reshard(A_B, ("a", None), ("b", None), "P('a') → P('b'), 16.8 MB"),
]

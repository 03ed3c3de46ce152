"""Programs that a partitioner must know how to cut: each is the smallest that shows its pattern."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workload import Mesh, Pin, Put, Workload

RATE = 0.1
LINE: Mesh = ((8,), ("x",))
DATA_MODEL: Mesh = ((4, 2), ("data", "model"))
A_B: Mesh = ((4, 2), ("a", "b"))

Program = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def descent(library: Any, loss: Program) -> Program:
    """One step of gradient descent on the first argument of `loss`."""

    def step(params: Any, *args: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, *args)
        return library.tree.map(lambda p, g: p - RATE * g, params, grads), value

    return step


def attention(library: Any, pin: Pin) -> Program:
    """Of queries, keys and values whose sequence is cut: batch, sequence, heads, features."""
    jnp, nn = library.numpy, library.nn

    def mixed(q: Any, k: Any, v: Any) -> Any:
        scores = pin(jnp.einsum("bqhd,bkhd->bhqk", q, pin(k, *(None,) * 4)) * q.shape[-1] ** -0.5, None, None, "x")
        return pin(jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), pin(v, *(None,) * 4)), None, "x")

    return mixed


def attention_gradient(library: Any, pin: Pin) -> Program:
    forward = attention(library, pin)
    return library.grad(lambda qkv, wanted: library.numpy.mean((forward(*qkv) - wanted) ** 2))


def experts(library: Any, pin: Pin) -> Program:
    """A mixture of experts: groups of tokens are cut, experts too. Each token goes to its best expert, which takes so
    many from every group, and comes back."""
    jnp, nn = library.numpy, library.nn

    def loss(params: Any, x: Any, wanted: Any) -> Any:
        _, length, _ = x.shape
        count = params["up"].shape[0]
        room = 2 * length // count
        weights = nn.softmax(x @ params["router"])
        chosen = nn.one_hot(jnp.argmax(weights, -1), count, dtype=x.dtype)
        place = jnp.cumsum(chosen, 1) * chosen - 1.0
        sent = pin(nn.one_hot(place.astype(jnp.int32), room, dtype=x.dtype) * chosen[..., None], "x")
        taken = pin(jnp.einsum("gsec,gsd->egcd", sent, x), "x")
        h = pin(jnp.maximum(jnp.einsum("egcd,edf->egcf", taken, params["up"]), 0.0), "x")
        made = pin(jnp.einsum("egcf,efd->egcd", h, params["down"]), "x")
        back = pin(jnp.einsum("gsec,egcd->gsd", sent * weights[..., None], made), "x")
        return jnp.mean((back - wanted) ** 2)

    return descent(library, loss)


def convolution(library: Any, pin: Pin) -> Program:
    """Two layers over images whose rows are cut."""
    jnp, lax = library.numpy, library.lax

    def convolved(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, x: Any, wanted: Any) -> Any:
        h = pin(jnp.maximum(convolved(x, params["first"]), 0.0), None, "x")
        return jnp.mean((pin(convolved(h, params["second"]), None, "x") - wanted) ** 2)

    return descent(library, loss)


def pipeline(library: Any, pin: Pin) -> Program:
    """Stages that all work at once, each on the microbatch that the one before has finished: the state is shifted."""
    jnp, lax = library.numpy, library.lax

    def loss(weights: Any, x: Any, wanted: Any) -> Any:
        stages, width, _ = weights.shape
        _, rows, _ = x.shape

        def turn(state: Any, entering: Any) -> Any:
            state = pin(jnp.concatenate([entering[None], state[:-1]]), "x")
            state = pin(jnp.tanh(jnp.einsum("srd,sde->sre", state, weights)), "x")
            return state, state[-1]

        entering = jnp.concatenate([x, jnp.zeros((stages - 1, rows, width), x.dtype)])
        _, leaving = lax.scan(turn, jnp.zeros((stages, rows, width), x.dtype), entering)
        return jnp.mean((leaving[stages - 1 :] - wanted) ** 2)

    return descent(library, loss)


def vocabulary(library: Any, pin: Pin) -> Program:
    """Embedding and cross-entropy, with the words cut."""
    jnp, nn = library.numpy, library.nn

    def loss(params: Any, tokens: Any) -> Any:
        x = pin(params["in"][tokens[:, :-1]], "data", None, None)
        logits = pin(x @ params["out"].T, "data", None, "model")
        right = jnp.take_along_axis(nn.log_softmax(logits), tokens[:, 1:, None], -1)
        return -jnp.mean(right)

    return descent(library, loss)


def _one(value: Callable[[], Any], *spec: Any) -> Callable[[Put], tuple[Any, ...]]:
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


def _moved(mesh: Mesh, before: tuple[Any, ...], after: tuple[Any, ...], name: str) -> Workload:
    """From one layout to another."""

    def program(library: Any, pin: Pin) -> Program:
        return lambda x: pin(x, *after)

    return Workload(name, mesh, program, _one(lambda: normal(2048, 2048), *before), "everyone")


WORKLOADS = [
    Workload("sequence attention", LINE, attention, _attention_arguments),
    Workload("sequence attention, gradient", LINE, attention_gradient, _gradient_arguments),
    Workload("mixture of experts", LINE, experts, _experts_arguments),
    Workload("spatial convolution", LINE, convolution, _convolution_arguments),
    Workload("pipeline by shifts", LINE, pipeline, _pipeline_arguments),
    Workload("vocabulary cut", DATA_MODEL, vocabulary, _vocabulary_arguments),
    Workload(
        "cumsum along a cut dim (4096×64)",
        LINE,
        lambda library, pin: lambda x: library.numpy.cumsum(x, 0),
        _one(lambda: normal(4096, 64), "x"),
        "nobody",
    ),
    Workload(
        "top_k 8 along a cut dim (64×65536)",
        LINE,
        lambda library, pin: lambda x: library.lax.top_k(x, 8),
        _one(lambda: normal(64, 65536), None, "x"),
        "nobody",
    ),
    Workload(
        "x[1:] - x[:-1] along a cut dim (4096×64)",
        LINE,
        lambda library, pin: lambda x: x[1:] - x[:-1],
        _one(lambda: normal(4096, 64), "x"),
        "nobody",
    ),
    _moved(A_B, (("a", "b"), None), (None, "a"), "P(('a','b')) → P(None,'a'), 16.8 MB"),
    _moved(A_B, ("a", None), ("b", None), "P('a') → P('b'), 16.8 MB"),
]

"""Minimal programs whose memory or flops depend on how a partitioner keeps intermediate values."""

from typing import Any

import numpy as np

from benchmarks.patterns import A_B, DATA_MODEL, EIGHT, Program, descent, normal
from benchmarks.workload import Pin, Put, Workload


def newton_schulz(library: Any, pin: Pin) -> Program:
    """Return five Newton-Schulz iterations, which orthogonalize a matrix."""

    def orthogonalize(x: Any) -> Any:
        x = x / library.numpy.linalg.norm(x)
        for _ in range(5):
            x = 1.5 * x - 0.5 * (x @ x.T) @ x
        return x

    return orthogonalize


def sorted_dispatch(library: Any, pin: Pin) -> Program:
    """Return a layer of experts that sorts tokens by expert. Each expert processes an equal share of them."""
    jnp = library.numpy

    def layer(params: Any, x: Any) -> Any:
        count = params["up"].shape[0]
        expert = jnp.argmax(x @ params["router"], -1)
        order = jnp.argsort(expert)
        expert_inputs = x[order].reshape(count, -1, x.shape[-1])
        hidden = jnp.maximum(jnp.einsum("ecd,edf->ecf", expert_inputs, params["up"]), 0.0)
        expert_outputs = jnp.einsum("ecf,efd->ecd", hidden, params["down"])
        return expert_outputs.reshape(x.shape)[jnp.argsort(order)]

    return layer


def shampoo(library: Any, pin: Pin) -> Program:
    """Return one step of Shampoo for a stack of matrices: a gradient between inverse fourth roots of its statistics."""
    jnp = library.numpy

    def inverse_fourth_root(statistic: Any) -> Any:
        values, vectors = jnp.linalg.eigh(statistic)
        scaled = vectors * (jnp.maximum(values, 0.0) + 1e-4)[..., None, :] ** -0.25
        return scaled @ jnp.swapaxes(vectors, -1, -2)

    def step(weights: Any, left: Any, right: Any, gradient: Any) -> Any:
        left = left + gradient @ jnp.swapaxes(gradient, -1, -2)
        right = right + jnp.swapaxes(gradient, -1, -2) @ gradient
        update = inverse_fourth_root(left) @ gradient @ inverse_fourth_root(right)
        return weights - 0.1 * update, left, right

    return step


def wave_equation(library: Any, pin: Pin) -> Program:
    """Return four time steps of the wave equation in two dims; the Laplacian pads with zeros and slices."""
    jnp = library.numpy

    def advance(now: Any, before: Any) -> Any:
        for _ in range(4):
            padded = jnp.pad(now, 1)
            neighbours = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
            now, before = 2.0 * now - before + 0.1 * (neighbours - 4.0 * now), now
        return now, before

    return advance


def _mlp(library: Any, params: Any, x: Any) -> Any:
    return library.numpy.tanh(x @ params["first"]) @ params["second"]


def example_gradients(library: Any, pin: Pin) -> Program:
    """Return the sum of gradients that are clipped per example, as in private training."""
    jnp = library.numpy

    def loss(params: Any, x: Any, target: Any) -> Any:
        return jnp.mean((_mlp(library, params, x) - target) ** 2)

    def clipped_gradients(params: Any, x: Any, targets: Any) -> Any:
        grads = library.vmap(library.grad(loss), (None, 0, 0))(params, x, targets)
        squares = sum(jnp.sum(g * g, (1, 2)) for g in library.tree.leaves(grads))
        scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(squares))
        return library.tree.map(lambda g: jnp.einsum("b,bij->ij", scale, g), grads)

    return clipped_gradients


def dropout(library: Any, pin: Pin) -> Program:
    """Return a training step of an MLP with dropout."""
    jnp, random = library.numpy, library.random

    def loss(params: Any, seed: Any, x: Any, targets: Any) -> Any:
        hidden = jnp.tanh(x @ params["first"])
        kept = random.bernoulli(random.key(seed), 0.9, hidden.shape)
        return jnp.mean((jnp.where(kept, hidden / 0.9, 0.0) @ params["second"] - targets) ** 2)

    return descent(library, loss)


def _dispatch_arguments(put: Put) -> tuple[Any, ...]:
    params = {
        "router": put(normal(64, 8)),
        "up": put(normal(8, 64, 256), "x"),
        "down": put(normal(8, 256, 64), "x"),
    }
    return params, put(normal(2048, 64, seed=1), "x")


def _shampoo_arguments(put: Put) -> tuple[Any, ...]:
    identities = np.broadcast_to(np.eye(64, dtype=np.float32), (16, 64, 64)).copy()
    return put(normal(16, 64, 64), "x"), put(identities, "x"), put(identities, "x"), put(normal(16, 64, 64), "x")


def _wave_arguments(put: Put) -> tuple[Any, ...]:
    return put(normal(512, 512), "a", "b"), put(normal(512, 512, seed=1), "a", "b")


def _mlp_arguments(put: Put) -> tuple[Any, ...]:
    params = {"first": put(normal(128, 256) / 12, None, "model"), "second": put(normal(256, 64) / 16, "model")}
    return params, put(normal(128, 128, seed=1), "data"), put(normal(128, 64, seed=2), "data")


def _dropout_arguments(put: Put) -> tuple[Any, ...]:
    params, x, targets = _mlp_arguments(put)
    return params, put(np.uint32(0)), x, targets


WORKLOADS = [
    Workload("Newton-Schulz", A_B, newton_schulz, lambda put: (put(normal(512, 512), "a", "b"),), "nobody"),
    Workload("experts, sorted tokens", EIGHT, sorted_dispatch, _dispatch_arguments, "nobody"),
    Workload("Shampoo", EIGHT, shampoo, _shampoo_arguments, "nobody"),
    Workload("wave equation", A_B, wave_equation, _wave_arguments, "nobody"),
    Workload("gradients per example", DATA_MODEL, example_gradients, _mlp_arguments, "nobody"),
    Workload("MLP with dropout", DATA_MODEL, dropout, _dropout_arguments, "nobody"),
]

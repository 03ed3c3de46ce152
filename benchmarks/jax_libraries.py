"""Training steps of Flax, Equinox and Haiku with Optax, data parallel, FSDP, tensor parallel and both, on real JAX."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

from benchmarks.patterns import DATA_MODEL, normal
from benchmarks.workload import Pin, Put, Workload

WIDTH, HIDDEN, LAYERS, BATCH, LENGTH = 64, 256, 2, 16, 32
KINDS: dict[str, Callable[[tuple[int, ...]], tuple[Any, ...]]] = {
    "data parallel": lambda shape: (),
    "FSDP": lambda shape: _largest(shape, ("data", "model")),
    "tensor parallel": lambda shape: _largest(shape, "model") if len(shape) == 2 else (),
    "FSDP × tensor": lambda shape: ("data", "model") if len(shape) == 2 else (),
}


def _largest(shape: tuple[int, ...], axes: Any) -> tuple[Any, ...]:
    """Return the spec that shards the largest dim, if the devices divide it."""
    dim = int(np.argmax(shape)) if shape else 0
    return (*(None,) * dim, axes) if shape and shape[dim] % 8 == 0 else ()


class Block(linen.Module):
    """A transformer block of Flax."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(num_heads=4)(y, y)
        y = linen.Dense(HIDDEN)(linen.LayerNorm()(x))
        return x + linen.Dense(WIDTH)(linen.gelu(y))


def flax_model() -> tuple[Any, Callable[..., Any]]:
    model = linen.Sequential([*(Block() for _ in range(LAYERS)), linen.Dense(WIDTH)])
    params = model.init(jax.random.key(0), jnp.zeros((BATCH, LENGTH, WIDTH)))
    return params, model.apply


def equinox_model() -> tuple[Any, Callable[..., Any]]:
    keys = jax.random.split(jax.random.key(0), 2 * LAYERS)
    layers = [
        layer
        for n in range(LAYERS)
        for layer in (
            eqx.nn.Linear(WIDTH, HIDDEN, key=keys[2 * n]),
            eqx.nn.Lambda(jax.nn.gelu),
            eqx.nn.Linear(HIDDEN, WIDTH, key=keys[2 * n + 1]),
            eqx.nn.LayerNorm(WIDTH),
        )
    ]
    params, static = eqx.partition(eqx.nn.Sequential(layers), eqx.is_array)
    return params, lambda params, x: jax.vmap(jax.vmap(eqx.combine(params, static)))(x)


def haiku_model() -> tuple[Any, Callable[..., Any]]:
    def forward(x: Any) -> Any:
        for _ in range(LAYERS):
            y = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(4, WIDTH // 4, w_init_scale=1.0, model_size=WIDTH)(y, y, y)
            x = x + hk.nets.MLP([HIDDEN, WIDTH])(x)
        return x

    model = hk.without_apply_rng(hk.transform(forward))
    return model.init(jax.random.key(0), jnp.zeros((BATCH, LENGTH, WIDTH))), model.apply


MODELS = {"Flax": flax_model, "Equinox": equinox_model, "Haiku": haiku_model}


def workload(name: str, kind: str) -> Workload:
    """Return a training step of a library's model with AdamW."""
    params, apply = MODELS[name]()
    optimizer = optax.adamw(1e-3)

    def program(library: Any, pin: Pin) -> Callable[..., Any]:
        def step(params: Any, state: Any, x: Any, y: Any) -> Any:
            value, grads = jax.value_and_grad(lambda params: jnp.mean((apply(params, x) - y) ** 2))(params)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        return step

    def arguments(put: Put) -> tuple[Any, ...]:
        def place(tree: Any) -> Any:
            return jax.tree.map(lambda x: put(np.asarray(x), *KINDS[kind](x.shape)), tree)

        batch = ("data", "model") if kind in ("data parallel", "FSDP") else "data"
        rows = (normal(BATCH, LENGTH, WIDTH, seed=seed) for seed in (1, 2))
        return place(params), place(optimizer.init(params)), *(put(x, batch) for x in rows)

    return Workload(f"{name}, {kind}", DATA_MODEL, program, arguments)


def workloads() -> list[Workload]:
    return [workload(name, kind) for name in MODELS for kind in KINDS]

"""A training step of an MLP, written once for any library with JAX's names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

RATE = 0.05
MESH = ((4, 2), ("data", "model"))
ROWS = ("data", None)

Side = Any  # the module `benchmarks.ours` or `benchmarks.peer`


@final
@dataclass(frozen=True)
class Sizes:
    """The batch size, and the width of each layer from the features to the outputs.

    Weights are sharded along columns and rows in alternation, as in Megatron. EXAMPLE is `examples/mlp.py`.
    """

    batch: int
    widths: tuple[int, ...]

    def __str__(self) -> str:
        return "×".join(map(str, (self.batch, *self.widths)))

    def layouts(self) -> list[dict[str, tuple[Any, ...]]]:
        """Return the specs of the weight and bias of each layer."""
        columns, rows = {"w": (None, "model"), "b": ("model",)}, {"w": ("model", None), "b": ()}
        return [rows if index % 2 else columns for index in range(len(self.widths) - 1)]

    def arguments(self) -> tuple[list[dict[str, Any]], Any, Any]:
        """Return parameters, inputs and targets as numpy arrays."""
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray[Any, Any]:
            return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

        layers = [{"w": normal(a, b), "b": normal(b)} for a, b in zip(self.widths, self.widths[1:], strict=False)]
        return layers, normal(self.batch, self.widths[0]), normal(self.batch, self.widths[-1])


EXAMPLE = Sizes(30, (16, 64, 4))
EXAMPLE_EVEN = Sizes(32, (16, 64, 4))
LARGER = Sizes(510, (256, 1024, 64))
LARGER_EVEN = Sizes(512, (256, 1024, 64))
TWELVE_LAYERS = Sizes(32, (64,) * 13)


def training_step(
    library: Any, pin: Callable[[Any], Any] = lambda x: x
) -> Callable[[Sequence[dict[str, Any]], Any, Any], Any]:
    """Return one step of gradient descent: (parameters, inputs, targets) → (parameters, loss)."""
    jnp = library.numpy

    def loss(layers: Sequence[dict[str, Any]], x: Any, y: Any) -> Any:
        for index, layer in enumerate(layers):
            x = x @ layer["w"] + layer["b"]
            if index < len(layers) - 1:
                x = jnp.maximum(x, 0.0)
        return jnp.mean(jnp.square(x - y))

    def step(layers: Sequence[dict[str, Any]], x: Any, y: Any) -> Any:
        value, grads = library.value_and_grad(loss)(layers, pin(x), pin(y))
        return library.tree.map(lambda p, g: p - RATE * g, layers, grads), value

    return step


def on_mesh(side: Side, sizes: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the training step and its arguments, sharded over a mesh of eight devices."""
    mesh = side.mesh(*MESH)
    layers, x, y = sizes.arguments()
    sharded_layers = [
        {name: side.put(value, mesh, layout[name]) for name, value in layer.items()}
        for layer, layout in zip(layers, sizes.layouts(), strict=True)
    ]
    step = training_step(side.library, lambda rows: side.pin(rows, mesh, ROWS))
    return step, (sharded_layers, side.put(x, mesh, ROWS), side.put(y, mesh, ROWS))


def on_one_device(side: Side, sizes: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the training step and its arguments, on one device."""
    layers, x, y = sizes.arguments()
    sharded_layers = [{name: side.put(value) for name, value in layer.items()} for layer in layers]
    return training_step(side.library), (sharded_layers, side.put(x), side.put(y))

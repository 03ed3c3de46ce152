"""JAX's side of every comparison, with the names of `ours.py`. Importing this gives JAX eight virtual devices."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICES = 8

if jax.config.jax_num_cpu_devices != DEVICES:
    jax.config.update("jax_num_cpu_devices", DEVICES)

library = jax


def mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def put(value: np.ndarray[Any, Any], mesh: Any = None, spec: Sequence[Any] = ()) -> Any:
    """On the mesh in this layout; without a mesh, on one device. Uneven layouts, which JAX refuses: replicated."""
    if mesh is None:
        return jax.device_put(value, jax.devices()[0])
    even = _divides(value, mesh, spec)
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec) if even else PartitionSpec()))


def pin(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Inside a program: the layout that `put` could not give; there, JAX takes uneven ones too."""
    if _divides(value, mesh, spec):
        return value
    return constrain(value, mesh, spec)


def constrain(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Inside a program: this layout."""
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*spec)))


def wait_one(array: Any) -> Any:
    """For one array; the method is the shortest way."""
    return array.block_until_ready()


def wait(tree: Any) -> Any:
    """For all arrays of a tree, in one batch."""
    return jax.block_until_ready(tree)


def lowered(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """From the Python function to the module that XLA gets. JAX plans and partitions later, inside XLA."""
    return jax.jit(_fresh(function)).lower(*args)


def compiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """From the Python function to jaxlib's loaded executable."""
    return lowered(function, args).compile().runtime_executable()


def _divides(value: Any, mesh: Any, spec: Sequence[Any]) -> bool:
    return all(size % _extent(mesh, axes) == 0 for size, axes in zip(value.shape, spec, strict=False))


def _extent(mesh: Any, axes: Any) -> int:
    """Into how many pieces an entry of a layout cuts a dim."""
    if axes is None:
        return 1
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that no cache has seen."""

    def program(*args: Any) -> Any:
        return function(*args)

    return program

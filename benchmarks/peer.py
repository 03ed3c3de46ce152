"""The adapter for JAX, with the names of `ours.py`. Importing it gives JAX virtual devices: eight by default."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICES = int(os.environ.get("JAX_NUM_CPU_DEVICES", "8"))

if jax.config.jax_num_cpu_devices != DEVICES:
    jax.config.update("jax_num_cpu_devices", DEVICES)

library = jax


def mesh(sizes: tuple[int, ...], names: tuple[str, ...], explicit: bool = False) -> Any:
    """Return a mesh whose axes are Explicit or Auto."""
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Explicit if explicit else AxisType.Auto,) * len(names))


def put(value: np.ndarray[Any, Any], mesh: Any = None, spec: Sequence[Any] = ()) -> Any:
    """Put an array on the mesh with this sharding; without a mesh, on one device.

    JAX rejects uneven shardings: such arrays are replicated, and constrained by `pin` inside the program.
    """
    if mesh is None:
        return jax.device_put(value, jax.devices()[0])
    even = _divides(value, mesh, spec)
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec) if even else PartitionSpec()))


def pin(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Constrain a traced value to the uneven sharding that `put` could not create; JAX accepts it there."""
    if _divides(value, mesh, spec):
        return value
    return constrain(value, mesh, spec)


def constrain(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Constrain the sharding of a traced value."""
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*spec)))


def wait_one(array: Any) -> Any:
    """Wait for one array."""
    return array.block_until_ready()


def wait(tree: Any) -> Any:
    """Wait for all arrays of a pytree, in one batch."""
    return jax.block_until_ready(tree)


def lowered(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Trace and lower a Python function to the module for XLA, which partitions it later."""
    return jax.jit(fresh(function)).lower(*args)


def compiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Compile a Python function to a loaded executable of jaxlib."""
    return lowered(function, args).compile().runtime_executable()


def _divides(value: Any, mesh: Any, spec: Sequence[Any]) -> bool:
    return all(size % _extent(mesh, axes) == 0 for size, axes in zip(value.shape, spec, strict=False))


def _extent(mesh: Any, axes: Any) -> int:
    """Return the number of shards along a dim with this spec entry."""
    if axes is None:
        return 1
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a new function object, so that caches miss."""

    def program(*args: Any) -> Any:
        return function(*args)

    return program

"""The adapter for Shardwise. `peer.py` has the same names, so that a suite is written once for both libraries."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.execute.executor import as_array, compile_request
from shardwise.execute.request import partition_request
from shardwise.sharding import AxisType

library = sw


def mesh(sizes: tuple[int, ...], names: tuple[str, ...], explicit: bool = False) -> Any:
    """Return a mesh whose axes are Explicit or Auto."""
    return sw.make_mesh(sizes, names, axis_types=(AxisType.Explicit if explicit else AxisType.Auto,) * len(names))


def put(value: np.ndarray[Any, Any], mesh: Any = None, spec: Sequence[Any] = ()) -> Any:
    """Put an array on the mesh with this sharding; without a mesh, on one device."""
    return sw.device_put(value, sw.devices()[0] if mesh is None else sw.NamedSharding(mesh, sw.P(*spec)))


def pin(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Return the value unchanged: `put` accepts uneven shardings. See `peer.pin`."""
    return value


def constrain(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Constrain the sharding of a traced value."""
    return sw.lax.with_sharding_constraint(value, sw.NamedSharding(mesh, sw.P(*spec)))


def wait_one(array: Any) -> Any:
    """Wait for one array."""
    return array.block_until_ready()


def wait(tree: Any) -> Any:
    """Wait for all arrays of a pytree, in one batch."""
    return sw.block_until_ready(tree)


def lowered(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Trace, plan, partition and lower a Python function to the text for XLA."""
    request, _ = sw.jit(_fresh(function)).request(args, {})
    return partition_request(request, request.target())


def compiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Compile a Python function to a loaded executable of jaxlib."""
    request, traced = sw.jit(_fresh(function)).request(args, {})
    return compile_request(request, [as_array(x) for x in traced.captured]).executable.loaded


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a new function object, so that caches miss."""

    def program(*args: Any) -> Any:
        return function(*args)

    return program

"""Our side of every comparison. `peer.py` has the same names, so that a suite is written once for both."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.execute.executor import as_array, compile_request
from shardwise.execute.request import partition_request

library = sw


def mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return sw.make_mesh(sizes, names)


def put(value: np.ndarray[Any, Any], mesh: Any = None, spec: Sequence[Any] = ()) -> Any:
    """On the mesh in this layout; without a mesh, on one device."""
    return sw.device_put(value, sw.devices()[0] if mesh is None else sw.NamedSharding(mesh, sw.P(*spec)))


def pin(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Inside a program: what `put` could not do. Here it always could: uneven dims too."""
    return value


def constrain(value: Any, mesh: Any, spec: Sequence[Any]) -> Any:
    """Inside a program: this layout."""
    return sw.lax.with_sharding_constraint(value, sw.NamedSharding(mesh, sw.P(*spec)))


def wait_one(array: Any) -> Any:
    """For one array; the method is the shortest way."""
    return array.block_until_ready()


def wait(tree: Any) -> Any:
    """For all arrays of a tree, in one batch."""
    return sw.block_until_ready(tree)


def lowered(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """From the Python function to the text that XLA gets: traced, planned, partitioned."""
    request, _ = sw.jit(_fresh(function)).request(args, {})
    return partition_request(request, request.target())


def compiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """From the Python function to jaxlib's loaded executable."""
    request, traced = sw.jit(_fresh(function)).request(args, {})
    return compile_request(request, [as_array(x) for x in traced.captured]).executable.loaded


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that no cache has seen."""

    def program(*args: Any) -> Any:
        return function(*args)

    return program

"""Keys and caches of traces: everything that a trace depends on besides the function and its arguments."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from shardwise.base.caches import register
from shardwise.base.config import config
from shardwise.compiler.ir.dispatch import bound_axes, open_frames, tracked_axes
from shardwise.compiler.shardings.mesh import AbstractMesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.execute.lru import LruCache

MAX_BODIES = 64  # per function; the least recently used are evicted first

_bodies: WeakKeyDictionary[Any, LruCache] = WeakKeyDictionary()
register(_bodies.clear)


def trace_context() -> tuple[Any, ...]:
    """Return what a trace depends on besides the function and its arguments: settings, mesh and named axes."""
    axes = tuple(bound_axes().items()), tracked_axes()
    return config.state.trace_settings, mesh_context.mesh, mesh_context.scoped, axes


def argument_mesh(leaves: Sequence[Any]) -> AbstractMesh | None:
    """Return the mesh of the first argument that is on one; for traced arguments, that of the enclosing trace."""
    for leaf in leaves:
        if isinstance(leaf, Tracer):
            return mesh_context.argument_mesh
        if isinstance(sharding := getattr(leaf, "sharding", None), NamedSharding):
            return sharding.mesh.abstract
    return None


def is_alive(captured: Sequence[Any]) -> bool:
    """Return whether no captured tracer belongs to a trace that has ended."""
    return all(not isinstance(x, Tracer) or x.frame in open_frames() for x in captured)


def may_be_cached(captured: Sequence[Any]) -> bool:
    """Return whether a cache may refer to these values: with leak checks, it must not refer to tracers."""
    return not (config.check_tracer_leaks and any(isinstance(x, Tracer) for x in captured))


def body_cache(function: Callable[..., Any], key: object) -> LruCache | None:
    """Return the traces of a loop body or branch, by keys that hold everything that a trace depends on.

    The traces live as long as the function, so they must not refer to it.

    Returns:
        The cache; None if the function or `key` cannot be a key, as that of a pytree with unhashable static data.
    """
    try:
        hash(key)
        return _bodies.setdefault(function, LruCache(MAX_BODIES))
    except TypeError:
        return None

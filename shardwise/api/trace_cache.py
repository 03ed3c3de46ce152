"""Keys and caches of traces: everything that a trace depends on besides the function and its arguments."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from shardwise.base.caches import register
from shardwise.base.config import config
from shardwise.compiler.ir.dispatch import bound_axes, open_frames, tracked_axes
from shardwise.compiler.shardings.mesh import AbstractMesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.execute.lru import LruCache

_Trace = TypeVar("_Trace", bound=tuple[Any, ...])

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


def trace_once(function: Callable[..., Any], key: object, trace: Callable[[], _Trace]) -> _Trace:
    """Return `trace()`, or its earlier result for the same function and key.

    The traces live as long as the function, so they must not refer to it.

    Args:
        function: a loop body, a branch, or another function that is traced within a program.
        key: everything that a trace depends on. Nothing is cached under a key that is not hashable, as that of a pytree
            with unhashable static data.
        trace: traces the function. The second item of its result are the values that the function closes over.
    """
    cache = _body_cache(function, key)
    if cache is not None:
        cached: _Trace | None = cache.get(key) or cache.promote(key)
        if cached is not None and is_alive(cached[1]):
            return cached
    with mesh_context.traced_for(mesh_context.argument_mesh):
        traced = trace()
        reads_mesh = mesh_context.reads_argument_mesh
    if cache is not None and may_be_cached(traced[1]) and not reads_mesh:
        cache.insert(key, traced)
    return traced


def _body_cache(function: Callable[..., Any], key: object) -> LruCache | None:
    """Return the traces of a function by key; None if the function or `key` cannot be a key."""
    try:
        hash(key)
        return _bodies.setdefault(function, LruCache(MAX_BODIES))
    except TypeError:
        return None

"""program_id and num_programs: the step of the grid that a kernel runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from shardwise.api.ref import Ref
from shardwise.compiler.kernels.pallas.tile import OutsideSubset


@final
@dataclass(frozen=True)
class GridContext:
    """The step of the grid that is being traced.

    Attributes:
        indices: the index of the step along each axis of the grid.
        sizes: the number of steps along each axis.
        random_key: the state of the random numbers of the kernel.
        varying: the Manual axes over which the operands vary.
        is_interpreted: whether the kernel is interpreted, and not traced for a GPU.
    """

    indices: tuple[Any, ...]
    sizes: tuple[Any, ...]
    random_key: Ref
    varying: tuple[Any, ...]
    is_interpreted: bool = True


class _Contexts(threading.local):
    innermost: GridContext | None = None


_contexts = _Contexts()


@contextmanager
def grid_context(context: GridContext) -> Iterator[None]:
    """Let `program_id` and `num_programs` refer to this step inside a `with` block."""
    outer, _contexts.innermost = _contexts.innermost, context
    try:
        yield
    finally:
        _contexts.innermost = outer


def current_context(name: str) -> GridContext:
    """Return the step that is being traced. `name` is the calling function, for the error."""
    if _contexts.innermost is None:
        raise ValueError(f"{name}: no kernel is being traced: call it in a kernel that `pallas_call` runs")
    return _contexts.innermost


def require_interpreter(what: str) -> None:
    """Raise OutsideSubset if the current kernel is traced for a GPU. `what` says what it does."""
    if _contexts.innermost is not None and not _contexts.innermost.is_interpreted:
        raise OutsideSubset(what)


def current_varying() -> tuple[Any, ...]:
    """Return the Manual axes over which buffers of the current kernel vary; none outside of kernels."""
    return () if _contexts.innermost is None else _contexts.innermost.varying


def program_id(axis: int) -> Any:
    """Return the index of the step of the grid that runs.

    Args:
        axis: the axis of the grid.

    Returns:
        An int32 scalar.

    Raises:
        ValueError: if no kernel is being traced, or the grid has no such axis.

    Example:
        >>> def kernel(out_ref):
        ...     out_ref[pallas.program_id(0)] = 10 * pallas.program_id(0)
        >>> pallas.pallas_call(kernel, jax.ShapeDtypeStruct((3,), jnp.int32), grid=(3,))()
        Array([ 0, 10, 20], dtype=int32)
    """
    return _entry("program_id", current_context("program_id").indices, axis)


def num_programs(axis: int) -> Any:
    """Return the number of steps along an axis of the grid.

    Args:
        axis: the axis of the grid.

    Returns:
        An integer; an int32 scalar if the size of the grid is traced.

    Raises:
        ValueError: if no kernel is being traced, or the grid has no such axis.

    Example:
        >>> def kernel(out_ref):
        ...     out_ref[...] = jnp.full((3,), pallas.num_programs(0))
        >>> pallas.pallas_call(kernel, jax.ShapeDtypeStruct((3,), jnp.int32), grid=(2,))()
        Array([2, 2, 2], dtype=int32)
    """
    return _entry("num_programs", current_context("num_programs").sizes, axis)


def _entry(name: str, entries: tuple[Any, ...], axis: int) -> Any:
    if not 0 <= axis < len(entries):
        raise ValueError(
            f"{name}: axis {axis} does not exist: the grid of the kernel has {len(entries)} axes, counted from 0"
        )
    return entries[axis]

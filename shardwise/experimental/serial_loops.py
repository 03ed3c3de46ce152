"""Serial loops: resources of `xmap` by which the dims of a name are computed in steps, one after the other."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from shardwise import tree
from shardwise.api.control import map as map_slices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.shape.movement import Reshape, move_dim


@final
@dataclass(frozen=True)
class SerialLoop:
    """A resource of one name of an `xmap`: its dims are computed in steps, which lowers the memory.

    Args:
        length: the number of steps. It must divide the size of the axis.

    Raises:
        ValueError: when an `xmap` uses it, if `length` does not divide the size of the axis.

    Example:
        >>> from shardwise.experimental.maps import SerialLoop, xmap
        >>> xmap(lambda x: x * x, ["i"], ["i"], axis_resources={"i": SerialLoop(2)})(jnp.arange(4))
        Array([0, 1, 4, 9], dtype=int32)
    """

    length: int


@contextmanager
def serial_loop(name: str, length: int) -> Iterator[None]:
    """Define a serial loop that `axis_resources` of `xmap` may refer to by name, inside a `with` block.

    An `xmap` that maps an axis name to the loop runs its function `length` times, each time for a slice of the dims of
    that name. This lowers the memory that intermediate values need. The function must not use the axis name.

    Args:
        name: the name of the loop.
        length: the number of steps. It must divide the size of the axis.

    Returns:
        A context manager, which is also a decorator.

    Raises:
        ValueError: if `length` is not a positive integer.

    Example:
        >>> from shardwise.experimental.maps import serial_loop, xmap
        >>> with serial_loop("steps", 2):
        ...     xmap(lambda x: x * x, ["i"], ["i"], axis_resources={"i": "steps"})(jnp.arange(4))
        Array([0, 1, 4, 9], dtype=int32)
    """
    if type(length) is not int or length < 1:
        raise ValueError(f"serial_loop: the length must be a positive integer, not {length!r}")
    before = _loops.lengths
    _loops.lengths = {**before, name: length}
    try:
        yield
    finally:
        _loops.lengths = before


class _Loops(threading.local):
    """The loops of the enclosing `serial_loop` blocks of this thread, with their lengths."""

    def __init__(self) -> None:
        self.lengths: Mapping[str, int] = {}


_loops = _Loops()


def split_resources(resources: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    """Return the mesh axes among the resources of a name, and the number of steps of its loops."""
    axes, steps = [], 1
    for resource in resources:
        if isinstance(resource, SerialLoop):
            steps *= resource.length
        elif resource in _loops.lengths:
            steps *= _loops.lengths[resource]
        else:
            axes.append(resource)
    return tuple(axes), steps


def run_in_steps(
    function: Callable[[list[Any]], Any], operands: Sequence[Any], dims: Sequence[int | None], steps: int
) -> tuple[list[Any], tree.Structure]:
    """Call a function for slices of operands along `dims`, one after the other.

    `function` accepts a list of slices; an operand whose dim is None is passed whole. Returns the leaves of its
    results, stacked along a new dim 0, and their structure.
    """
    slices = [_split_dim(x, dim, steps) for x, dim in zip(operands, dims, strict=True) if dim is not None]

    def step(parts: list[Any]) -> Any:
        remaining = iter(parts)
        return function([x if dim is None else next(remaining) for x, dim in zip(operands, dims, strict=True)])

    return tree.flatten(map_slices(step, slices))


def _split_dim(x: Array, dim: int, steps: int) -> Any:
    """Split a dim into `steps` slices, along a new dim 0."""
    shape = x.type.shape
    split = Reshape((*shape[:dim], steps, shape[dim] // steps, *shape[dim + 1 :]))(x)
    return move_dim(split, dim, 0)


def merge_steps(x: Array, dim: int) -> Any:
    """Concatenate the results of all steps, along dim 0, along `dim` of the results."""
    shape = x.type.shape[1:]
    moved = move_dim(x, 0, dim)
    return Reshape((*shape[:dim], x.type.shape[0] * shape[dim], *shape[dim + 1 :]))(moved)

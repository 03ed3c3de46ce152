"""run_grid: run a kernel for every step of a grid, one after the other, on blocks of Refs.

The Refs of the arrays are outside of the loop, so a loop over the steps carries the arrays that are written. Each step
slices its blocks, runs the kernel on new Refs that hold them, and writes the blocks back that have changed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.ref import Ref
from shardwise.experimental.pallas.blocks import BlockMapping
from shardwise.experimental.pallas.grid_context import GridContext, grid_context


@final
@dataclass(frozen=True)
class BlockOperand:
    """An array of a kernel: a Ref or a view that holds it, and its blocks."""

    mapping: BlockMapping
    array: Any


def run_grid(
    step: Callable[..., None],
    operands: Sequence[BlockOperand],
    scalars: Sequence[Any],
    context: GridContext,
) -> None:
    """Call `step` with the Refs of the blocks of `operands`, for every step of the grid in row-major order.

    Args:
        step: the kernel.
        operands: the arrays that it reads and writes in blocks.
        scalars: the scalar prefetch Refs, for the index maps.
        context: the sizes of the grid. Its indices are replaced.
    """
    sizes = context.sizes

    def run(number: Any) -> None:
        indices = _unravel(number, sizes)
        with grid_context(replace(context, indices=indices)):
            _run_step(step, operands, indices, scalars)

    if all(isinstance(size, int) for size in sizes):
        count = math.prod(sizes)
        if count == 1:
            run(jnp.int32(0))
        elif count:
            lax.fori_loop(0, count, lambda number, _: run(number), None)
        return
    total = math.prod(jnp.asarray(size, jnp.int32) for size in sizes)
    lax.fori_loop(jnp.int32(0), total, lambda number, _: run(number), None)


def _unravel(number: Any, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the indices of a step, of which the last one is the fastest."""
    indices: list[Any] = []
    number = number.astype(jnp.int32)  # of a loop with `enable_x64`, it has 64 bits
    for axis in range(len(sizes) - 1, -1, -1):
        size = sizes[axis]
        if isinstance(size, int) and size == 1:
            indices.append(jnp.int32(0))
        elif axis == 0 or all(isinstance(outer, int) and outer == 1 for outer in sizes[:axis]):
            indices.append(number)
        else:
            divisor = jnp.asarray(size, jnp.int32)
            indices.append(lax.rem(number, divisor))
            number = lax.div(number, divisor)
    return tuple(reversed(indices))


def _run_step(
    step: Callable[..., None], operands: Sequence[BlockOperand], indices: Sequence[Any], scalars: Sequence[Any]
) -> None:
    refs, written_back = [], []
    for operand in operands:
        mapping = operand.mapping
        if mapping.is_whole:
            refs.append(operand.array)
            continue
        starts = mapping.starts(indices, scalars)
        block = Ref(mapping.read(operand.array[...], starts))
        refs.append(block)
        written_back.append((operand, starts, block, block[...]))
    step(*refs)
    for operand, starts, block, before in written_back:
        if block[...] is not before:
            operand.array[...] = operand.mapping.write(operand.array[...], starts, block[...])

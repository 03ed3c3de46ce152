"""GridSpec: the grid of a kernel, and the blocks of its operands and results at each step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_integer
from shardwise.errors import UnsupportedError
from shardwise.experimental.pallas.block_spec import no_block_spec


class GridSpec:
    """The grid of a kernel, and the blocks of its operands and results at each step.

    Args:
        grid: the number of steps along each axis of the grid: integers, which may be traced. The last axis is the
            fastest.
        in_specs: a `BlockSpec` for each operand, in a tuple or list with the structure of the operands.
        out_specs: a `BlockSpec` for each result, with the structure of `out_shape`.
        scratch_shapes: the types of the scratch buffers, such as `pltpu.VMEM(shape, dtype)`.

    Raises:
        TypeError: if a size of `grid` is not an integer scalar, or `in_specs` is not a tuple or list.
        ValueError: if a size of `grid` is negative.
        UnsupportedError: if the axes of the grid have names.

    Example:
        >>> pallas.GridSpec(grid=(2, 3), in_specs=[pallas.BlockSpec((8, 8), lambda i, j: (i, j))]).grid
        (2, 3)
    """

    def __init__(
        self,
        grid: object = (),
        in_specs: object = no_block_spec,
        out_specs: object = no_block_spec,
        scratch_shapes: object = (),
    ):
        if in_specs is not no_block_spec and not isinstance(in_specs, (tuple, list)):
            raise TypeError(
                f"GridSpec: in_specs must be a tuple or a list with a BlockSpec for each operand, not {in_specs!r}"
            )
        self.grid = tuple(_check_size(size) for size in (grid if isinstance(grid, Sequence) else (grid,)))
        self.in_specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
        self.out_specs = tuple(out_specs) if isinstance(out_specs, list) else out_specs
        self.scratch_shapes = scratch_shapes


class PrefetchScalarGridSpec(GridSpec):
    """A `GridSpec` whose index maps also see the first operands, which the kernel gets as Refs first.

    Args:
        num_scalar_prefetch: the number of operands that are passed whole, and to index maps. They have no `BlockSpec`.
        grid, in_specs, out_specs, scratch_shapes: as of `GridSpec`.

    Raises:
        TypeError: if `num_scalar_prefetch` is not an integer.
        ValueError: if it is negative.

    Example:
        >>> pallas.tpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,)).num_scalar_prefetch
        1
    """

    def __init__(
        self,
        num_scalar_prefetch: int,
        grid: object = (),
        in_specs: object = no_block_spec,
        out_specs: object = no_block_spec,
        scratch_shapes: object = (),
    ):
        super().__init__(grid, in_specs, out_specs, scratch_shapes)
        if not isinstance(num_scalar_prefetch, int):
            raise TypeError(
                f"PrefetchScalarGridSpec: num_scalar_prefetch must be an integer, not {num_scalar_prefetch!r}"
            )
        if num_scalar_prefetch < 0:
            raise ValueError(
                f"PrefetchScalarGridSpec: num_scalar_prefetch must be the number of operands that come first, not "
                f"{num_scalar_prefetch}"
            )
        self.num_scalar_prefetch = num_scalar_prefetch


def _check_size(size: Any) -> Any:
    """Return the number of steps along an axis of a grid; an array if it may be traced."""
    if isinstance(size, tuple):
        raise UnsupportedError(
            f"pallas: the grid has an axis with a name, {size!r}. Use the size alone, and `pl.program_id` for the "
            "index."
        )
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        if size < 0:
            raise ValueError(f"pallas: the grid has {size} steps along an axis: use a size of at least 0")
        return int(size)
    if getattr(size, "shape", None) == () and is_integer(size.dtype):
        return size
    raise TypeError(f"pallas: a size of the grid must be an integer, which may be traced, not {size!r}")

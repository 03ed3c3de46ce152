"""BlockMapping: how the blocks of one array are read and written by the steps of a grid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import is_integer
from shardwise.experimental.pallas.block_spec import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Element,
    Squeezed,
    as_block_dim,
    block_size,
)
from shardwise.experimental.pallas.memory import undefined


@final
@dataclass(frozen=True)
class BlockMapping:
    """The blocks of one array.

    Attributes:
        where: which operand or result of which kernel it is, for errors.
        shape: the shape of the array.
        dims: the dims of a block.
        index_map: maps the indices of a step and the scalar prefetch Refs to the indices of its block; None if all
            are 0.
        memory_space: the memory space that the user wrote.
    """

    where: str
    shape: tuple[int, ...]
    dims: tuple[BlockDim, ...]
    index_map: Callable[..., Any] | None
    memory_space: Any = None

    @staticmethod
    def from_spec(spec: BlockSpec, shape: tuple[int, ...], where: str) -> "BlockMapping":
        """Return the mapping of a `BlockSpec` for an array of this shape."""
        block_shape = shape if spec.block_shape is None else tuple(spec.block_shape)
        if len(block_shape) != len(shape):
            raise ValueError(
                f"{where}: the block shape {block_shape} has {len(block_shape)} dims, and the array of shape {shape} "
                f"has {len(shape)}. Write one entry per dim; None is a dim of size 1 that the kernel does not see."
            )
        dims = tuple(as_block_dim(dim, where) for dim in block_shape)
        if any(block_size(dim) < 1 and size for dim, size in zip(dims, shape, strict=True)):
            raise ValueError(f"{where}: the block shape {block_shape} has an empty dim: use sizes of at least 1")
        return BlockMapping(where, shape, dims, spec.index_map, spec.memory_space)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of a block along each dim of the array."""
        return tuple(map(block_size, self.dims))

    @property
    def is_whole(self) -> bool:
        """Whether every step sees the whole array."""
        return self.index_map is None and self.sizes == self.shape and not self.squeezed

    @property
    def squeezed(self) -> tuple[int, ...]:
        """The dims of the array that the kernel does not see."""
        return tuple(number for number, dim in enumerate(self.dims) if isinstance(dim, Squeezed))

    @property
    def _padding(self) -> list[tuple[int, int, int]]:
        """How to pad the array so that all blocks are inside: low, high and interior padding of each dim."""
        config = []
        for size, dim in zip(self.shape, self.dims, strict=True):
            low, high = dim.padding if isinstance(dim, Element) else (0, 0)
            overhang = -(size + low + high) % block_size(dim) if block_size(dim) else 0
            config.append((low, high + overhang, 0))
        return config

    @property
    def is_padded(self) -> bool:
        """Whether some blocks are partly outside of the array."""
        return any(low or high for low, high, _ in self._padding)

    def pad(self, x: Array) -> Any:
        """Return the array with undefined elements around it, so that all blocks are inside."""
        return lax.pad(x, undefined((), x.dtype), self._padding) if self.is_padded else x

    def unpad(self, x: Array) -> Any:
        """Return the array without the elements that `pad` added."""
        if not self.is_padded:
            return x
        return x[tuple(slice(low, low + size) for size, (low, _, _) in zip(self.shape, self._padding, strict=True))]

    def starts(self, indices: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
        """Return the first element of the block of a step along each dim."""
        if self.index_map is None:
            return [0] * len(self.dims)
        try:
            block = self.index_map(*indices, *scalars)
        except TypeError as error:
            count = f"{len(indices)} indices" + (f" and {len(scalars)} scalar prefetch Refs" if scalars else "")
            error.add_note(f"{self.where}: the index map is called with {count}, one index per axis of the grid.")
            raise
        entries = tuple(block) if isinstance(block, (tuple, list)) else (block,)
        if len(entries) != len(self.dims):
            raise ValueError(
                f"{self.where}: the index map returned {len(entries)} indices, and the block shape has "
                f"{len(self.dims)} dims. Return one index per dim of the array, also for dims that are None in the "
                "block shape."
            )
        return [self._start(dim, kind, entry) for dim, (kind, entry) in enumerate(zip(self.dims, entries, strict=True))]

    def _start(self, dim: int, kind: BlockDim, entry: Any) -> Any:
        is_slice = isinstance(entry, Slice)
        if is_slice != isinstance(kind, BoundedSlice):
            expected = "`pl.ds(start, size)`" if isinstance(kind, BoundedSlice) else "an integer scalar"
            raise TypeError(
                f"{self.where}: the index map returned {entry!r} for dim {dim}, whose block dim is {kind}. "
                f"Return {expected}."
            )
        if entry is None:
            raise TypeError(f"{self.where}: the index map returned None. Return one index per dim of the array.")
        start = jnp.asarray(entry.start if is_slice else entry)
        if start.shape or not is_integer(start.dtype):
            raise TypeError(
                f"{self.where}: the index map returned an index of type {start.type} for dim {dim}. Return an integer "
                "scalar; read a scalar prefetch Ref with an index for each of its dims."
            )
        start = start.astype(jnp.int32)
        return start * kind.block_size if isinstance(kind, Blocked) else start

    def read(self, x: Array, starts: Sequence[Any]) -> Any:
        """Return a block of the padded array, without squeezed dims."""
        block = x if self.sizes == x.shape else lax.dynamic_slice(x, starts, self.sizes, allow_negative_indices=False)
        return lax.squeeze(block, self.squeezed)

    def write(self, x: Array, starts: Sequence[Any], block: Any) -> Any:
        """Return the padded array with a new block."""
        block = lax.expand_dims(block, self.squeezed)
        if self.sizes == x.shape:
            return block
        return lax.dynamic_update_slice(x, block, starts, allow_negative_indices=False)

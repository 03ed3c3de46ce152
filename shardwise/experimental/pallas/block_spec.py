"""BlockSpec: which block of an array each step of a grid sees, and the kinds of dims of a block."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import Any, TypeAlias, final

from shardwise.experimental.pallas.memory import check_memory_space


@final
@dataclass(frozen=True)
class Blocked:
    """A block dim whose index counts blocks: it starts at `index × block_size`. An integer means the same."""

    block_size: int


@final
@dataclass(frozen=True)
class Element:
    """A block dim whose index counts elements: it starts at `index`.

    Attributes:
        block_size: the size of the block.
        padding: the number of elements before and after the array that indices can reach. Their values are undefined.
    """

    block_size: int
    padding: tuple[int, int] = (0, 0)


@final
@dataclass(frozen=True)
class Squeezed:
    """A block dim of size 1 that the Ref of the kernel lacks. None means the same."""


@final
@dataclass(frozen=True)
class BoundedSlice:
    """A block dim for which the index map returns `ds(start, size)`, with a size of at most `block_size`.

    The Ref has `block_size` elements from `start` on.
    """

    block_size: int


squeezed = Squeezed()
BlockDim: TypeAlias = Blocked | Element | Squeezed | BoundedSlice


def as_block_dim(dim: Any, where: str) -> BlockDim:
    """Return an entry of a block shape as a block dim. `where` says which block shape it is, for the error."""
    if dim is None:
        return squeezed
    kind = dim if isinstance(dim, (Blocked, Element, Squeezed, BoundedSlice)) else Blocked(dim)
    padding = kind.padding if isinstance(kind, Element) else ()
    try:
        sizes = [operator.index(size) for size in (block_size(kind), *padding)]
    except TypeError as error:
        raise TypeError(
            f"{where}: {dim!r} is not a block dim. Use an integer, None, or one of pl.Blocked, pl.Element, pl.Squeezed "
            "and pl.BoundedSlice, with integers."
        ) from error
    if any(size < 0 for size in sizes[1:]):
        raise ValueError(f"{where}: the padding of {dim!r} is negative: use numbers of elements of at least 0")
    return kind if kind is dim else Blocked(sizes[0])


def block_size(dim: BlockDim) -> int:
    """Return the number of elements of a block along a dim."""
    return 1 if isinstance(dim, Squeezed) else dim.block_size


@unique
class RevisitMode(Enum):
    """When an output block may be visited again. The interpreter allows it at any step."""

    IMMEDIATE = "immediate"
    ANY = "any"


@final
@dataclass(frozen=True)
class Buffered:
    """How a pipeline buffers a block; accepted and ignored, because the interpreter has no pipeline.

    Attributes:
        buffer_count: the number of buffers.
        use_lookahead: whether blocks are fetched several steps ahead.
        revisit: when an output block may be visited again.
    """

    buffer_count: int
    use_lookahead: bool = False
    revisit: RevisitMode | None = None


@dataclass
class BlockSpec:
    """The block of an array that a step of the grid reads or writes.

    Args:
        block_shape: one entry per dim of the array: an integer; None for a dim of size 1 that the kernel does not see;
            or a block dim such as `Element(size)`. None instead of a shape is the whole array.
        index_map: a function from the indices of the step, and the scalar prefetch Refs, to one block index per dim.
            By default all are 0.
        memory_space: the memory of the block. The interpreter has only one.
        pipeline_mode: how the block is buffered; ignored.

    Raises:
        TypeError: if `block_shape` is not a sequence, `index_map` is not callable, or `memory_space` is not a memory
            space.

    Example:
        >>> pallas.BlockSpec((8, 128), lambda i, j: (i, j)).block_shape
        (8, 128)
    """

    block_shape: Sequence[Any] | None = None
    index_map: Callable[..., Any] | None = None
    memory_space: Any | None = field(kw_only=True, default=None)
    pipeline_mode: Buffered | None = None

    def __post_init__(self) -> None:
        if self.index_map is not None and not callable(self.index_map):
            raise TypeError(
                f"BlockSpec: index_map must be a function of the grid's indices, not {self.index_map!r}. The block "
                "shape comes first: `BlockSpec((8, 128), lambda i, j: (i, j))`."
            )
        if self.block_shape is not None and not isinstance(self.block_shape, Sequence):
            raise TypeError(
                f"BlockSpec: block_shape must be a sequence with one entry per dim of the array, not "
                f"{self.block_shape!r}: write `BlockSpec((8, 128), ...)`"
            )
        check_memory_space("BlockSpec", self.memory_space)

    def replace(self, **changes: Any) -> "BlockSpec":
        """Return a copy with other fields."""
        return replace(self, **changes)


@final
class NoBlockSpec:
    """The class of `no_block_spec`."""

    def __repr__(self) -> str:
        return "NoBlockSpec"


no_block_spec = NoBlockSpec()

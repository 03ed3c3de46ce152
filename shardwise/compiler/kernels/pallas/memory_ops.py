"""Ops of a Pallas kernel that read and write memory: open_block, load, store and atomic updates.

They exist in the body of a kernel only. A token stands for the memory that a Ref refers to: `open_block` returns the
first one, every write returns the next one, and equations are emitted in order. No value of a kernel has its type.
"""

from typing import NamedTuple, final

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType

TOKEN = ArrayType((0, 0, 0), np.dtype(np.int32))


@final
class AccessDim(NamedTuple):
    """The elements that an access selects along one dim of a block.

    Attributes:
        axis: the dim of the accessed elements, for a slice that starts at the operand; None for operands that are
            indices, whose shape broadcasts to that of the accessed elements.
        size: the number of elements of a slice.
        stride: the distance between elements of a slice.
    """

    axis: int | None
    size: int = 1
    stride: int = 1


@record
class MemoryOp(Op):
    """The base class."""

    accepts_keys = False

    @property
    def effect(self) -> str:
        return "ordered"


@final
@record
class OpenBlock(MemoryOp):
    """The block of an array that a step of the grid sees. Operands: its first element along each dim of the array.

    Attributes:
        array: the index of the array: operands come first, then results.
        sizes: the number of elements of the block along each dim of the array.
        squeezed: the dims that the kernel does not see.
    """

    name = "open_block"
    array: int
    sizes: tuple[int, ...]
    squeezed: tuple[int, ...]

    def out_type(self, *starts: ArrayType) -> ArrayType:
        return TOKEN


@record
class Access(MemoryOp):
    """An access to a part of a block.

    Operands: the token, a start or an index for each dim of the block that the kernel sees, the operands of the
    subclass, and the mask if `masked`.

    Attributes:
        dims: the elements along each of these dims.
        shape: the shape of the accessed elements.
        dtype: their dtype.
        masked: whether there is a mask. Without one, negative starts and indices are counted from the end, and the
            accessed elements are moved into bounds.
    """

    dims: tuple[AccessDim, ...]
    shape: tuple[int, ...]
    dtype: DType
    masked: bool

    @property
    def elements(self) -> ArrayType:
        """The type of the accessed elements."""
        return ArrayType(self.shape, self.dtype)


@final
@record
class Load(Access):
    """Read elements; the last operand, a scalar or an array, where the mask is false."""

    name = "load_block"
    eviction: str = ""

    def out_type(self, *operands: ArrayType) -> ArrayType:
        return self.elements


@final
@record
class Store(Access):
    """Write elements, which are the last operand before the mask."""

    name = "store_block"

    def out_type(self, *operands: ArrayType) -> ArrayType:
        return TOKEN


@final
@record
class AtomicUpdate(Access):
    """Update elements atomically. Results: what they were, and the token.

    `kind` is that of Triton, such as "add"; "cas" has two operands, the expected element and the new one.
    """

    name = "atomic_update"
    single = False
    kind: str

    def out_types(self, *operands: ArrayType) -> tuple[ArrayType, ...]:
        return self.elements, TOKEN

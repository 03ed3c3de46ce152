"""Memory spaces, and the types of buffers in them.

A memory space is called with a shape and a dtype: `VMEM((8, 128), jnp.float32)` is the type of a scratch buffer. The
interpreter has one memory: every buffer is a Ref.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.ref import Ref
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DTypeLike, is_inexact, is_integer
from shardwise.compiler.ir.types import ArrayType
from shardwise.lax.manual_axes import make_varying


@final
@dataclass(frozen=True)
class MemoryRef:
    """The type of a buffer: of a scratch buffer, of one that `run_scoped` allocates, or of an output.

    Attributes:
        inner_aval: the type of the array that it holds.
        memory_space: the memory that it is in.
    """

    inner_aval: ArrayType
    memory_space: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner_aval.shape

    @property
    def dtype(self) -> Any:
        return self.inner_aval.dtype

    def get_array_aval(self) -> ArrayType:
        """Return the type of the array."""
        return self.inner_aval


class _Space(Enum):
    """A memory space. Calling it returns the type of a buffer in it."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike) -> MemoryRef:
        return MemoryRef(ArrayType(tuple(shape), canonical_dtype(dtype)), self)

    def from_type(self, type: ArrayType) -> MemoryRef:
        """Return the type of a buffer that holds an array of this type."""
        return MemoryRef(type, self)

    def like(self, array: Any) -> MemoryRef:
        """Return the type of a buffer for an array like this one."""
        return self(array.shape, array.dtype)

    def __str__(self) -> str:
        return str(self.value)


@unique
class MemorySpace(_Space):
    """The memory spaces of all devices."""

    ANY = "any"
    DEFAULT = "default"
    ERROR = "error"
    INDEX = "index"
    KEY = "key"
    HOST = "host"


@unique
class TpuMemorySpace(_Space):
    """The memory spaces of a TPU."""

    VMEM = "vmem"
    VMEM_SHARED = "vmem_shared"
    SMEM = "smem"
    CMEM = "cmem"
    SEMAPHORE = "semaphore_mem"
    HBM = "hbm"


@unique
class SemaphoreType(Enum):
    """The kinds of semaphores. Each is the type of one semaphore, and, called with a shape, of an array of them."""

    REGULAR = "regular"
    DMA = "dma"
    BARRIER = "barrier"

    def __call__(self, shape: Sequence[int]) -> MemoryRef:
        return MemoryRef(ArrayType(tuple(shape), np.dtype(np.int32)), TpuMemorySpace.SEMAPHORE)


def check_memory_space(name: str, space: object) -> None:
    """Raise TypeError if `space` is neither None nor a memory space."""
    if space is not None and not isinstance(space, _Space):
        raise TypeError(
            f"{name}: {space!r} is not a memory space. Use a member of pl.MemorySpace or pltpu.MemorySpace, such as "
            "pl.ANY or pltpu.VMEM."
        )


def allocate(buffer: object, varying: Sequence[Any] = ()) -> Ref:
    """Return a new Ref for a type of buffer. Semaphores are 0, and the values of other buffers undefined.

    Args:
        buffer: a `MemoryRef`, a kind of semaphores, or anything with a shape and a dtype.
        varying: the Manual axes over which its values vary.
    """
    if isinstance(buffer, SemaphoreType):
        buffer = buffer(())
    if not (hasattr(buffer, "shape") and hasattr(buffer, "dtype")):
        raise TypeError(
            f"pallas: {buffer!r} is not the type of a buffer. Use a memory space with a shape and a dtype, such as "
            "pltpu.VMEM((8, 128), jnp.float32), or a semaphore type such as pltpu.SemaphoreType.DMA."
        )
    is_semaphore = getattr(buffer, "memory_space", None) is TpuMemorySpace.SEMAPHORE
    value = jnp.zeros(buffer.shape, buffer.dtype) if is_semaphore else undefined(buffer.shape, buffer.dtype)
    return Ref(make_varying(value, varying))


def undefined(shape: Sequence[int], dtype: DTypeLike) -> Any:
    """Return an array that shows where undefined values are used: NaN, or the least integer."""
    dtype = canonical_dtype(dtype)
    if is_inexact(dtype):
        return jnp.full(shape, jnp.nan, dtype)
    return jnp.full(shape, jnp.iinfo(dtype).min, dtype) if is_integer(dtype) else jnp.zeros(shape, dtype)

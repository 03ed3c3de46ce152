"""Copies between Refs. A copy is complete when it starts; its semaphore counts the bytes that are not waited for."""

from dataclasses import dataclass
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.ref import RefLike


@final
@dataclass(frozen=True)
class AsyncCopyDescriptor:
    """A copy from one Ref to another on the same device.

    Attributes:
        src_ref: the Ref or view that is read.
        dst_ref: the Ref or view that is written.
        dst_sem: the semaphore that counts the bytes.
    """

    src_ref: Any
    dst_ref: Any
    dst_sem: Any

    def start(self, priority: int = 0, *, add: bool = False) -> None:
        """Copy. With `add`, add to what the destination holds. The priority is ignored."""
        del priority
        if tuple(self.src_ref.shape) != tuple(self.dst_ref.shape):
            raise ValueError(
                f"async copy: the source has shape {tuple(self.src_ref.shape)} and the destination "
                f"{tuple(self.dst_ref.shape)}. Copy between views of the same shape, such as `ref.at[pl.ds(i, n)]`."
            )
        if self.src_ref.dtype != self.dst_ref.dtype:
            raise TypeError(
                f"async copy: the source is of {self.src_ref.dtype} and the destination of {self.dst_ref.dtype}. A "
                "copy does not convert: read the Ref, and write the converted array."
            )
        value = self.src_ref[...]
        self.dst_ref[...] = self.dst_ref[...] + value if add else value
        self.dst_sem[...] = self.dst_sem[...] + self._bytes

    def wait(self) -> None:
        """Subtract the bytes of the copy from the semaphore."""
        self.dst_sem[...] = self.dst_sem[...] - self._bytes

    wait_send = wait_recv = wait

    @property
    def _bytes(self) -> int:
        return int(self.dst_ref.size) * int(jnp.dtype(self.dst_ref.dtype).itemsize)


def make_async_copy(src_ref: RefLike, dst_ref: RefLike, sem: RefLike) -> AsyncCopyDescriptor:
    """Describe a copy between Refs; `start` runs it.

    Args:
        src_ref: the Ref or view to read.
        dst_ref: the Ref or view to write, of the same shape and dtype.
        sem: a semaphore for its completion.

    Returns:
        The copy, with the methods `start` and `wait`.

    Raises:
        ValueError: when it starts, if the shapes differ.
        TypeError: when it starts, if the dtypes differ.

    Example:
        >>> def kernel(x_ref, out_ref, semaphore):
        ...     copy = pallas.tpu.make_async_copy(x_ref, out_ref, semaphore)
        ...     copy.start()
        ...     copy.wait()
        >>> x = jnp.arange(3.0)
        >>> pallas.pallas_call(kernel, x, scratch_shapes=[pallas.tpu.SemaphoreType.DMA])(x)
        Array([0., 1., 2.], dtype=float32)
    """
    return AsyncCopyDescriptor(src_ref, dst_ref, sem)


def async_copy(
    src_ref: RefLike, dst_ref: RefLike, sem: RefLike, *, priority: int = 0, add: bool = False
) -> AsyncCopyDescriptor:
    """Start a copy between Refs; see `make_async_copy`.

    Args:
        src_ref, dst_ref, sem: as of `make_async_copy`.
        priority: ignored.
        add: whether to add to what the destination holds.

    Returns:
        The copy.

    Raises:
        ValueError: if the shapes differ.
        TypeError: if the dtypes differ.

    Example:
        >>> def kernel(x_ref, out_ref, semaphore):
        ...     pallas.tpu.async_copy(x_ref, out_ref, semaphore).wait()
        >>> x = jnp.arange(3.0)
        >>> pallas.pallas_call(kernel, x, scratch_shapes=[pallas.tpu.SemaphoreType.DMA])(x)
        Array([0., 1., 2.], dtype=float32)
    """
    copy = make_async_copy(src_ref, dst_ref, sem)
    copy.start(priority, add=add)
    return copy


def sync_copy(src_ref: RefLike, dst_ref: RefLike, *, add: bool = False) -> None:
    """Copy between pytrees of Refs.

    Args:
        src_ref: a pytree of Refs and views to read.
        dst_ref: those to write, of the same structure.
        add: whether to add to what the destinations hold.

    Raises:
        ValueError: if the structures differ.

    Example:
        >>> def kernel(x_ref, out_ref):
        ...     pallas.tpu.sync_copy(x_ref, out_ref)
        >>> pallas.pallas_call(kernel, jnp.zeros(2))(jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """

    def copy(source: Any, destination: Any) -> None:
        destination[...] = destination[...] + source[...] if add else source[...]

    tree.map(copy, src_ref, dst_ref)

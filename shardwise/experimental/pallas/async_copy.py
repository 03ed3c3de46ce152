"""Copies between Refs. A copy is complete when it starts; its semaphore counts the bytes that are not waited for."""

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.ref import RefLike
from shardwise.api.ref_view import RefViews


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
        _copy("async copy", self.src_ref, self.dst_ref, add)
        self.dst_sem[...] = self.dst_sem[...] + self._bytes

    def wait(self) -> None:
        """Subtract the bytes of the copy from the semaphore."""
        self.dst_sem[...] = self.dst_sem[...] - self._bytes

    wait_send = wait_recv = wait

    @property
    def _bytes(self) -> int:
        return int(self.dst_ref.size) * int(jnp.dtype(self.dst_ref.dtype).itemsize)


def _copy(name: str, source: Any, destination: Any, add: bool) -> None:
    """Write the elements of a Ref or view to another one of the same type, or add them to its elements."""
    if tuple(source.shape) != tuple(destination.shape):
        raise ValueError(
            f"{name}: the source has shape {tuple(source.shape)} and the destination {tuple(destination.shape)}. Copy "
            "between views of the same shape, such as `ref.at[pl.ds(i, n)]`."
        )
    if source.dtype != destination.dtype:
        raise TypeError(
            f"{name}: the source is of {source.dtype} and the destination of {destination.dtype}. A copy does not "
            "convert: read the Ref, and write the converted array."
        )
    value = source[...]
    destination[...] = destination[...] + value if add else value


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
    """Copy between pytrees of Refs and views.

    Args:
        src_ref: a pytree of Refs and views to read.
        dst_ref: the Refs and views to write, with the same structure, shapes and dtypes.
        add: whether to add to what the destinations hold.

    Raises:
        ValueError: if the structures or shapes differ.
        TypeError: if the dtypes differ.

    Example:
        >>> def kernel(x_ref, out_ref):
        ...     pallas.tpu.sync_copy(x_ref, out_ref)
        >>> pallas.pallas_call(kernel, jnp.zeros(2))(jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """
    copies = partial(_copy, "sync_copy", add=add)
    tree.map(copies, src_ref, dst_ref, is_leaf=lambda node: isinstance(node, RefViews))  # a view is a pytree, too

"""Semaphores: counters in Refs.

The steps of a grid run one after the other, and copies are complete when they start, so a wait never blocks: it
subtracts.
"""

from enum import Enum, unique
from typing import Any

from shardwise.api.ref import RefLike
from shardwise.errors import UnsupportedError
from shardwise.typing import ArrayLike


@unique
class DeviceIdType(Enum):
    """How a device is named in a remote operation, which is not supported."""

    MESH = "mesh"
    LOGICAL = "logical"


def semaphore_read(sem_or_view: RefLike) -> Any:
    """Return the count of a semaphore.

    Args:
        sem_or_view: a Ref of a semaphore, or a view of one.

    Returns:
        An int32 scalar.

    Raises:
        TypeError: if it is not a Ref of integers.

    Example:
        >>> pallas.run_scoped(pallas.semaphore_read, pallas.tpu.SemaphoreType.REGULAR)
        Array(0, dtype=int32)
    """
    return sem_or_view[...]


def semaphore_signal(
    sem_or_view: RefLike,
    inc: ArrayLike = 1,
    *,
    device_id: object = None,
    device_id_type: DeviceIdType = DeviceIdType.MESH,
    core_index: object = None,
) -> None:
    """Add to a semaphore.

    Args:
        sem_or_view: a Ref of a semaphore, or a view of one.
        inc: what to add.
        device_id: must be None: semaphores of other devices are not supported.
        device_id_type: ignored.
        core_index: must be None or 0: kernels run on one core.

    Raises:
        UnsupportedError: if `device_id` is not None, or `core_index` is neither None nor 0.

    Example:
        >>> def signal(semaphore):
        ...     pallas.semaphore_signal(semaphore, 3)
        ...     return pallas.semaphore_read(semaphore)
        >>> pallas.run_scoped(signal, pallas.tpu.SemaphoreType.REGULAR)
        Array(3, dtype=int32)
    """
    if device_id is not None:
        raise UnsupportedError(
            f"semaphore_signal: device_id={device_id!r}: a kernel runs on one device. Use the collectives of `lax`, "
            "such as `lax.ppermute`, in `shard_map` around the kernel."
        )
    if core_index is not None and not (isinstance(core_index, int) and core_index == 0):
        raise UnsupportedError(f"semaphore_signal: core_index={core_index!r}: kernels run on one core. Leave it out.")
    sem_or_view[...] = sem_or_view[...] + inc


def semaphore_wait(sem_or_view: RefLike, value: ArrayLike = 1, *, decrement: bool = True) -> None:
    """Subtract from a semaphore. It never blocks, because everything before it is complete.

    Args:
        sem_or_view: a Ref of a semaphore, or a view of one.
        value: the count to wait for.
        decrement: whether to subtract it.

    Raises:
        TypeError: if it is not a Ref of integers.

    Example:
        >>> def wait(semaphore):
        ...     pallas.semaphore_signal(semaphore, 3)
        ...     pallas.semaphore_wait(semaphore, 2)
        ...     return pallas.semaphore_read(semaphore)
        >>> pallas.run_scoped(wait, pallas.tpu.SemaphoreType.REGULAR)
        Array(1, dtype=int32)
    """
    if decrement:
        sem_or_view[...] = sem_or_view[...] - value

"""Functions about the state of this process: caches, live arrays, devices and settings."""

import gc
import os
import platform as machine
import sys
import warnings
from importlib.metadata import version
from typing import TypeVar

from shardwise import tree
from shardwise.base.caches import clear_all
from shardwise.base.config import SETTINGS, config
from shardwise.compiler.arrays.methods import Array
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.client import (
    default_backend,
    devices,
    local_device_count,
    platform_of,
    process_count,
    process_index,
)

_T = TypeVar("_T")


def clear_caches() -> None:
    """Clear all caches of traced and compiled functions in this process.

    The persistent cache in the folder `compilation_cache_dir` is not affected.

    Example:
        >>> jax.clear_caches()
    """
    clear_all()


def live_arrays(platform: str | None = None) -> list[Array]:
    """Return all arrays that exist and have not been deleted or donated.

    Args:
        platform: only arrays on this platform; by default, on the platform that programs run on.

    Returns:
        The arrays, in no particular order.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> x = jnp.ones(3)
        >>> any(x is y for y in jax.live_arrays())
        True
    """
    platform_name = platform_of(devices(platform)[0]) if platform else default_backend()
    arrays = [obj for obj in gc.get_objects() if isinstance(obj, ArrayImpl)]
    return [x for x in arrays if not x.is_deleted() and platform_of(x.sharding.devices[0]) == platform_name]


def copy_to_host_async(x: _T) -> _T:
    """Start to copy the arrays of a pytree to the host, so that reading them later takes less time.

    Args:
        x: a pytree. Leaves that are not arrays are ignored.

    Returns:
        `x`.

    Raises:
        RuntimeError: if an array was deleted or donated.

    Example:
        >>> jax.copy_to_host_async({"loss": jnp.ones(()), "step": 3})
        {'loss': Array(1., dtype=float32), 'step': 3}
    """
    for leaf in tree.leaves(x):
        if hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


def effects_barrier() -> None:
    """Wait until the side effects of all programs that were started have happened.

    Programs with side effects, such as callbacks, are synchronous here, so this returns at once.

    Example:
        >>> jax.effects_barrier()
    """


def process_indices(backend: str | None = None) -> list[int]:
    """Return the indices of all processes.

    Args:
        backend: the platform; by default, the one that programs run on.

    Returns:
        The integers from 0 to `process_count() - 1`.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> jax.process_indices()
        [0]
    """
    return list(range(process_count(backend)))


def host_count(backend: str | None = None) -> int:
    """Return the number of processes, under the former name of `process_count`. It warns.

    Args:
        backend: the platform; by default, the one that programs run on.

    Returns:
        The number of processes.

    Raises:
        RuntimeError: if there is no such platform.
    """
    _warn_renamed("host_count", "process_count")
    return process_count(backend)


def host_id(backend: str | None = None) -> int:
    """Return the index of this process, under the former name of `process_index`. It warns.

    Args:
        backend: the platform; by default, the one that programs run on.

    Returns:
        The index of this process.

    Raises:
        RuntimeError: if there is no such platform.
    """
    _warn_renamed("host_id", "process_index")
    return process_index(backend)


def host_ids(backend: str | None = None) -> list[int]:
    """Return the indices of all processes, under the former name of `process_indices`. It warns.

    Args:
        backend: the platform; by default, the one that programs run on.

    Returns:
        The integers from 0 to `process_count() - 1`.

    Raises:
        RuntimeError: if there is no such platform.
    """
    _warn_renamed("host_ids", "process_indices")
    return process_indices(backend)


def _warn_renamed(former: str, name: str) -> None:
    warnings.warn(f"{former} has been renamed to {name}", UserWarning, stacklevel=3)


def print_environment_info(return_string: bool = False) -> str | None:
    """Print versions, devices, changed settings and environment variables, for bug reports.

    Args:
        return_string: whether to return the text and not print it.

    Returns:
        The text with `return_string`, otherwise None.

    Raises:
        RuntimeError: if the platform that programs run on has no usable device.

    Example:
        >>> print(jax.print_environment_info(return_string=True))
        shardwise: ...
    """
    device_kinds = sorted({str(device.device_kind) for device in devices()})
    packages = ("shardwise", "jaxlib", "numpy", "ml_dtypes", "scipy")
    rows = {
        **{name: version(name) for name in packages},
        "python": sys.version.replace("\n", " "),
        "machine": machine.platform(),
        "devices": f"{len(devices())} of {', '.join(device_kinds)} ({default_backend()}), {local_device_count()} local",
        "processes": str(process_count()),
    }
    lines = [f"{name}: {text}" for name, text in rows.items()]
    changed = [name for name, row in SETTINGS.items() if config.read(name) != row.default]
    lines += [f"config {name}: {config.read(name)!r}" for name in changed]
    prefixes = ("SHARDWISE_", "XLA_", "CUDA_", "JAX_")
    lines += [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(prefixes)]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None

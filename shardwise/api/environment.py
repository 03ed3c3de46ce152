"""The state of this process: what is kept and alive, and where all of it runs."""

import gc
import os
import platform as machine
import sys
from importlib.metadata import version
from typing import Any

from shardwise import tree
from shardwise.caches import clear_all
from shardwise.config import SETTINGS, config
from shardwise.runtime.array import Array
from shardwise.runtime.client import default_backend, devices, local_device_count, platform_of, process_count


def clear_caches() -> None:
    """Forget all that was traced and compiled in this process; the folder `compilation_cache_dir` stays as it is.

    >>> jax.clear_caches()
    """
    clear_all()


def live_arrays(platform: str | None = None) -> list[Array]:
    """The arrays of a platform (the default one, if none is named) that are alive and have memory.

    >>> x = jnp.ones(3)
    >>> any(x is y for y in jax.live_arrays())
    True
    """
    wanted = platform_of(devices(platform)[0]) if platform else default_backend()
    arrays = [found for found in gc.get_objects() if isinstance(found, Array)]
    return [x for x in arrays if not x.is_deleted() and platform_of(x.sharding.devices[0]) == wanted]


def copy_to_host_async(x: Any) -> Any:
    """`x`, whose arrays begin to be copied to the host: reading them later waits for less. Other leaves are left alone.

    >>> jax.copy_to_host_async({"loss": jnp.ones(()), "step": 3})
    {'loss': Array(1., dtype=float32), 'step': 3}
    """
    for leaf in tree.leaves(x):
        if isinstance(leaf, Array):
            leaf.copy_to_host_async()
    return x


def effects_barrier() -> None:
    """Wait until what was called has had its effects. A call with effects returns after them, so there is nothing to
    wait for.

    >>> jax.effects_barrier()
    """


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of all processes.

    >>> jax.process_indices()
    [0]
    """
    return list(range(process_count(backend)))


def print_environment_info(return_string: bool = False) -> str | None:
    """Print versions, devices and settings, for a report of a problem; or return the text.

    >>> print(jax.print_environment_info(return_string=True))
    shardwise: ...
    """
    kinds = sorted({str(device.device_kind) for device in devices()})
    packages = ("shardwise", "jaxlib", "numpy", "ml_dtypes", "scipy")
    rows = {
        **{name: version(name) for name in packages},
        "python": sys.version.replace("\n", " "),
        "machine": machine.platform(),
        "devices": f"{len(devices())} of {', '.join(kinds)} ({default_backend()}), {local_device_count()} here",
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

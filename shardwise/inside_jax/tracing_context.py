"""tracing_context: trace for the devices of JAX, without a client of Shardwise on them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np

from shardwise.base.config import SETTINGS, config
from shardwise.inside_jax import _jax

_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


@contextmanager
def tracing_context(jaxpr: _jax.ClosedJaxpr, platform: str | None) -> Iterator[None]:
    """Place constants on the host, and trace a jaxpr for a platform, with the dtypes that it has.

    JAX owns the accelerators. A second client in the process would reserve memory of a GPU that JAX has reserved
    already, so that no array of Shardwise is placed on one, and none is asked for its platform.

    Args:
        jaxpr: the closed jaxpr. If it has 64-bit dtypes, they are enabled, whatever the setting of Shardwise is.
        platform: JAX's name of the platform that the program runs on; None if it is unknown.
    """
    has_64_bits = not _WIDE.isdisjoint(_jax.dtypes_of(jaxpr.jaxpr))
    is_target = platform in (SETTINGS["target_platform"].choices or ())
    target = config.override("target_platform", platform) if is_target else nullcontext()
    with config.override("default_device", "cpu"), config.override("enable_x64", has_64_bits), target:
        yield

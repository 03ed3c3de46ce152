"""tracing_context: trace for the devices of JAX, without a client of Shardwise on them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from shardwise.base.config import SETTINGS, config


@contextmanager
def tracing_context(platform: str | None) -> Iterator[None]:
    """Place constants on the host, and trace for a platform.

    JAX owns the accelerators. A second client in the process would reserve memory of a GPU that JAX has reserved
    already, so that no array of Shardwise is placed on one, and none is asked for its platform.

    Args:
        platform: JAX's name of the platform that the program runs on; None if it is unknown.
    """
    is_target = platform in (SETTINGS["target_platform"].choices or ())
    target = config.override("target_platform", platform) if is_target else nullcontext()
    with config.override("default_device", "cpu"), target:
        yield

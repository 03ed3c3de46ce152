"""jax.version: the release of JAX that belongs to the installed jaxlib, so that libraries branch as they do with it."""

import re

from shardwise.base._jaxlib import jaxlib_version


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: (0, 12, 0, 1) for "0.12.0.1", and (0, 12, 1) for "0.12.1.dev20261101"."""
    release = re.match(r"\d+(\.\d+)*", version)
    assert release is not None, version
    return tuple(int(number) for number in release[0].split("."))


__version_info__ = release_of(jaxlib_version())  # Flax, Orbax
__version__ = ".".join(map(str, __version_info__))
_version = __version__  # torchax

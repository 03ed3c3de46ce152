"""jax.experimental.layout: how the elements of an array are ordered in the memory of a device."""

from shardwise.base.lazy import set_public_names
from shardwise.runtime.memory_layout import Format, Layout

__all__ = ["Format", "Layout"]

set_public_names(__name__, __all__)

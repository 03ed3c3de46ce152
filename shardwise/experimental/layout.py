"""jax.experimental.layout: how the elements of an array are ordered in the memory of a device."""

from dataclasses import dataclass
from typing import Any, final

from shardwise.lazy import set_public_names

__all__ = ["Format", "Layout"]


@final
@dataclass(frozen=True)
class Layout:
    """The order of the dims of an array in memory.

    Attributes:
        major_to_minor: the dims, from the one whose steps are largest in memory.
        tiling: the tiles, if the memory is tiled.

    Example:
        >>> jax.experimental.layout.Layout(major_to_minor=(0, 1))
        Layout(major_to_minor=(0, 1), tiling=None)
    """

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None


@final
@dataclass(frozen=True)
class Format:
    """A layout in memory and a sharding.

    Attributes:
        layout: the layout; None for the default one.
        sharding: the sharding; None if it is not determined.

    Example:
        >>> jax.experimental.layout.Format()
        Format(layout=None, sharding=None)
    """

    layout: Layout | None = None
    sharding: Any = None


set_public_names(__name__, __all__)

"""Memory layouts: the order of an array's elements on a device. Arrays have the default layout, row-major."""

from typing import Any, final

from shardwise.compiler.ir.record import record
from shardwise.compiler.shardings.sharding import Sharding


@final
@record
class Layout:
    """The order of the dims of an array in memory.

    Attributes:
        major_to_minor: the dims, from the largest stride to the smallest.
        tiling: the tiles, if the memory is tiled.

    Example:
        >>> jax.experimental.layout.Layout(major_to_minor=(0, 1))
        Layout(major_to_minor=(0, 1), tiling=None)
    """

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None


@final
@record
class Format:
    """A layout in memory and a sharding.

    Attributes:
        layout: the layout; None for the default.
        sharding: the sharding; None if it is undetermined.

    Example:
        >>> jax.experimental.layout.Format()
        Format(layout=None, sharding=None)
    """

    layout: Layout | None = None
    sharding: Any = None


def row_major(ndim: int, sharding: Sharding) -> Format:
    """Return the format of arrays of this rank, which are row-major in memory."""
    return Format(Layout(tuple(range(ndim))), sharding)


def sharding_of_format(name: str, format: Format, ndim: int) -> Any:
    """Return the sharding of a format.

    Raises:
        NotImplementedError: if its layout is not the default. `name` is the function, for the message.
    """
    default = (None, Layout(tuple(range(ndim))))
    if format.layout not in default:
        raise NotImplementedError(
            f"{name}: {format.layout} is not supported. Arrays are row-major in memory: use `Format(None, sharding)`, "
            "or the sharding itself."
        )
    return format.sharding

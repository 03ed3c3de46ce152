"""Memory layouts: the order of an array's elements on a device. Arrays have the default layout, row-major."""

from dataclasses import replace
from typing import Any, ClassVar, final

from shardwise.compiler.ir.record import record
from shardwise.compiler.shardings.sharding import Sharding


@final
class _AutoLayout:
    """The class of `Layout.AUTO`."""

    def __repr__(self) -> str:
        return "AUTO"


@final
@record
class Layout:
    """The order of the dims of an array in memory.

    Attributes:
        major_to_minor: the dims, from the largest stride to the smallest.
        tiling: the tiles, if the memory is tiled.
        sub_byte_element_size_in_bits: the number of bits of an element that takes less than a byte; 0 otherwise.
        AUTO: stands for a layout that the compiler chooses, which is row-major here.

    Example:
        >>> jax.experimental.layout.Layout(major_to_minor=(0, 1))
        Layout(major_to_minor=(0, 1), tiling=None, sub_byte_element_size_in_bits=0)
    """

    AUTO: ClassVar[Any] = _AutoLayout()

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None
    sub_byte_element_size_in_bits: int = 0

    def update(self, **changes: Any) -> "Layout":
        """Return this layout with other attributes."""
        return replace(self, **changes)


@final
@record
class Format:
    """A layout in memory and a sharding.

    Attributes:
        layout: the layout; None for the default one, `Layout.AUTO` for one that the compiler chooses.
        sharding: the sharding; None if it is not determined.

    Example:
        >>> jax.experimental.layout.Format()
        Format(layout=None, sharding=None)
    """

    layout: Any = None
    sharding: Any = None


def row_major(ndim: int, sharding: Sharding) -> Format:
    """Return the format of arrays of this rank, which are row-major in memory."""
    return Format(Layout(tuple(range(ndim))), sharding)


def sharding_of_format(name: str, format: Format, ndim: int) -> Any:
    """Return the sharding of a format.

    Raises:
        NotImplementedError: if its layout is not the default. `name` is the function, for the message.
    """
    check_row_major(name, format.layout, ndim)
    return format.sharding


def check_row_major(name: str, layout: object, ndim: int) -> None:
    """Raise NotImplementedError if a layout is neither row-major, `Layout.AUTO`, nor None."""
    if layout not in (None, Layout.AUTO, Layout(tuple(range(ndim)))):
        raise NotImplementedError(
            f"{name}: {layout} is not supported. Arrays are row-major in memory: use `Format(None, sharding)`, "
            "or the sharding itself."
        )

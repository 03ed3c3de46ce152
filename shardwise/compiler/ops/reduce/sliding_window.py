"""Windows that slide along a dim, and what a device needs of its neighbours for its piece of their places.

The operand's elements are spread apart by `base_dilation`, with `low` elements before them and `high` after, of which
negative counts take away. Position p of the window at place j is then

    number  stride * j + window_dilation * p - low  of the operand that is spread apart

Convolutions and windowed reductions share this, and so do their derivatives: `back` and `swapped` are slidings too.
"""

from typing import Any, NamedTuple

import numpy as np

from shardwise.compiler.ops.collective.collectives import DeviceIndex
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Rem
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, iota_from
from shardwise.compiler.ops.indexing.index_vectors import between
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Pad


class WindowDimension(NamedTuple):
    """How windows lie along one dim; see this module's head."""

    window: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    def check(self, name: str, dim: int) -> None:
        """Whether there can be such windows along `dim` of the operand of op `name`."""
        if self.window < 1:
            raise TypeError(f"{name}: a window along dim {dim} needs 1 element or more, not {self.window}")
        for what, number in (
            ("stride", self.stride),
            ("dilation of the operand", self.base_dilation),
            ("dilation of the window", self.window_dilation),
        ):
            if number < 1:
                raise TypeError(f"{name}: the {what} along dim {dim} must be 1 or more, not {number}")

    @property
    def extent(self) -> int:
        """From the first to the last position of a window."""
        return self.window_dilation * (self.window - 1) + 1

    def output_size(self, size: int) -> int:
        """How many windows there are along an operand of `size`."""
        room = dilated_size(size, self.base_dilation) + self.low + self.high - self.extent
        return room // self.stride + 1 if room >= 0 else 0

    def transposed(self, size: int) -> "WindowDimension":
        """Windows over the places, one for each element of an operand of `size`: it holds the places that have this
        element in their windows, the last position first.
        """
        low = self.extent - 1 - self.low
        length = (size - 1) * self.base_dilation + self.extent
        high = length - low - dilated_size(self.output_size(size), self.stride)
        return WindowDimension(self.window, self.base_dilation, low, high, self.stride, self.window_dilation)

    def kernel_gradient(self, size: int) -> "WindowDimension":
        """Windows over an operand of `size`, one for each position: it holds what all places have there."""
        places = self.output_size(size)
        length = (self.window - 1) * self.window_dilation + (places - 1) * self.stride + 1
        high = length - self.low - dilated_size(size, self.base_dilation)
        return WindowDimension(places, self.window_dilation, self.low, high, self.base_dilation, self.stride)

    def halo(self, dim: int, axes: tuple[str, ...], count: int, piece: int) -> "Halo":
        """What device k of `count` needs for the places from `piece * k` on."""
        step, dilation = self.stride * piece, self.base_dilation
        width = max(0, step - self.stride + self.extent)
        if step % dilation:
            # Some devices begin with an element and some between two: each takes one more, and cuts what it spreads.
            taken = -(-(width + dilation - 1) // dilation)
            return Halo(TakeWindow(dim, axes, count, -self.low, step, taken, dilation), None, width)
        before = self.low % dilation
        taken = max(0, -(-(width - before) // dilation))
        window = TakeWindow(dim, axes, count, -(self.low // dilation), step // dilation, taken)
        over = self._replace(low=before, high=width - before - dilated_size(taken, dilation))
        return Halo(window, over, width)


class Halo(NamedTuple):
    """What a device takes; how its own windows lie over that (None where it depends on the device); how wide the
    stretch is that they slide over.
    """

    window: TakeWindow
    over: WindowDimension | None
    width: int


def dilated_size(count: int, dilation: int) -> int:
    """How far `count` elements reach, each `dilation` from the next."""
    return (count - 1) * dilation + 1 if count else 0


def halo_exchange(
    x: Any, dim: int, size: int, sliding: WindowDimension, cut: tuple[tuple[str, ...], int], piece: int, fill: Any
) -> tuple[Any, WindowDimension]:
    """For one device's `piece` of the places: what it needs of an operand that has `size` elements along `dim`, and of
    which `x` is its own piece; and how windows lie over that. Outside of the operand it holds `fill`.
    """
    window, over, width = sliding.halo(dim, *cut, piece)
    x = _filled(window(x), window, size, window.count * x.type.shape[dim], fill)
    if over is not None:
        return x, over
    dilation, ndim = sliding.base_dilation, x.type.ndim
    more = [0] * ndim
    more[dim] = max(0, width + dilation - 1 - dilated_size(window.width, dilation))
    inside = tuple(dilation - 1 if d == dim else 0 for d in range(ndim))
    x = Pad((0,) * ndim, tuple(more), inside)(x, full((), fill, x.type.dtype, x.type.weak))
    # Where this device's first place begins, counted from the element at or before it.
    turned = Mul()(DeviceIndex(window.axes)(), full((), window.stride % dilation, np.int32))
    first = Rem()(Add()(turned, full((), -sliding.low % dilation, np.int32)), full((), dilation, np.int32))
    starts = [first if d == dim else full((), 0, np.int32) for d in range(ndim)]
    shape = (*x.type.shape[:dim], width, *x.type.shape[dim + 1 :])
    return DynamicSlice(shape)(x, *starts), sliding._replace(low=0, high=0, base_dilation=1)


def _filled(x: Any, window: TakeWindow, size: int, padded: int, fill: Any) -> Any:
    """What `window` took, with `fill` where the operand, whose dim has `size` elements and is `padded`, has none."""
    starts = [window.start(k) for k in range(window.count)]
    leaves = min(starts) < 0 or max(starts) + window.width > size
    meets_padding = padded != size and max(starts) + window.width > size
    if not (leaves and fill != 0) and not meets_padding:  # there are zeros already
        return x
    shift = max(0, -min(starts))  # no division of a negative number
    start = Add()(
        Mul()(DeviceIndex(window.axes)(), full((), window.stride, np.int32)),
        full((), window.offset + shift * window.divisor, np.int32),
    )
    if window.divisor > 1:
        start = Div()(start, full((), window.divisor, np.int32))
    inside = between(iota_from(start, window.width), shift, shift + size - 1)
    chosen = Broadcast(x.type.shape, (window.dim,))(inside)
    return Select()(chosen, x, full(x.type.shape, fill, x.type.dtype, x.type.weak))

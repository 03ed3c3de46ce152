"""Sliding windows along a dim, and the halo exchange of a sharded dim.

The operand is dilated by `base_dilation` and padded with `low` elements before and `high` after; negative padding
crops. Position p of output j's window is then

    element  stride * j + window_dilation * p - low  of the dilated operand

Convolutions, windowed reductions and their derivatives share this: `transposed` and `kernel_gradient` return the
windows of the derivatives.
"""

from typing import Any, NamedTuple

import numpy as np

from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.types import ScalarLike
from shardwise.compiler.ops.collective.collectives import DeviceIndex
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Rem
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, iota_from
from shardwise.compiler.ops.indexing.index_vectors import between
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Pad, dilated_size


class WindowDimension(NamedTuple):
    """The window parameters of one dim, as XLA's `WindowDimension`; see the module docstring."""

    window: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    def check(self, name: str, dim: int) -> None:
        """Raise a TypeError if the parameters are invalid. `name` and `dim` are for the message."""
        if self.window < 1:
            raise TypeError(f"{name}: the window along dim {dim} must have 1 element or more, not {self.window}")
        for parameter, number in (
            ("stride", self.stride),
            ("dilation of the operand", self.base_dilation),
            ("dilation of the window", self.window_dilation),
        ):
            if number < 1:
                raise TypeError(f"{name}: the {parameter} along dim {dim} must be 1 or more, not {number}")

    @property
    def extent(self) -> int:
        """The size of the dilated window."""
        return self.window_dilation * (self.window - 1) + 1

    def output_size(self, size: int) -> int:
        """Return the number of windows along an operand of `size`."""
        last_start = dilated_size(size, self.base_dilation) + self.low + self.high - self.extent
        return last_start // self.stride + 1 if last_start >= 0 else 0

    def transposed(self, size: int) -> "WindowDimension":
        """Return the windows of the transpose, which slide over the outputs: one per element of an operand of `size`.

        The window of an element holds the outputs whose windows contain the element, the last position first.
        """
        low = self.extent - 1 - self.low
        length = (size - 1) * self.base_dilation + self.extent
        high = length - low - dilated_size(self.output_size(size), self.stride)
        return WindowDimension(self.window, self.base_dilation, low, high, self.stride, self.window_dilation)

    def kernel_gradient(self, size: int) -> "WindowDimension":
        """Return the windows of the kernel's gradient, which slide over an operand of `size`: one per window position.

        The window of a position holds the elements that all outputs read at that position.
        """
        outputs = self.output_size(size)
        length = (self.window - 1) * self.window_dilation + (outputs - 1) * self.stride + 1
        high = length - self.low - dilated_size(size, self.base_dilation)
        return WindowDimension(outputs, self.window_dilation, self.low, high, self.base_dilation, self.stride)

    def halo(self, dim: int, axes: tuple[str, ...], count: int, shard_size: int) -> "Halo":
        """Return the slice of the operand that device k of `count` needs for its outputs, from `shard_size * k` on."""
        step, dilation = self.stride * shard_size, self.base_dilation
        width = max(0, step - self.stride + self.extent)
        if step % dilation:
            # Some shards start between two elements of the dilated operand. Each device then reads one more element,
            # and slices after the dilation.
            elements = -(-(width + dilation - 1) // dilation)
            return Halo(TakeWindow(dim, axes, count, -self.low, step, elements, dilation), None, width)
        before = self.low % dilation
        elements = max(0, -(-(width - before) // dilation))
        window = TakeWindow(dim, axes, count, -(self.low // dilation), step // dilation, elements)
        local = self._replace(low=before, high=width - before - dilated_size(elements, dilation))
        return Halo(window, local, width)


class Halo(NamedTuple):
    """The slice of the operand that a device needs.

    `window` reads it from the device and its neighbours. `local` has the window parameters over that slice; None if
    they differ between devices. `width` is the size of the padded and dilated slice.
    """

    window: TakeWindow
    local: WindowDimension | None
    width: int


def halo_exchange(
    x: Operand,
    dim: int,
    size: int,
    window_dim: WindowDimension,
    sharding: tuple[tuple[str, ...], int],
    out_size: int,
    fill: ScalarLike,
) -> tuple[Any, WindowDimension]:
    """Fetch the elements that this device's outputs need from its neighbours along a sharded dim.

    Args:
        x: this device's shard of the operand.
        dim: the sharded dim.
        size: the global size of `dim`, without padding.
        window_dim: the window parameters over the global operand.
        sharding: the mesh axes of `dim` and the number of shards.
        out_size: the number of outputs per device.
        fill: the value of elements outside the operand.

    Returns:
        The slice of the operand that the outputs need, and the window parameters over it.
    """
    window, local, width = window_dim.halo(dim, *sharding, out_size)
    x = _fill_outside(window(x), window, size, window.count * x.type.shape[dim], fill)
    if local is not None:
        return x, local
    dilation, ndim = window_dim.base_dilation, x.type.ndim
    high = [0] * ndim
    high[dim] = max(0, width + dilation - 1 - dilated_size(window.width, dilation))
    interior = tuple(dilation - 1 if d == dim else 0 for d in range(ndim))
    x = Pad((0,) * ndim, tuple(high), interior)(x, full((), fill, x.type.dtype, x.type.weak))
    # The start of this device's first window, relative to the element at or before it.
    position = Expr(DeviceIndex(window.axes)()) * (window.stride % dilation) + -window_dim.low % dilation
    first = Rem()(position.array, position.operand(dilation))
    starts = [first if d == dim else full((), 0, np.int32) for d in range(ndim)]
    shape = (*x.type.shape[:dim], width, *x.type.shape[dim + 1 :])
    return DynamicSlice(shape)(x, *starts), window_dim._replace(low=0, high=0, base_dilation=1)


def _fill_outside(x: Operand, window: TakeWindow, size: int, padded: int, fill: ScalarLike) -> Any:
    """Replace elements that `window` read from outside the operand by `fill`.

    `size` is the size of the operand's dim, and `padded` is its size with padding.
    """
    starts = [window.start(k) for k in range(window.count)]
    reads_outside = min(starts) < 0 or max(starts) + window.width > size
    reads_padding = padded != size and max(starts) + window.width > size
    if not (reads_outside and fill != 0) and not reads_padding:  # TakeWindow fills with zeros
        return x
    shift = max(0, -min(starts))  # so that no negative number is divided
    start = Expr(DeviceIndex(window.axes)()) * window.stride + (window.offset + shift * window.divisor)
    if window.divisor > 1:
        start = start / window.divisor
    inside = between(iota_from(start.array, window.width), shift, shift + size - 1)
    mask = Broadcast(x.type.shape, (window.dim,))(inside)
    return Select()(mask, x, full(x.type.shape, fill, x.type.dtype, x.type.weak))

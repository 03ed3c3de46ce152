"""Chips: published figures of accelerators, and estimates of the time of ops and collectives on them.

The estimates are an α–β model. A collective takes a latency per hop of its ring, plus its bytes divided by the
bandwidth of the slowest link on the ring. An op takes the larger of its flops at peak rate and its bytes at memory
bandwidth. Reports show these estimates; the cost model of the planner (`cost.py`) uses the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import final

from shardwise.compiler.dtypes import DType
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
@dataclass(frozen=True)
class Link:
    """A link between devices: bytes per second that one device sends, and seconds of latency per hop."""

    bandwidth: float
    latency: float


@final
@dataclass(frozen=True)
class Chip:
    """The figures of one device.

    Attributes:
        name: the name by which users choose it.
        device_kinds: substrings of PJRT's `device_kind` of such devices.
        bf16_flops, f32_flops: peak flops per second of dense matrix products at the default precision.
        memory: bytes of memory.
        memory_bandwidth: bytes per second between the chip and its memory.
        fast_link: the link within a node or slice.
        slow_link: the link between nodes or slices.
        fast_domain_size: the number of devices that fast links connect.
    """

    name: str
    device_kinds: tuple[str, ...]
    bf16_flops: float
    f32_flops: float
    memory: int
    memory_bandwidth: float
    fast_link: Link
    slow_link: Link
    fast_domain_size: int

    def flops(self, dtype: DType) -> float:
        """Return the peak flops per second of matrix products of this dtype."""
        return self.bf16_flops if dtype.itemsize <= 2 else self.f32_flops

    def link(self, mesh: AbstractMesh, axes: Sequence[str]) -> Link:
        """Return the slowest link of a ring along these axes.

        Devices of a mesh are in row-major order, node by node, so the last axes are within a node.
        """
        stride, span = 1, 1  # `span`: the number of consecutive devices that the ring stays within
        for axis, size in reversed(list(mesh.shape.items())):
            stride *= size
            if axis in axes and size > 1:
                span = stride
        return self.fast_link if span <= self.fast_domain_size else self.slow_link

    def collective_time(self, kind: str, sent: float, mesh: AbstractMesh, axes: Sequence[str]) -> float:
        """Return the seconds of a collective in which each device sends `sent` bytes."""
        link = self.link(mesh, axes)
        return sent / link.bandwidth + link.latency * hops(kind, mesh.extent(axes))

    def compute_time(self, flops: float, bytes_accessed: float, dtype: DType) -> float:
        """Return the seconds of an op with these flops and bytes of memory traffic: the roofline model."""
        return max(flops / self.flops(dtype), bytes_accessed / self.memory_bandwidth)


def hops(kind: str, count: int) -> int:
    """Return the number of sequential hops of a collective over `count` devices."""
    if kind in ("coarsening_permute", "exchange_windows", "permute", "ppermute", "rotate", "take_window"):
        return 1
    return 2 * (count - 1) if kind == "all_reduce" else count - 1


_GIB = 1 << 30
# From NVIDIA's data sheets for the SXM form factor. Flops are without sparsity. f32 products run in TF32 at XLA's
# default precision. NVLink bandwidth is quoted for both directions together: one direction has half. Between nodes of
# 8 GPUs, each GPU has one InfiniBand port (HDR 200 Gb/s with A100, NDR 400 Gb/s with later ones). Latencies are those
# of one step of NCCL's rings, by NVIDIA's NCCL tuning tables, to one digit.
_NVLINK3, _NVLINK4, _NVLINK5 = Link(300e9, 2e-6), Link(450e9, 2e-6), Link(900e9, 2e-6)
_HDR, _NDR = Link(25e9, 1e-5), Link(50e9, 1e-5)
# From Google Cloud's "TPU system architecture" pages. f32 products run as bf16 products at the default precision. A
# ring along an axis of the torus uses both directions of a link. Traffic between slices uses the data center network,
# with the bandwidth per chip of "How to Scale Your Model" (jax-ml.github.io/scaling-book).
_ICI = 1e-6
_DCN = 1e-5

CHIPS = {
    chip.name: chip
    for chip in (
        # Virtual devices share one memory and a few cores. The figures have the order of magnitude of a laptop.
        Chip("cpu", ("cpu", "absent"), 2e10, 2e10, 4 * _GIB, 4e10, Link(2e9, 5e-6), Link(1e9, 5e-5), 1 << 16),
        Chip("a100", ("A100",), 312e12, 156e12, 80 * 10**9, 2.039e12, _NVLINK3, _HDR, 8),
        Chip("h100", ("H100",), 989e12, 494e12, 80 * 10**9, 3.35e12, _NVLINK4, _NDR, 8),
        Chip("h200", ("H200",), 989e12, 494e12, 141 * 10**9, 4.8e12, _NVLINK4, _NDR, 8),
        Chip("b200", ("B200",), 2250e12, 1125e12, 180 * 10**9, 8e12, _NVLINK5, _NDR, 8),
        Chip("v4", ("TPU v4",), 275e12, 275e12, 32 * _GIB, 1.2e12, Link(9e10, _ICI), Link(6.25e9, _DCN), 4096),
        Chip(
            "v5e",
            ("TPU v5 lite", "TPU v5e"),
            197e12,
            197e12,
            16 * _GIB,
            8.1e11,
            Link(9e10, _ICI),
            Link(3.125e9, _DCN),
            256,
        ),
        Chip(
            "v5p",
            ("TPU v5p", "TPU v5"),
            459e12,
            459e12,
            95 * _GIB,
            2.765e12,
            Link(1.8e11, _ICI),
            Link(6.25e9, _DCN),
            8960,
        ),
        Chip(
            "v6e",
            ("TPU v6 lite", "TPU v6e"),
            918e12,
            918e12,
            32 * _GIB,
            1.64e12,
            Link(1.8e11, _ICI),
            Link(12.5e9, _DCN),
            256,
        ),
    )
}

CPU = CHIPS["cpu"]


def chip(name: str) -> Chip:
    """Return the chip of this name, ignoring case; TPUs may be called `tpu v5e`.

    Raises:
        ValueError: if there is none.
    """
    key = name.lower().removeprefix("tpu").strip(" -_")
    if key not in CHIPS:
        similar = get_close_matches(key, CHIPS, 1)
        hint = f"Did you mean {similar[0]!r}?" if similar else f"Known chips: {', '.join(map(repr, CHIPS))}."
        raise ValueError(f"unknown hardware {name!r}. {hint}")
    return CHIPS[key]


def chip_of(device_kind: str) -> Chip:
    """Return the chip of a device with this PJRT `device_kind`; the CPU if it is unknown."""
    for row in CHIPS.values():
        if any(kind.lower() in device_kind.lower() for kind in row.device_kinds):
            return row
    return CPU

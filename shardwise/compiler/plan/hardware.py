"""Chips: what published figures say of the devices that programs run on, and what an op or a collective takes there.

An estimate is α–β: a collective takes a latency for each hop of its ring, and its bytes over the bandwidth of the
slowest link it crosses; an op takes the longer of its flops at the peak and its bytes at the memory's bandwidth.
Reports give such estimates; the planner weighs its choices by the same figures (`cost.py`).
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
    """`bandwidth`: bytes a second that one device sends; `latency`: seconds from a device to its neighbour."""

    bandwidth: float
    latency: float


@final
@dataclass(frozen=True)
class Chip:
    """One device. Flops are of dense products at the default precision; `near` links join `together` devices.

    `kinds` are words that the names of such devices contain, as PJRT tells them.
    """

    name: str
    device_kinds: tuple[str, ...]
    bf16_flops: float
    f32_flops: float
    memory: int  # bytes
    memory_bandwidth: float  # bytes a second
    fast_link: Link
    slow_link: Link
    fast_domain_size: int

    def flops(self, dtype: DType) -> float:
        """The peak for products of this dtype."""
        return self.bf16_flops if dtype.itemsize <= 2 else self.f32_flops

    def link(self, mesh: AbstractMesh, axes: Sequence[str]) -> Link:
        """What a ring along these axes runs over. Devices of a mesh are numbered node by node, the last axis first."""
        stride, reach = 1, 1
        for axis, size in reversed(list(mesh.shape.items())):
            stride *= size
            if axis in axes and size > 1:
                reach = stride
        return self.fast_link if reach <= self.fast_domain_size else self.slow_link

    def collective_time(self, kind: str, sent: float, mesh: AbstractMesh, axes: Sequence[str]) -> float:
        """Seconds for a collective in which each device sends so many bytes."""
        link = self.link(mesh, axes)
        return sent / link.bandwidth + link.latency * hops(kind, mesh.extent(axes))

    def compute_time(self, flops: float, touched: float, dtype: DType) -> float:
        """Seconds for an op that makes so many flops and moves so many bytes between the chip and its memory."""
        return max(flops / self.flops(dtype), touched / self.memory_bandwidth)


def hops(kind: str, count: int) -> int:
    """How many neighbours one after the other a collective over `count` devices waits for."""
    if kind in ("coarsening_permute", "permute", "ppermute", "rotate", "take_window"):
        return 1
    return 2 * (count - 1) if kind == "all_reduce" else count - 1


_GIB = 1 << 30
# NVIDIA's data sheets for the SXM forms. Flops are without sparsity; f32 products run in TF32 unless more precision is
# asked for, which is XLA's default. NVLink is quoted as the sum of both directions: one of them is half. Between nodes
# of 8: one InfiniBand port a GPU (HDR 200 Gb/s with A100, NDR 400 Gb/s after). Latencies are what NCCL's rings take a
# step, by NVIDIA's NCCL tuning tables, to one digit.
_NVLINK3, _NVLINK4, _NVLINK5 = Link(300e9, 2e-6), Link(450e9, 2e-6), Link(900e9, 2e-6)
_HDR, _NDR = Link(25e9, 1e-5), Link(50e9, 1e-5)
# Google Cloud's "TPU system architecture" pages. f32 products are made of bf16 ones at the default precision. A ring
# along an axis of the torus uses both directions of a link; between slices traffic takes the data center network, as
# "How to Scale Your Model" (jax-ml.github.io/scaling-book) counts it for a chip.
_ICI = 1e-6
_DCN = 1e-5

CHIPS = {
    chip.name: chip
    for chip in (
        # Virtual devices share one memory and a few cores: the order of magnitude of a laptop, no data sheet.
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
    """The chip of this name; case does not matter, and TPUs may be called `tpu v5e`."""
    wanted = name.lower().removeprefix("tpu").strip(" -_")
    if wanted not in CHIPS:
        near = get_close_matches(wanted, CHIPS, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(map(repr, CHIPS))}."
        raise ValueError(f"there is no table for hardware {name!r}. {hint}")
    return CHIPS[wanted]


def chip_of(device_kind: str) -> Chip:
    """The chip of a device that PJRT calls this; the table of a CPU where there is none of its own."""
    for row in CHIPS.values():
        if any(kind.lower() in device_kind.lower() for kind in row.device_kinds):
            return row
    return CPU

"""The table of chips: published and measured figures of accelerators, and lookup by name and device kind."""

from difflib import get_close_matches
from typing import Any

from shardwise.compiler.plan.chip import Chip, Link

_GIB = 1 << 30
# From NVIDIA's data sheets for the SXM form factor. Flops are without sparsity. f32 products run in TF32 at XLA's
# default precision. NVLink bandwidth is quoted for both directions together: one direction has half. Between nodes of
# 8 GPUs, each GPU has one InfiniBand port (HDR 200 Gb/s with A100, NDR 400 Gb/s with later ones). Latencies are those
# of one step of NCCL's rings, by NVIDIA's NCCL tuning tables, to one digit.
_NVLINK3, _NVLINK4, _NVLINK5 = Link(300e9, 2e-6), Link(450e9, 2e-6), Link(900e9, 2e-6)
_HDR, _NDR = Link(25e9, 6e-6), Link(50e9, 6e-6)
# From Google Cloud's "TPU system architecture" pages. f32 products run as bf16 products at the default precision. A
# ring along an axis of the torus uses both directions of a link. Traffic between slices uses the data center network,
# with the bandwidth per chip of "How to Scale Your Model" (jax-ml.github.io/scaling-book).
_ICI = 1e-6
_DCN = 1e-5
# The fractions of products, memory and attention are measured on one H200 by `benchmarks/predictions.py`. The fraction
# of links and the gap are assumed, and other chips of this maker are assumed to reach the same.
_HOPPER: dict[str, Any] = {
    "product_fraction": 0.80,
    "memory_fraction": 0.87,
    "link_fraction": 0.8,
    "attention_fraction": 0.59,
    "kernel_gap": 2e-6,
    "overlaps": True,
}
# The fractions of TPUs are assumed: nobody has measured them for this table.
_TPU: dict[str, Any] = {"product_fraction": 0.8, "memory_fraction": 0.8, "link_fraction": 0.8, "overlaps": True}

CHIPS = {
    chip.name: chip
    for chip in (
        # Virtual devices share one memory and a few cores. The figures have the order of magnitude of a laptop.
        Chip("cpu", ("cpu", "absent"), 2e10, 2e10, 4 * _GIB, 4e10, Link(2e9, 5e-6), Link(1e9, 5e-5), 1 << 16),
        # The fractions of products, memory and links are fitted to runs a, b and d of `benchmarks/published_runs.py`;
        # that of attention is assumed.
        Chip(
            "a100",
            ("A100",),
            bf16_flops=312e12,
            f32_flops=156e12,
            memory=80 * 10**9,
            memory_bandwidth=2.039e12,
            fast_link=_NVLINK3,
            slow_link=_HDR,
            fast_domain_size=8,
            cores=108,
            product_fraction=0.70,
            memory_fraction=0.64,
            link_fraction=0.80,
            attention_fraction=0.55,
            kernel_gap=4e-6,
            overlaps=True,
        ),
        Chip(
            "h100",
            ("H100",),
            bf16_flops=989e12,
            f32_flops=494e12,
            memory=80 * 10**9,
            memory_bandwidth=3.35e12,
            fast_link=_NVLINK4,
            slow_link=_NDR,
            fast_domain_size=8,
            cores=132,
            **_HOPPER,
        ),
        Chip(
            "h200",
            ("H200",),
            bf16_flops=989e12,
            f32_flops=494e12,
            memory=141 * 10**9,
            memory_bandwidth=4.8e12,
            fast_link=_NVLINK4,
            slow_link=_NDR,
            fast_domain_size=8,
            cores=132,
            **_HOPPER,
        ),
        Chip(
            "b200",
            ("B200",),
            bf16_flops=2250e12,
            f32_flops=1125e12,
            memory=180 * 10**9,
            memory_bandwidth=8e12,
            fast_link=_NVLINK5,
            slow_link=_NDR,
            fast_domain_size=8,
            cores=148,
            **_HOPPER,
        ),
        Chip(
            "v4",
            ("TPU v4",),
            bf16_flops=275e12,
            f32_flops=275e12,
            memory=32 * _GIB,
            memory_bandwidth=1.2e12,
            fast_link=Link(9e10, _ICI),
            slow_link=Link(6.25e9, _DCN),
            fast_domain_size=4096,
            **_TPU,
        ),
        Chip(
            "v5e",
            ("TPU v5 lite", "TPU v5e"),
            bf16_flops=197e12,
            f32_flops=197e12,
            memory=16 * _GIB,
            memory_bandwidth=8.1e11,
            fast_link=Link(9e10, _ICI),
            slow_link=Link(3.125e9, _DCN),
            fast_domain_size=256,
            **_TPU,
        ),
        Chip(
            "v5p",
            ("TPU v5p", "TPU v5"),
            bf16_flops=459e12,
            f32_flops=459e12,
            memory=95 * _GIB,
            memory_bandwidth=2.765e12,
            fast_link=Link(1.8e11, _ICI),
            slow_link=Link(6.25e9, _DCN),
            fast_domain_size=8960,
            **_TPU,
        ),
        Chip(
            "v6e",
            ("TPU v6 lite", "TPU v6e"),
            bf16_flops=918e12,
            f32_flops=918e12,
            memory=32 * _GIB,
            memory_bandwidth=1.64e12,
            fast_link=Link(1.8e11, _ICI),
            slow_link=Link(12.5e9, _DCN),
            fast_domain_size=256,
            **_TPU,
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

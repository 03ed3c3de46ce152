"""Chips: lookup by name and device kind, links of rings, and times by the α–β model."""

import numpy as np
import pytest

from shardwise.compiler.plan.hardware import CHIPS, chip, chip_of, hops
from shardwise.compiler.shardings.mesh import AbstractMesh

F32, BF16 = np.dtype(np.float32), np.dtype(np.float16)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("cpu", "cpu"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("something new", "cpu"),
    ],
    ids=lambda text: text.replace(" ", "_"),
)
def test_a_chip_is_found_by_its_device_kind(kind, name):
    assert chip_of(kind) is CHIPS[name]


def test_a_chip_is_found_by_its_name():
    assert chip("H100") is CHIPS["h100"]
    assert chip("TPU v5e") is chip("v5e") is CHIPS["v5e"]
    with pytest.raises(ValueError, match=r"unknown hardware 'h10'\. Did you mean 'h100'\?"):
        chip("h10")
    with pytest.raises(ValueError, match=r"unknown hardware 'abacus'\. Known chips: 'cpu', 'a100'"):
        chip("abacus")


def test_the_figures_of_all_chips_are_plausible():
    for row in CHIPS.values():
        assert row.fast_link.bandwidth < row.memory_bandwidth <= row.memory * 1000
        assert row.slow_link.bandwidth < row.fast_link.bandwidth and row.fast_link.latency <= row.slow_link.latency
        assert row.f32_flops <= row.bf16_flops


def test_a_ring_uses_the_slowest_link_that_it_crosses():
    mesh = AbstractMesh((4, 8), ("node", "gpu"))
    h100 = chip("h100")
    assert h100.link(mesh, ("gpu",)) is h100.fast_link
    assert h100.link(mesh, ("node",)) is h100.slow_link
    assert h100.link(mesh, ("gpu", "node")) is h100.slow_link
    assert h100.link(AbstractMesh((2, 4), ("a", "b")), ("a",)) is h100.fast_link
    assert h100.link(AbstractMesh((1, 8), ("a", "b")), ("a",)) is h100.fast_link
    assert chip("v5p").link(mesh, ("node",)) is chip("v5p").fast_link


def test_times_match_the_formulas():
    mesh = AbstractMesh((8,), ("x",))
    h100 = chip("h100")
    assert h100.collective_time("all_reduce", 450e6, mesh, ("x",)) == pytest.approx(1e-3 + 14 * 2e-6)
    assert h100.collective_time("permute", 450e6, mesh, ("x",)) == pytest.approx(1e-3 + 2e-6)
    assert [hops(kind, 8) for kind in ("all_gather", "reduce_scatter", "all_to_all", "take_window")] == [7, 7, 7, 1]
    assert hops("permute", 8) == hops("rotate", 8) == 1
    assert h100.compute_time(989e9, 0, BF16) == pytest.approx(1e-3)
    assert h100.compute_time(494e9, 1, F32) == pytest.approx(1e-3)
    assert h100.compute_time(1, 3.35e9, F32) == pytest.approx(1e-3)  # bound by memory

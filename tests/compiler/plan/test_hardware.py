"""The table of chips: lookup by name and device kind, and plausible figures."""

import pytest

from shardwise.compiler.plan.hardware import CHIPS, chip, chip_of


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
        fractions = (row.product_fraction, row.memory_fraction, row.link_fraction, row.attention_fraction)
        assert all(0 < fraction <= 1 for fraction in fractions)

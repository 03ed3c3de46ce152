"""The table of chips: lookup by name and device kind, and plausible figures."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.plan.hardware import built_in_chip_of, built_in_chips, chip, chip_of
from shardwise.errors import HardwareError

CHIPS = built_in_chips()


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
    ],
    ids=lambda text: text.replace(" ", "_"),
)
def test_a_chip_is_found_by_its_device_kind(kind, name):
    assert chip_of(kind) is CHIPS[name]


def test_an_unknown_device_kind_is_one_warning_unless_it_was_calibrated(tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text('[abacus-measured]\nextends = "cpu"\ndevice_kinds = ["Abacus 3"]\nbf16_flops = 7.0\n')
    with sw.config.override("chip_table", str(table)):
        with pytest.warns(UserWarning, match=r"'Abacus 4', whose specs are unknown.*Run `shardwise calibrate` once"):
            assert chip_of("Abacus 4") is CHIPS["cpu"]
        assert chip_of("Abacus 4") is CHIPS["cpu"]  # a second warning would be an error here
        assert chip_of("Abacus 3").bf16_flops == 7.0
        assert built_in_chip_of("Abacus 3") is None


def test_a_chip_is_found_by_its_name():
    assert chip("H100") is CHIPS["h100"]
    assert chip("TPU v5e") is chip("v5e") is CHIPS["v5e"]
    assert chip(CHIPS["h200"]) is CHIPS["h200"]
    with pytest.raises(HardwareError, match=r"unknown hardware 'h10'\. Did you mean 'h100'\?"):
        chip("h10")
    with pytest.raises(HardwareError, match=r"hardware must be the name of a chip, or the path .*, not 7"):
        chip(7)
    with pytest.raises(HardwareError, match=r"unknown hardware 'abacus'\. Known chips: 'cpu', 'a100'"):
        chip("abacus")


def test_the_figures_of_all_chips_are_plausible():
    for row in CHIPS.values():
        assert row.fast_link.bandwidth < row.memory_bandwidth <= row.memory * 1000
        assert row.slow_link.bandwidth < row.fast_link.bandwidth and row.fast_link.latency <= row.slow_link.latency
        assert row.f32_flops <= row.bf16_flops
        fractions = (row.product_fraction, row.memory_fraction, row.link_fraction, row.attention_fraction)
        assert all(0 < fraction <= 1 for fraction in fractions)


def test_a_chip_of_the_users_table_is_found_by_its_name(tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text('[Slow-H100]\nextends = "h100"\nproduct_fraction = 0.5\n')
    with sw.config.override("chip_table", str(table)):
        found = chip("slow-h100")
        assert found.product_fraction == 0.5 and found.bf16_flops == CHIPS["h100"].bf16_flops
        assert found.platform == "gpu" and found.name == "slow-h100"
        assert chip("h100") is CHIPS["h100"] and chip_of("NVIDIA H100 80GB HBM3") is CHIPS["h100"]
        with pytest.raises(HardwareError, match=r"unknown hardware 'slow-h10'\. Did you mean 'slow-h100'\?"):
            chip("slow-h10")
        x = sw.ShapeDtypeStruct((4096, 4096), np.float32)
        times = [sw.simulate(lambda x: x @ x, hardware=name)(x).seconds for name in ("h100", "slow-h100")]
        assert times[1] > 1.4 * times[0]
    absent = sw.config.override("chip_table", str(tmp_path / "absent.toml"))
    with absent, pytest.raises(HardwareError, match=r"absent.toml' cannot be read: No such file"):
        chip("slow-h100")


def test_a_chip_is_found_by_the_path_of_its_table(tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text('[one]\nextends = "h100"\n')
    assert chip(str(table)).name == "one"
    table.write_text('[one]\nextends = "h100"\n[two]\nextends = "one"\ncores = 66\n')
    assert chip(f"{table}:two").cores == 66
    with pytest.raises(HardwareError, match=r"must have one entry, or .*toml:name'\. Entries: 'one', 'two'\."):
        chip(str(table))
    with pytest.raises(HardwareError, match=r"has no entry 'tow'\. Did you mean 'two'\?"):
        chip(f"{table}:tow")
    with pytest.raises(HardwareError, match="cannot be read: No such file"):
        chip(str(tmp_path / "other.toml"))

"""calibrate: figures that are fitted to the times of a known chip are its figures; a small run on this machine."""

from dataclasses import replace

import pytest

from shardwise.compiler.plan.chip import Chip, Link
from shardwise.compiler.plan.chip_table import read_chips
from shardwise.compiler.plan.hardware import CPU, built_in_chips, chip
from shardwise.compiler.traffic import all_reduce
from shardwise.explain.calibrate import BF16, F32, Measurement, Sizes, calibrate, fit_chip
from shardwise.launch.command_line import main
from shardwise.sharding import AbstractMesh

SIZES = Sizes((4096, 8192), (1 << 26, 1 << 28), 256, 64, (8, 2048, 16, 128), (1 << 12, 1 << 20, 1 << 28), 1)
TINY = Sizes((8, 16), (256, 512), 4, 3, None, (64, 4096), 1)
DEVICES = 8


def times_of(chip: Chip, sizes: Sizes) -> list[Measurement]:
    """Return the times that a chip with these figures takes for everything that is measured."""
    mesh = AbstractMesh((DEVICES,), ("x",))
    batch, length, heads, width = sizes.attention
    product = batch * heads * length**2 * width
    n = sizes.kernel
    core = replace(chip, kernel_gap=0.0)
    return [
        *(Measurement("product bf16", m, 2 * m**3 / chip.product_fraction / chip.flops(BF16)) for m in sizes.products),
        *(Measurement("product f32", m, 2 * m**3 / chip.product_fraction / chip.flops(F32)) for m in sizes.products),
        *(Measurement("stream", m, core.memory_time(8.0 * m)) for m in sizes.streams),
        Measurement("kernels", n, sizes.chain * chip.product_time(1, n, n, n, 6.0 * n * n, BF16)),
        Measurement(
            "attention",
            length,
            core.attention_time(2 * product, length / 2, 0.0, BF16)
            + core.attention_time(5 * product, length / 2, 0.0, BF16, is_gradient=True),
        ),
        *(
            Measurement("all_reduce", n, chip.collective_time(all_reduce(n, 8), mesh, ("x",)))
            for n in sizes.collectives
        ),
    ]


def test_the_figures_of_a_known_chip_are_found():
    expected = replace(
        chip("h200"),
        product_fraction=0.71,
        memory_fraction=0.83,
        attention_fraction=0.52,
        kernel_gap=3e-6,
        link_fraction=0.66,
        fast_link=Link(450e9, 5e-6),
    )
    found = fit_chip(chip("h200"), times_of(expected, SIZES), SIZES, DEVICES)
    for name in ("product_fraction", "memory_fraction", "attention_fraction", "kernel_gap", "link_fraction"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    assert found.fast_link.latency == pytest.approx(5e-6)
    assert (found.bf16_flops, found.slow_link, found.cores) == (989e12, expected.slow_link, 132)
    assert found.f32_flops == pytest.approx(494e12)
    sources = dict(found.sources)
    for name in ("f8_product_fraction", "interference", "attention_grad_ratio"):  # not measured
        assert sources.pop(name) == dict(chip("h200").sources)[name]
    assert set(sources.values()) == {"measured"} and len(sources) == 5


def test_the_peak_rates_of_an_unknown_chip_are_the_measured_ones():
    expected = replace(
        CPU, name="", bf16_flops=3e12, f32_flops=1e12, memory_bandwidth=2e11, fast_link=Link(7e9, 3e-6), kernel_gap=1e-6
    )
    sizes = replace(SIZES, attention=None)
    measured = [row for row in times_of(expected, SIZES) if row.kind != "attention"]
    found = fit_chip(replace(CPU, name=""), measured, sizes, DEVICES)
    assert found.bf16_flops == pytest.approx(3e12) and found.f32_flops == pytest.approx(1e12)
    assert found.memory_bandwidth == pytest.approx(2e11) and found.kernel_gap == pytest.approx(1e-6)
    assert found.fast_link.bandwidth == pytest.approx(7e9) and found.fast_link.latency == pytest.approx(3e-6)
    fractions = (found.product_fraction, found.memory_fraction, found.link_fraction, found.attention_fraction)
    assert fractions == (1, 1, 1, 1)


def test_one_device_has_no_links_to_measure():
    measured = [row for row in times_of(chip("h200"), SIZES) if row.kind != "all_reduce"]
    found = fit_chip(chip("h200"), measured, SIZES, 1)
    assert (found.fast_link, found.link_fraction) == (chip("h200").fast_link, chip("h200").link_fraction)
    assert found.assumed == ("link_fraction", "interference")


def test_this_machine_is_measured_and_written_to_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Sizes, "of_platform", staticmethod(lambda platform: TINY))
    path = tmp_path / "chips.toml"
    assert main(["calibrate", "--output", str(path)]) == 0
    output = capsys.readouterr()
    assert "[cpu-measured]" in output.out and f'use hardware="{path}:cpu-measured"' in output.out
    assert "[1/9] product bf16 8: " in output.err and "[9/9] all_reduce 4096: " in output.err
    (row,) = read_chips(path, built_in_chips()).values()
    assert row.platform == "cpu" and row.bf16_flops != CPU.bf16_flops and row.fast_link != CPU.fast_link
    assert chip(str(path)) == row
    lines = []
    again = calibrate("Mine", TINY, lines.append)
    assert again.chip.name == "mine" and len(lines) == len(again.measurements) == 9
    assert "on cpu, jaxlib" in again.comment


def test_errors_of_the_command(tmp_path, capsys):
    assert main(["calibrate", "--name", "H100"]) == 2
    assert "--name: 'H100' is the name of a built-in chip" in capsys.readouterr().err


def test_the_table_is_checked_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shardwise.launch.simulate_commands.calibrate", None)
    file, broken = tmp_path / "file", tmp_path / "broken.toml"
    file.write_text("")
    broken.write_text("[x")
    assert main(["calibrate", "--output", str(file / "chips.toml")]) == 2
    assert f"'{file}' is not a folder" in capsys.readouterr().err
    assert main(["calibrate", "--output", str(broken)]) == 2
    assert "broken.toml' is not valid TOML" in capsys.readouterr().err

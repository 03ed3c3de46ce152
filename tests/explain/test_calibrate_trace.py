"""calibrate_trace: one profiled step of an H200 predicts others, and the constants of a synthetic profile are found."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import predictions
from shardwise.compiler.plan.chip import Link
from shardwise.compiler.plan.chip_table import read_chips
from shardwise.compiler.plan.hardware import built_in_chips, chip
from shardwise.errors import HardwareError, ProfileError
from shardwise.explain.calibrate_trace import calibrate_trace
from shardwise.explain.device_trace import read_trace
from shardwise.explain.hlo_kernels import HloKernels
from shardwise.explain.hlo_module import HloModule
from shardwise.explain.kernel_attribution import launches
from shardwise.launch.command_line import main
from tests.explain.xplane_writer import gpu_profile

RECORDED = Path(__file__).parent / "recorded"
STEPS = ("MLP", "conv net", "mixture of experts", "attention at 8192")
BASE = chip("h200")


def recorded(step):
    return RECORDED / f"h200_{step.lower().replace(' ', '_')}.xplane.pb.gz"


@pytest.fixture(scope="module")
def models():
    return {name: (step, arguments) for name, step, arguments in predictions.models()}


@pytest.mark.parametrize("fitted", ["MLP", "conv net", "mixture of experts"])
def test_one_step_predicts_the_others(fitted, models):
    """The worst error is that of the attention, whose rate none of these steps determines."""
    calibration = calibrate_trace(recorded(fitted))
    assert calibration.predicted_seconds == pytest.approx(calibration.seconds, rel=0.005)
    for step in STEPS:
        measured = read_trace(recorded(step)).program("step").typical.seconds
        predicted = predictions.predict(*models[step], calibration.chip).seconds
        assert predicted == pytest.approx(measured, rel=0.05), step


def test_specs_that_a_profile_determines():
    calibration = calibrate_trace(recorded("MLP"))
    found, sources = calibration.chip, dict(calibration.chip.sources)
    assert found.name == "h200-traced" and found.device_kinds == BASE.device_kinds
    assert found.product_fraction == pytest.approx(0.854, abs=0.001)
    assert found.memory_fraction == pytest.approx(0.874, abs=0.001)
    assert found.kernel_gap == pytest.approx(2.1e-6, abs=1e-7)
    assert sources["product_fraction"] == sources["memory_fraction"] == "measured: a trace of step"
    assert sources["attention_fraction"] == "assumed: that of h200, which the trace does not determine"
    assert found.assumed == (
        "f8_product_fraction",
        "link_fraction",
        "attention_fraction",
        "attention_grad_ratio",
        "interference",
    )
    assert (found.attention_fraction, found.fast_link) == (BASE.attention_fraction, BASE.fast_link)
    attention = calibrate_trace(recorded("attention at 8192")).chip
    assert attention.attention_fraction == pytest.approx(0.669, abs=0.01)
    assert attention.attention_grad_ratio == pytest.approx(0.88, abs=0.01)
    assert attention.assumed == ("product_fraction", "f8_product_fraction", "link_fraction", "interference")


KNOWN = replace(
    BASE,
    product_fraction=0.71,
    memory_fraction=0.66,
    kernel_gap=3e-6,
    f32_flops=400e12,
    link_fraction=0.64,
    fast_link=Link(450e9, 5e-6),
    slow_link=Link(44e9, 14e-6),
)
SIZES = (1 << 13, 1 << 18, 1 << 22, 1 << 26)


SUM = """HloModule step, is_scheduled=true, replica_count=16

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

"""


def synthetic_module():
    """Return the HLO of a program with products, copies, and collectives of four kinds, within and between nodes."""
    lines, parameters = [], []

    def add(opcode, name, type, operands, attributes=""):
        names = [f"%p{len(parameters) + index}" for index in range(len(operands))]
        for operand in operands:
            parameters.append(f"%p{len(parameters)} = {operand} parameter({len(parameters)})")
        lines.append(f"%{opcode}.{name} = {type} {opcode}({', '.join(names)}){attributes}")

    for size in (1 << 22, 1 << 24, 64, 128, 256):
        add("copy", size, f"f32[{size}]{{0}}", [f"f32[{size}]{{0}}"])
    for dtype in ("bf16", "f32"):
        for n in (4096, 8192):
            matrix = f"{dtype}[{n},{n}]{{1,0}}"
            dims = ", lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            add("dot", f"{dtype}.{n}", matrix, [matrix] * 2, dims)
    for groups, count, where in (("[2,8]<=[16]", 8, "fast"), ("[8,2]<=[2,8]T(1,0)", 2, "slow")):
        along, reduced = f", replica_groups={groups}, dimensions={{0}}", f", replica_groups={groups}, to_apply=%sum"
        for size in SIZES:
            shard, full = f"f32[{size}]{{0}}", f"f32[{size * count}]{{0}}"
            add("all-gather", f"{where}.{size}", full, [shard], along)
            add("all-to-all", f"{where}.{size}", full, [full], along)
            add("reduce-scatter", f"{where}.{size}", shard, [full], f"{reduced}, dimensions={{0}}")
            add("all-reduce", f"{where}.{size}", full, [full], reduced)
    body = "\n".join(f"  {line}" for line in [*parameters, *lines[:-1], f"ROOT {lines[-1]}"])
    return f"{SUM}ENTRY %main {{\n{body}\n}}\n"


@pytest.fixture(scope="module", params=["command_buffer_1", ""], ids=["graph", "named"])
def synthetic(request, tmp_path_factory):
    """Return a profile with the times of a known chip, and noise of 1%.

    One of two devices waits for the other in each collective. Events name the CUDA graph only, or their instructions.
    """
    text, noise = synthetic_module(), random.Random(0)
    module = HloModule(text)
    kernels = HloKernels(module.computations, KNOWN)
    runs = {0: [], 1: []}
    for device, device_runs in runs.items():
        start = device * 1e-5
        for _ in range(2):
            events = []
            for index, launch in enumerate(launches(module)):
                instruction, collective = launch.instruction, module.collective(launch.instruction)
                if collective is None:
                    kernel = {"dot": "nvjet_sm90_tst_128x256", "copy": "MemcpyD2D"}[instruction.opcode]
                    seconds, waited = kernels.seconds(instruction, launch.scope) - KNOWN.kernel_gap, 0.0
                else:
                    kernel, waited = (
                        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
                        3e-4 * (index % 2 == device),
                    )
                    seconds = KNOWN.ring_of(collective.devices).time(collective.traffic)
                seconds *= noise.uniform(0.99, 1.01)
                events.append((kernel, request.param or instruction.name, start, seconds + waited))
                start += seconds + waited + KNOWN.kernel_gap
            device_runs.append(events)
            start += 1e-3
    path = tmp_path_factory.mktemp("synthetic") / "step.xplane.pb"
    path.write_bytes(gpu_profile(text, runs))
    return path


def test_the_constants_of_a_synthetic_profile_are_found(synthetic):
    found = calibrate_trace(synthetic).chip
    for name in ("product_fraction", "memory_fraction", "kernel_gap", "link_fraction"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.02), name
    assert found.f32_flops == pytest.approx(KNOWN.f32_flops, rel=0.02)
    assert found.fast_link.latency == pytest.approx(KNOWN.fast_link.latency, rel=0.02)
    assert found.slow_link.bandwidth == pytest.approx(KNOWN.slow_link.bandwidth, rel=0.02)
    assert found.slow_link.latency == pytest.approx(KNOWN.slow_link.latency, rel=0.02)
    assert found.assumed == ("f8_product_fraction", "attention_fraction", "attention_grad_ratio", "interference")


def test_the_command_writes_an_entry(synthetic, tmp_path, capsys):
    path = tmp_path / "chips.toml"
    assert main(["calibrate", "--from-trace", str(synthetic), "--name", "Ours", "--output", str(path)]) == 0
    output = capsys.readouterr()
    assert "# Fitted by `shardwise calibrate` to a trace of step on NVIDIA H200.\n[ours]" in output.out
    assert "product_fraction: 2 kernels, " in output.err and "link_fraction: 32 kernels, " in output.err
    (row,) = read_chips(path, built_in_chips()).values()
    assert row.name == "ours" and row.link_fraction == pytest.approx(0.64, rel=0.02)


def test_errors(synthetic, tmp_path, capsys):
    assert main(["calibrate", "--from-trace", str(tmp_path), "--output", str(tmp_path / "chips.toml")]) == 2
    assert "has no profile of XLA, *.xplane.pb. Record one: " in capsys.readouterr().err
    assert main(["calibrate", "--base", "h100"]) == 2
    assert "--base needs --from-trace: without it, this machine is measured" in capsys.readouterr().err
    with pytest.raises(ProfileError, match="has no run of a program 'train'"):
        calibrate_trace(synthetic, program="train")
    other = tmp_path / "other.xplane.pb"
    other.write_bytes(synthetic.read_bytes().replace(b"NVIDIA H200", b"NVIDIA X999"))
    with pytest.raises(
        HardwareError, match=r"of the kind 'NVIDIA X999', which is not in the built-in table. Name the chip"
    ):
        calibrate_trace(other)
    assert calibrate_trace(other, base="h100").chip.name == "h100-traced"

"""Measured plans: kernels of profiles of an H200 and of this machine, with their lines and their predictions."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks import predictions
from shardwise import lax
from shardwise.errors import ProfileError
from shardwise.explain.calibrate_trace import calibrate_trace
from shardwise.explain.device_trace import read_trace
from shardwise.explain.measured_plan import measure_plan
from shardwise.launch.command_line import main

RECORDED = Path(__file__).parent / "recorded"
MLP = RECORDED / "h200_mlp.xplane.pb.gz"

# The lines of `benchmarks/predictions.py` when the profile was recorded: 58, 66 and 67.
LINES = {
    55: "def step(params, *batch):",
    56: "    value, gradients = jax.value_and_grad(loss)(params, *batch)",
    58: "    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value",
    64: "def loss(params, x):",
    65: "    for w in params:",
    66: "        x = gelu(x @ w.astype(jnp.bfloat16))",
    67: "    return jnp.mean(x.astype(jnp.float32) ** 2)",
}


@pytest.fixture(scope="module")
def mlp():
    """Return the step that was profiled, and its arguments."""
    names = {"jax": jax, "jnp": jnp, "gelu": predictions.gelu}
    text = "\n".join(LINES.get(number, "") for number in range(1, 1 + max(LINES)))
    exec(compile(text, "/home/me/predictions.py", "exec"), names)
    weight = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    return jax.jit(names["step"]), ([weight] * 4, jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16))


def test_kernels_of_an_h200_have_lines_and_predictions(mlp, capsys):
    step, args = mlp
    explanation = jax.explain(step, measured=MLP)(*args)
    measured = explanation.measured
    assert explanation.plan.chip.name == "h200"  # the hardware of the profile
    assert measured.seconds == pytest.approx(17.05e-3, rel=1e-3) and measured.attributed == 1
    rows = {(row.ops[0], row.line): row for row in measured.rows}
    dots, updates = rows["dot", "predictions.py:66"], rows["sub", "predictions.py:58"]
    assert (dots.predicted_kernels, dots.measured_kernels) == (11, 11)
    assert (updates.predicted_kernels, updates.measured_kernels) == (4, 4)
    assert dots.measured == pytest.approx(15.16e-3, rel=1e-3)
    assert sum(row.measured for row in measured.rows) == pytest.approx(measured.seconds)
    assert sum(row.predicted for row in measured.rows) == pytest.approx(measured.predicted)
    assert sum(kernel.seconds for kernel in measured.kernels) == pytest.approx(measured.seconds)
    assert measured.differences[0] is dots and dots.difference == pytest.approx(-1.02e-3, rel=0.1)
    printed = capsys.readouterr().out
    assert "measured on NVIDIA H200: 17.0 ms per call, predicted 18.0 ms (+5.4%); 100.0% of the device time" in printed
    assert "    dot at predictions.py:66: predicted 16.2 ms, measured 15.2 ms, −1.0 ms\n" in printed
    page = explanation.to_html()
    assert '<h2 id="measured">Measured</h2>' in page and "<li>dot at predictions.py:66: predicted 16.2 ms" in page


def test_a_chip_that_was_fitted_to_the_profile_has_small_differences(mlp):
    step, args = mlp
    plan = jax.simulate(step, hardware=calibrate_trace(MLP).chip)(*args).plan
    measured = measure_plan(plan, read_trace(MLP))
    assert abs(measured.differences[0].difference) < 0.01 * measured.seconds
    assert max(abs(kernel.predicted / kernel.seconds - 1) for kernel in measured.kernels if kernel.op == "dot") < 0.05


@pytest.mark.parametrize(
    "name", [pytest.param("conv net", marks=pytest.mark.slow), "mixture of experts", "attention at 8192"]
)
def test_device_time_is_attributed(name):
    """Products are counted as in the plan: 35 convolutions, 7 products, 2 kernels of attention."""
    models = {name: (step, arguments) for name, step, arguments in predictions.models()}
    plan = predictions.predict(*models[name], "h200").plan
    measured = measure_plan(plan, read_trace(RECORDED / f"h200_{name.replace(' ', '_')}.xplane.pb.gz"))
    assert measured.attributed >= 0.99 and len(measured.differences) == 5
    ops = ("conv", "dot", "fused_attention", "fused_attention_grad")
    counts = {op: sum(kernel.op == op and bool(kernel.line) for kernel in measured.kernels) for op in ops}
    assert {op: count for op, count in counts.items() if count} == {
        "conv net": {"conv": 35},
        "mixture of experts": {"dot": 7},
        "attention at 8192": {"fused_attention": 1, "fused_attention_grad": 1},
    }[name]


def profiled_step(x, w):
    return jnp.tanh(x @ w).sum(0)


LINE = f"{Path(__file__).name}:{profiled_step.__code__.co_firstlineno + 1}"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Return a folder with a profile of two devices, and the arguments."""
    folder = tmp_path_factory.mktemp("profile")
    mesh = jax.make_mesh((2,), ("d",))
    x = jax.device_put(jnp.ones((64, 32)), jax.NamedSharding(mesh, jax.P("d")))
    w = jax.device_put(jnp.ones((32, 32)), jax.NamedSharding(mesh, jax.P()))
    step = jax.jit(profiled_step)
    jax.block_until_ready(step(x, w))
    with jax.profiler.trace(folder):
        for _ in range(3):
            jax.block_until_ready(step(x, w))
    return folder, (x, w)


def test_a_profile_of_this_machine(profiled):
    folder, args = profiled
    measured = jax.explain(profiled_step, measured=folder, advise=False)(*args).measured
    assert measured.device_kind == "cpu" and measured.attributed >= 0.95
    assert {row.line for row in measured.rows} == {LINE}
    counts = {row.ops[0]: (row.predicted_kernels, row.measured_kernels) for row in measured.rows}
    assert counts["dot"] == (1, 1) and counts["all_reduce"] == (1, 1)
    assert all(kernel.predicted > 0 for kernel in measured.kernels)


@pytest.mark.slow
def test_kernels_of_loops_are_counted_as_they_run(tmp_path):
    """Three layers, with gradients: 9 products. XLA names some of them after the reduce-scatters that read them."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))

    def loss(weights, x):
        return (lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0] ** 2).mean()

    weights = jax.device_put(jnp.ones((3, 32, 32)), jax.NamedSharding(mesh, jax.P(None, "data", "model")))
    x = jax.device_put(jnp.ones((16, 32)), jax.NamedSharding(mesh, jax.P("data")))
    step = jax.jit(jax.grad(loss))
    jax.block_until_ready(step(weights, x))
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(step(weights, x))
    explanation = jax.explain(step, measured=tmp_path, advise=False)(weights, x)
    planned, ran = Counter(), Counter()
    for row in explanation.measured.rows:
        planned[row.ops[:1]] += row.predicted_kernels
        ran[row.ops[:1]] += row.measured_kernels
    assert planned["dot",] == ran["dot",] == 9 and explanation.measured.attributed > 0.95
    for kind in explanation.counts():
        assert planned[kind,] == ran[kind,] > 0, kind


def test_the_command(profiled, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shardwise.launch.simulate_commands.as_jax", lambda: None)  # other tests import jax
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, _ = profiled
    file = tmp_path / "profiled_model.py"
    file.write_text(
        "import shardwise as jax\nimport shardwise.numpy as jnp\n"
        "from shardwise.sharding import NamedSharding, PartitionSpec as P\n"
        "def profiled_step(x, w):\n    return jnp.tanh(x @ w).sum(0)\n"
        "def arguments(mesh, rows=64):\n    def on(shape, *spec):\n"
        "        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))\n"
        "    return on((rows, 32), 'd'), on((32, 32))\n"
    )
    page = tmp_path / "plan.html"
    command = ["explain", f"{file}:profiled_step", "--mesh", "d=2", "--no-advice"]
    assert main([*command, "--measured", str(folder), "--page", str(page)]) == 0
    # The lines are those of the file that was profiled.
    assert f"dot at {LINE}: predicted 0 s, measured " in capsys.readouterr().out
    assert '<h2 id="measured">' in page.read_text()
    assert main([*command, "--set", "rows=128", "--measured", str(folder)]) == 2
    assert "with other arguments: f32[32,32], f32[32,32] per device. Pass" in capsys.readouterr().err
    assert main(["explain", str(file), "--measured", str(folder)]) == 2
    assert "--measured needs a function, FILE.py:FUNCTION" in capsys.readouterr().err
    assert main([*command, "--measured", str(file)]) == 2
    assert "profiled_model.py' is not a profile of XLA" in capsys.readouterr().err


def test_a_profile_of_another_program(profiled):
    folder, (x, w) = profiled

    def other(x, w):
        return x @ w

    explain = jax.explain(other, measured=folder)
    message = r"has no run of a program 'other', but of 'profiled_step'\. Record a call of the same jitted function"
    with pytest.raises(ProfileError, match=message):
        explain(x, w)

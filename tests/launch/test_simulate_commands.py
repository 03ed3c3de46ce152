"""`shardwise explain` and `shardwise simulate`: what they print and write, and their errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.launch.command_line import main

MODEL = """
import shardwise as jax
import shardwise.numpy as jnp
from shardwise.sharding import AbstractMesh, NamedSharding, PartitionSpec as P


def step(w, x):
    return jnp.tanh(x @ w)


def arguments(mesh, batch=1024):
    w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    return w, jax.ShapeDtypeStruct((batch, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))


def on_two():
    return arguments(AbstractMesh((2,), ("data",)))


def unsharded():
    return jax.ShapeDtypeStruct((512, 512), jnp.bfloat16), jax.ShapeDtypeStruct((4, 512), jnp.bfloat16)


def constant():
    return jnp.zeros(4)


number = 3
"""
SCRIPT = """
import sys
import jax
import jax.numpy as jnp

assert __name__ == "__main__" and sys.argv[1:] == ["--size", "4"]
mesh = jax.make_mesh((4,), ("data",))
x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, jax.P("data")))


@jax.jit
def total(x):
    return (x @ x.T).sum()


print("result", total(x))
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    path = tmp_path / "a_model.py"
    path.write_text(MODEL)
    yield path
    sys.modules.pop("a_model", None)


@pytest.fixture
def without_as_jax(monkeypatch):
    """Do not make `import jax` Shardwise in this process: other tests import jax."""
    monkeypatch.setattr("shardwise.launch.simulate_commands.as_jax", lambda: None)


@pytest.mark.usefixtures("without_as_jax")
class TestFunctions:
    def test_simulate_one_configuration(self, model, tmp_path, capsys):
        page, trace = tmp_path / "page.html", tmp_path / "trace.json"
        options = ["--mesh", "data=8", "--hardware", "h100", "--page", str(page), "--trace", str(trace)]
        assert main(["simulate", f"{model}:step", *options]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("step on mesh data=8 of h100: ") and "of peak flops" in printed
        assert page.read_text().startswith("<!DOCTYPE html>")
        assert {"all_gather", "dot"} <= {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}

    def test_simulate_sweeps(self, model, tmp_path, capsys):
        plot = tmp_path / "plot.svg"
        options = ["--mesh", "data=2", "--mesh", "data=8", "--hardware", "h100", "--hardware", "a100"]
        sizes = ["--set", "batch=1024", "--set", "batch=2048"]
        assert main(["simulate", f"{model}:step", *options, *sizes, "--plot", str(plot)]) == 0
        assert capsys.readouterr().out.startswith("step: 8 configurations\nhardware  mesh    batch")
        assert "<svg" in plot.read_text()

    def test_arguments_of_another_function_are_moved_to_the_mesh(self, model, capsys):
        options = ["--hardware", "h100", "--arguments", "on_two", "--no-overlap"]
        assert main(["simulate", f"{model}:step", *options]) == 0
        assert main(["simulate", f"{model}:step", *options, "--mesh", "data=4"]) == 0
        printed = capsys.readouterr().out
        assert "step on mesh data=2 of h100" in printed and "step on mesh data=4 of h100" in printed

    def test_failures(self, model, capsys):
        options = ["--mesh", "data=8", "--hardware", "h100", "--failures", "days=2,trials=2,per_device_day=0.1"]
        assert main(["simulate", f"{model}:step", *options]) == 0
        assert "\n2 days on 8 devices with 1.6 expected interruptions (means of 2" in capsys.readouterr().out
        assert main(["simulate", f"{model}:step", *options, "--mesh", "data=4"]) == 2
        assert "--page, --trace and --failures need one configuration" in capsys.readouterr().err

    def test_expert_imbalance(self, capsys):
        def seconds(*options):
            assert main(["simulate", "tests.explain.expert_layer:step", "--hardware", "h100", *options]) == 0
            return float(re.search(r"([0-9.]+) µs per call", capsys.readouterr().out)[1])

        assert seconds("--expert-imbalance", "2") == pytest.approx(2 * seconds(), rel=0.02)
        with pytest.raises(SystemExit):
            main(["simulate", "tests.explain.expert_layer:step", "--hardware", "h100", "--expert-imbalance", "0.5"])
        assert "--expert-imbalance: must be at least 1, the balanced experts, not 0.5" in capsys.readouterr().err

    def test_explain(self, model, tmp_path, capsys):
        page, trace = tmp_path / "page.html", tmp_path / "trace.json"
        options = ["--mesh", "data=8", "--set", "batch=64", "--page", str(page), "--trace", str(trace)]
        assert main(["explain", f"{model}:step", *options]) == 0
        assert main(["explain", f"{model}:step", "--mesh", "data=8", "--hardware", "h100", "--no-advice"]) == 0
        printed = capsys.readouterr().out
        assert "step on mesh data=8: 1 collective" in printed and "per call on h100" in printed
        assert page.exists() and trace.exists()

    def test_stages(self, model, capsys):
        assert main(["explain", f"{model}:step", "--mesh", "data=8", "--hardware", "h100", "--stages"]) == 0
        printed = capsys.readouterr().out
        heads = re.findall(r"^== (\d+)\. (\w+)$", printed, re.MULTILINE)
        assert [int(index) for index, _ in heads] == list(range(1, len(heads) + 1))
        names = [name for _, name in heads]
        assert names[0] == "trace" and names[-1] == "lower" and {"inline", "layout_problem", "choose"} < {*names}
        assert "candidates along 'data' {" in printed and "all_gather[" in printed and "stablehlo.tanh" in printed
        assert "per call on h100" not in printed

    def test_stages_of_a_compiled_function(self, model, capsys):
        model.write_text(f"{MODEL}\ncompiled = jax.jit(jnp.sin).lower(1.0).compile()\n")
        assert main(["explain", f"{model}:compiled", "--arguments", "none", "--stages"]) == 2
        assert "compiled' is already lowered. Name the function" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["MODEL:stepp"], "has no function 'stepp'. Did you mean 'step'?"),
            (["FOLDER/a_modell.py:step"], "there is no file '.*a_modell.py'. Did you mean '.*a_model.py'?"),
            (
                ["MODEL:step", "--arguments", "nothing"],
                "has no function 'nothing', which returns the arguments of 'step'",
            ),
        ],
    )
    def test_errors_of_stages(self, model, arguments, message, capsys):
        replaced = [text.replace("MODEL", str(model)).replace("FOLDER", str(model.parent)) for text in arguments]
        assert main(["explain", "--stages", *replaced]) == 2
        error = capsys.readouterr().err
        assert error.startswith("shardwise explain: ") and "Traceback" not in error
        assert re.search(message.replace("?", r"\?"), error), error

    def test_a_function_of_a_module(self, model, monkeypatch, capsys):
        monkeypatch.chdir(model.parent)
        assert main(["simulate", "a_model:step", "--mesh", "data=2", "--hardware", "h100"]) == 0
        assert main(["simulate", "a_model:constant", "--hardware", "h100", "--arguments", "none"]) == 0
        assert "constant on one device" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["MODEL:stepp"], "has no function 'stepp'. Did you mean 'step'?"),
            (["MODEL:xyz"], "has no function 'xyz'. Its functions: step, arguments, on_two, unsharded, constant."),
            (["MODEL:number"], "'number' in .* must be a function, not int"),
            (["FOLDER/a_modell.py:step"], "there is no file '.*a_modell.py'. Did you mean '.*a_model.py'?"),
            (["no_module_x:step"], "there is no module 'no_module_x'"),
            (["step"], "'step' must be FILE.py:FUNCTION, package.module:FUNCTION, or a script FILE.py"),
            (["MODEL:step", "--mesh", "data:8"], "--mesh 'data:8': 'data:8' is not an axis with its size"),
            (["MODEL:step", "--mesh", f"data={'9' * 5000}"], "is not an axis with its size, from 1 to 999999999"),
            (["MODEL:step", "--mesh", "data=٣"], "is not an axis with its size"),
            (["MODEL:step", "--mesh", "data=0"], "--mesh 'data=0': 'data=0' is not an axis with its size"),
            (["MODEL:step", "--mesh", "data=2,data=2"], "has the axis 'data' twice"),
            (["MODEL:step", "--mesh", "date=2"], "date"),
            (["MODEL:step"], "the arguments depend on 'mesh': write --mesh data=8"),
            (["MODEL:step", "--mesh", "data=2", "--set", "size=3"], "--set size: .* Its parameters: mesh, batch."),
            (["MODEL:step", "--set", "batch"], "--set 'batch': write NAME=VALUE"),
            (
                ["MODEL:step", "--arguments", "nothing"],
                "has no function 'nothing', which returns the arguments of 'step'",
            ),
            (["MODEL:step", "--arguments", "unsharded", "--mesh", "data=2"], "no argument has a NamedSharding"),
            (["MODEL:step", "--mesh", "data=2", "--hardware", "h10"], "unknown hardware 'h10'. Did you mean 'h100'?"),
            (["MODEL:step", "--mesh", "data=2", "--plot", "x.png"], "--plot needs several configurations"),
            (["MODEL:step", "--mesh", "data=2", "--mesh", "data=4", "--plot", "x.abc"], "cannot be written as 'x.abc'"),
            (
                ["MODEL:step", "--mesh", "data=2", "--mesh", "data=4", "--page", "p"],
                "--page, --trace and --failures need one",
            ),
            (["MODEL:step", "--", "more"], "only a script has arguments"),
            (["FOLDER/script.py"], "there is no file"),
            (["MODEL", "--mesh", "data=2"], "a script has its own meshes"),
        ],
    )
    def test_errors(self, model, arguments, message, capsys):
        replaced = [text.replace("MODEL", str(model)).replace("FOLDER", str(model.parent)) for text in arguments]
        assert main(["simulate", "--hardware", "h100", *replaced]) == 2
        error = capsys.readouterr().err
        assert error.startswith("shardwise simulate: ") and "Traceback" not in error
        pattern = message.replace("?", r"\?").replace("(", r"\(")
        assert re.search(pattern, error), error


def script_process(*arguments, **variables):
    """Return the output of the command in a process of its own, with these environment variables."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **variables}
    command = [sys.executable, "-m", "shardwise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment).stdout


@pytest.mark.slow
def test_simulate_shows_the_programs_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    output = script_process("simulate", str(tmp_path / "script.py"), "--hardware", "a100", "--", "--size", "4")
    assert "total on mesh data=4 of a100: " in output and "result 256.0" in output


def test_explain_shows_the_programs_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    output = script_process("explain", str(tmp_path / "script.py"), "--hardware", "h100", "--", "--size", "4")
    assert re.search(r"total on mesh data=4: \d collectives?, ", output)
    assert "per call on h100" in output and "result 256.0" in output


@pytest.mark.table(default=1)
@pytest.mark.parametrize("options", [[], ["--stages"]], ids=["plan", "stages"])
def test_explain_leaves_the_files_of_dump_to_complete(tmp_path, options):
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = tmp_path / "dump"
    arguments = ["explain", str(tmp_path / "script.py"), *options, "--", "--size", "4"]
    script_process(*arguments, SHARDWISE_DUMP_TO=str(folder))
    written = [sorted(path.name for path in dump.iterdir()) for dump in folder.glob("*-total")]
    assert len(written) == 2  # compiled by the script, and planned again for the output
    assert written[0] == written[1] and "01-trace.txt" in written[0]
    assert any(name.endswith("-choose.txt") for name in written[0])


def test_explain_shows_the_stages_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    output = script_process("explain", str(tmp_path / "script.py"), "--stages", "--", "--size", "4")
    assert output.count("== 1. trace\nprogram total(") == 1
    assert "module @total {" in output and "result 256.0" in output


def test_a_script_that_compiles_nothing(model):
    printed = script_process("explain", str(model))
    assert re.search(r"a_model.py has run, and compiled no jitted function\. .*a_model.py:FUNCTION", printed)


def test_the_summary_follows_a_script_that_exits(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        script_process("explain", str(tmp_path / "script.py"))
    assert failure.value.returncode == 3
    assert "script.py has run, and compiled no jitted function" in failure.value.stdout

"""`shardwise autoshard`, and `simulate` and `explain` of models: what they print, and their errors."""

import re
import sys

import pytest

from shardwise.launch.command_line import main
from shardwise.models import PRESETS, Decoder

MODEL = """
import shardwise as jax
import shardwise.numpy as jnp


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


def arguments(batch=1024):
    return jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct((batch, 256), jnp.float32)
"""


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", Decoder(2, 64, 4, 2, 16, 128, 256))
    return ["tiny", "--hardware", "h100", "--length", "64", "--sequences", "16"]


@pytest.mark.slow
def test_autoshard_answers_in_one_line_and_says_why_the_runner_up_lost(tiny, capsys):
    assert main(["autoshard", *tiny, "--count", "2", "--microbatches", "1"]) == 0
    answer, reason = capsys.readouterr().out.splitlines()[:2]
    assert re.fullmatch(
        r"tiny on 2 h100: data=\d.*: .* per step \(.* to .*\), \d+\.\d% MFU, .* of 80.0 GB per device, "
        r"[\d,]+ tokens/s \(16 sequences of 64 tokens\)",
        answer,
    )
    assert re.match(r"runner-up: .*: \d+% slower", reason)


@pytest.mark.slow
def test_simulate_and_explain_choose_shardings_on_a_mesh(tiny, capsys, tmp_path):
    assert main(["simulate", *tiny, "--mesh", "data=2", "--trace", str(tmp_path / "t.json")]) == 0
    assert "tiny on mesh data=2 of h100" in capsys.readouterr().out and (tmp_path / "t.json").exists()
    assert main(["explain", *tiny, "--mesh", "data=2"]) == 0
    assert "tiny on mesh data=2: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_of_a_model_has_one_batch(tiny, capsys):
    assert main(["simulate", *tiny, "--mesh", "data=2", "--mesh", "data=2,model=2"]) == 0
    assert "fastest that fits: " in capsys.readouterr().out


@pytest.fixture
def step_file(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.launch.preset_commands.as_jax", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "step_file.py"
    path.write_text(MODEL)
    yield path
    sys.modules.pop("step_file", None)


def test_autoshard_accepts_a_function(step_file, capsys):
    options = ["--hardware", "h100", "--mesh", "data=4", "--set", "batch=64", "--table"]
    assert main(["autoshard", f"{step_file}:step", *options]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{step_file}:step on 4 h100: data=4") and "plan " in output and "tokens/s" not in output


def test_the_answer_states_the_memory_limit(step_file, capsys):
    for options, memory in (
        (["h100"], r"\S+ \S+ of 80\.0 GB per device"),
        (["h100", "--memory-limit", "2G"], r"\S+ \S+ of a limit of 2\.0 GB per device"),
        (["cpu"], r"\S+ \S+ per device"),  # no limit
    ):
        assert main(["autoshard", f"{step_file}:step", "--mesh", "data=4", "--hardware", *options]) == 0
        assert re.search(f"MFU, {memory}", capsys.readouterr().out.splitlines()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["autoshard", "llama3-7b", "--count", "8"], "there is no model 'llama3-7b'. Did you mean 'llama3-70b'"),
        (["autoshard", "llama3-8b"], "write either --count"),
        (["autoshard", "llama3-8b", "--count", "0"], "there must be at least one device"),
        (["autoshard", "llama3-8b", "--count", "8", "--memory-limit", "0.1"], ": `memory_limit` is the bytes that"),
        (["autoshard", "llama3-8b", "--count", "8", "--memory-limit", "80GB"], "write a positive number, such as 70G"),
        (["autoshard", "llama3-8b", "--count", "8", "--set", "batch=3"], "--set needs a function"),
        (["simulate", "llama3-8b"], "a model needs a mesh: write --mesh"),
        (["simulate", "llama3-8b", "--mesh", "data=8", "--set", "batch=3"], "--set batch: a model has --tokens"),
        (["simulate", "llama3-8b", "--hardware", "a100"], "a sweep of a model needs --mesh"),
        (["explain", "llama3-8b", "--mesh", "data=8", "--stages"], "--stages, --pin and --measured need a function"),
        (["explain", "lama3-8b", "--mesh", "data=8"], "there is no model 'lama3-8b'"),
    ],
)
def test_errors(arguments, message, capsys):
    assert main([*arguments, "--hardware", "h100"]) == 2
    assert message in capsys.readouterr().err


def test_a_step_that_does_not_fit_is_an_error(step_file, capsys):
    assert main(["autoshard", f"{step_file}:step", "--hardware", "h100", "--count", "2", "--memory-limit", "1k"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("shardwise autoshard: no plan of `step` fits in 1.0 kB per device on 2 × h100")


@pytest.mark.slow
def test_a_larger_number_of_devices_is_for_the_same_batch(tiny, capsys):
    assert main(["autoshard", *tiny, "--count", "2", "--memory-limit", "1M"]) == 2
    assert re.search(
        r"It would fit on (\d+) devices: .* same batch: --count \1 --sequences 16", capsys.readouterr().err
    )

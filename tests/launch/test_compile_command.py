"""`shardwise compile`: a job loads the executables that the command has written, and its errors."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.base.config import config
from shardwise.experimental import topologies
from shardwise.launch import compile_command
from shardwise.launch.command_line import main
from shardwise.runtime.compilation_cache import program_key, topology_key

TRAINING = """
import sys
from functools import partial
import numpy as np
import shardwise as jax
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding, PartitionSpec as P


@partial(jax.jit, donate_argnums=0)
def step(w, x, rate):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - rate * gradient, loss


def arguments(mesh, batch=12):
    def on(shape, spec):
        return jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))

    return on((32, 64), P(None, "model")), on((batch, 32), P("data")), 0.1


@jax.jit
def printing(w, x, rate):
    jax.debug.print("{}", x.sum())
    return x


if __name__ == "__main__":
    w, x, rate = arguments(jax.make_mesh((3, 2), ("data", "model"), devices=jax.devices()[:6]))
    w, x = (jax.device_put(np.ones(each.shape, each.dtype), each.sharding) for each in (w, x))
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit("/", 1)[1]))
    step(w, x, rate)[1].block_until_ready()
    print(*events)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    return "train.py"


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def compile_(*arguments):
    return run("-m", "shardwise", "compile", *arguments, "--cache", "cache")


def test_a_job_loads_what_the_command_has_compiled(script):
    first = compile_("train.py:step", "--mesh", "data=3,model=2")
    assert first.returncode == 0, first.stderr
    assert "train.py:step: compiled in" in first.stdout and "written to cache" in first.stdout
    job = run(script, SHARDWISE_COMPILATION_CACHE_DIR="cache", SHARDWISE_NUM_CPU_DEVICES="6")
    assert job.stdout.split() == ["cache_hits"], job.stderr


@pytest.mark.slow
def test_an_entry_is_compiled_once_for_every_choice_of_the_arguments(script):
    compile_("train.py:step", "--mesh", "data=3,model=2")
    assert compile_("train.py:step", "--mesh", "data=3,model=2").stdout == "train.py:step: in cache already\n"
    other = compile_("train.py:step", "--mesh", "data=3,model=2", "--set", "batch=24")
    assert "compiled in" in other.stdout


@pytest.mark.slow
def test_a_program_with_callbacks_is_an_error(script):
    result = compile_("train.py:printing", "--mesh", "data=3,model=2")
    assert result.returncode == 2
    assert "not written to the cache. Programs with callbacks cannot be" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "data=8"], "there is no compilation cache: write --cache DIR"),
        (["--mesh", "data=0", "--cache", "c"], "is not an axis with its size"),
        (["--mesh", "data=8", "--cache", "c", "--set", "batch=1", "--set", "batch=2"], "--set batch can be given once"),
        (["--mesh", "data=8", "--cache", "c", "--target-config", "f"], "--target-config needs --topology"),
        (["--mesh", "data=8", "--cache", "c", "--topology", "1x1x8"], "the platform 'cuda' is not supported"),
        (["--mesh", "data=3", "--cache", "c"], "--mesh data=3 has 3 devices, and there are 8"),
    ],
)
def test_errors(script, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(compile_command, "sw", SimpleNamespace(config=_Settings(), devices=sw.devices))
    assert main(["compile", "train.py:step", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("shardwise compile: ") and message in error


class _Settings:
    """Settings of a process that has used its devices already."""

    compilation_cache_dir = ""

    def update(self, name, value):
        setattr(self, name, value)


def test_keys_of_topologies_do_not_depend_on_autotuning_and_on_the_present_machine():
    topology = topologies.get_attached_topology()
    keys = {topology_key("module", topology.devices, (("xla_gpu_autotune_level", level),)) for level in (0, 4)}
    assert keys == {topology_key("module", topology.devices, ())}
    assert keys != {topology_key("module", topology.devices, (("xla_gpu_enable_fast_min_max", True),))}
    assert keys != {program_key("module", topology.devices, ())}
    assert config.compilation_cache_dir == ""

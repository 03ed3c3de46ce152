"""The training run that the examples share: progress, checkpoints, plan, trace and loss curve."""

import numpy as np
import pytest
import training_run
from training_run import Run

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import data
from shardwise.errors import CheckpointMismatch, DataError, DataStateMismatch
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

AXES = ("data", "model")


def test_compilations_are_counted():
    @sw.jit
    def double(x):
        return 2 * x

    arrays = [jnp.ones(size) for size in (3, 5)]
    with training_run.count_compiles() as durations:
        for x in (*arrays, *arrays):
            double(x)
    assert len(durations) == 2 and min(durations) > 0
    double(jnp.ones(7))
    assert len(durations) == 2


@sw.jit
def train_step(state, batch):
    loss, grads = sw.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * grads}, loss


def batches(mesh, seed=0):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    source = data.ArraySource({"x": x, "y": x.sum(1)})
    return data.BatchIterator(source, NamedSharding(mesh, P("data")), batch_size=16, seed=seed, epochs=None)


def train(folder, *options, size=4, seed=0):
    """Train a linear model; return the losses."""
    arguments = ["--folder", str(folder), "--save-every", "3", "--log-every", "1", *options]
    run = Run.from_command_line("linear", "A linear model.\n\nMore text.", arguments, axes=AXES, steps=8)
    state = {"w": sw.device_put(np.zeros(size, np.float32), NamedSharding(run.mesh, P()))}
    return run.train(train_step, state, batches(run.mesh, seed), items=16, unit="rows")[1]


def test_progress_and_files(tmp_path, capsys):
    losses = train(tmp_path, "--trace")
    assert len(losses) == 8 and losses[-1] < losses[0] / 2
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("train_step on mesh data=4, model=2: 0 kB sent")
    progress = [line for line in printed if line.startswith("step")]
    assert len(progress) == 8
    assert progress[-1].split()[:4] == ["step", "8/8", "loss", f"{losses[-1]:.4f}"]
    assert all(unit in progress[-1] for unit in (" ms ", " rows/s ", " MFU ", "%  compiles 1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "loss.png", "plan.html", "trace"]
    assert all(str(tmp_path / name) in printed[-1] for name in ("checkpoints", "loss.png", "plan.html", "trace"))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list((tmp_path / "trace").rglob("perfetto_trace.json.gz"))


def test_resumed_losses_equal_those_of_one_run(tmp_path, capsys):
    expected = train(tmp_path / "one")
    train(tmp_path / "two", "--steps", "5")
    resumed = train(tmp_path / "two", "--mesh", "data=2,model=1")
    np.testing.assert_allclose(resumed, expected, rtol=1e-5)
    assert "continue after step 5" in capsys.readouterr().out
    assert train(tmp_path / "two") == resumed  # nothing is left to do
    assert "all 8 steps are done: pass more --steps, or --fresh" in capsys.readouterr().out
    train(tmp_path / "two", "--fresh", "--steps", "2")
    assert "continue" not in capsys.readouterr().out


def test_resume_with_another_model(tmp_path):
    train(tmp_path, "--steps", "3")
    with pytest.raises(CheckpointMismatch, match=r"w.*\(?5"):
        train(tmp_path, size=5)


def test_resume_with_other_data(tmp_path):
    train(tmp_path, "--steps", "3")
    with pytest.raises(DataStateMismatch, match="seed"):
        train(tmp_path, seed=1)


def test_devices_that_do_not_divide_the_batch(tmp_path):
    with pytest.raises(DataError, match=r"16.*3"):
        train(tmp_path, "--devices", "3")

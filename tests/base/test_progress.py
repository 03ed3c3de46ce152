"""The line of progress: where it appears, what it says, and that nothing of it remains."""

import io
import os
import threading
import time
from types import SimpleNamespace

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base import progress
from shardwise.base.progress import Task, set_stage
from shardwise.compiler import pipeline
from shardwise.execute import executor
from shardwise.sharding import AbstractMesh

SECONDS = 20  # the most that a test waits for the line, on a busy machine


class Terminal(io.StringIO):
    """A terminal that keeps everything that is written to it."""

    def isatty(self):
        return True

    def fileno(self):
        return 2

    def lines(self):
        """Return the lines that were shown, each once."""
        return list(dict.fromkeys(line.rstrip() for line in self.getvalue().split("\r") if line.strip()))

    def wait_for(self, text):
        """Wait until a line with this text is shown."""
        deadline = time.monotonic() + SECONDS
        while not any(text in line for line in self.lines()):
            assert time.monotonic() < deadline, f"{text!r} is not in {self.lines()}"
            time.sleep(0.001)


@pytest.fixture
def immediately(monkeypatch):
    """Show the line without a delay."""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    sw.config.update("progress", True)  # in all threads
    yield
    sw.config.update("progress", False)


@pytest.fixture
def terminal(monkeypatch, immediately):
    """A terminal of 80 columns as standard error."""
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))  # pytest sets sys.stderr before the test
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda file: os.terminal_size((80, 24)))
    return terminal


def progress_threads():
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_the_line_has_the_title_the_stage_and_the_duration(terminal):
    with Task("compiling `f`"):
        terminal.wait_for("compiling `f`: 0 s")
        set_stage("XLA")
        terminal.wait_for("compiling `f`: XLA, ")


def test_an_inner_task_adds_its_stage(terminal):
    with Task("sweep of `f`") as sweep:
        sweep.stage = "configuration 1 of 2"
        with Task("planning `f`"):
            set_stage("partitioning")
            terminal.wait_for("sweep of `f`: configuration 1 of 2, partitioning, ")
    set_stage("nothing")  # without a task, it has no effect


def test_the_line_is_removed_and_the_thread_ends(terminal):
    with pytest.raises(ZeroDivisionError), Task("compiling `f`"):
        terminal.wait_for("compiling")
        _ = 1 / 0
    assert progress_threads() == []
    *_, before, last, end = terminal.getvalue().split("\r")
    assert last == " " * len(before) and end == ""


def test_a_long_line_is_cut_to_the_width_of_the_terminal(terminal):
    with Task("compiling `" + "f" * 100 + "`"):
        terminal.wait_for("compiling")
    assert {len(line) for line in terminal.lines()} == {79}


def test_the_duration_stays_in_a_long_line(terminal):
    with Task("compiling `f`"):
        set_stage("s" * 100)
        terminal.wait_for("ss…, 0 s")
    assert max(len(line) for line in terminal.lines()) == 79


def test_minutes_are_shown(terminal, monkeypatch):
    now = time.monotonic
    with Task("compiling `f`"):
        monkeypatch.setattr(progress.time, "monotonic", lambda: now() + 70)
        terminal.wait_for("1 min 1")


def test_short_work_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", SECONDS)
    with Task("compiling `f`"):
        pass
    assert terminal.getvalue() == "" and progress_threads() == []


@pytest.mark.parametrize("is_on", [False, True])
def test_there_is_no_thread_without_a_terminal_or_with_the_setting_off(monkeypatch, immediately, is_on):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO() if is_on else Terminal()))
    with sw.config.override("progress", is_on), Task("compiling `f`"):
        assert progress_threads() == []


def test_one_line_is_shown_at_a_time(terminal):
    def work():
        with Task("compiling `second`"):
            has_started.set()
            may_end.wait(SECONDS)

    has_started, may_end = threading.Event(), threading.Event()
    with Task("compiling `first`"):
        terminal.wait_for("first")
        thread = threading.Thread(target=work)
        thread.start()
        assert has_started.wait(SECONDS)
        time.sleep(0.02)
        assert not any("second" in line for line in terminal.lines())
    terminal.wait_for("second")
    may_end.set()
    thread.join()


def test_a_forked_process_does_not_wait_for_the_thread(terminal, monkeypatch):
    task = Task("compiling `f`")
    with task, monkeypatch.context() as patch:
        patch.setattr(progress.os, "getpid", lambda: -1)  # as in the process that os.fork has created
        task._ticker.stop()
        assert len(progress_threads()) == 1
    assert progress_threads() == []


def test_a_closed_terminal_is_no_error(terminal):
    with Task("compiling `f`"):
        terminal.wait_for("compiling")
        terminal.close()
    assert progress_threads() == []


def test_a_notebook_updates_one_output_of_the_cell(ipython, immediately):
    ipython.kernel = object()
    updates = []
    ipython.display_pub.publish = lambda output, transient, update: updates.append((output, transient, update))
    with Task("compiling `f`"):
        deadline = time.monotonic() + SECONDS
        while len(updates) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    first, second, *_, last = updates
    assert first[0] == {"text/plain": "compiling `f`: 0 s"} and not first[2]
    assert second[2] and last[0] == {"text/plain": ""}
    assert len({transient["display_id"] for _, transient, _ in updates}) == 1


def test_jit_shows_tracing_planning_and_xla(terminal, monkeypatch):
    def wait_in_xla(*args, **keywords):
        terminal.wait_for("compiling `step`: XLA, ")
        return load(*args, **keywords)

    def wait_in_stage(stage):
        set_stage(stage)
        terminal.wait_for(f"compiling `step`: {stage}, ")

    def step(x):
        terminal.wait_for("tracing `step`: ")
        return x + 1

    load = executor.load
    x = jnp.ones(3)
    monkeypatch.setattr(executor, "load", wait_in_xla)
    monkeypatch.setattr(pipeline, "set_stage", wait_in_stage)
    assert sw.jit(step)(x).shape == (3,)
    lines = [line for line in terminal.lines() if line.startswith("compiling `step`: ") and "," in line]
    stages = dict.fromkeys(line.partition(": ")[2].rpartition(", ")[0] for line in lines)
    assert list(stages) == ["simplifying", "choosing layouts", "partitioning", "improving the plan", "lowering", "XLA"]


def test_sweep_counts_its_configurations(terminal):
    def arguments(mesh, rows):
        terminal.wait_for(f"sweep of `sin`: configuration {rows // 8} of 2, ")
        return sw.ShapeDtypeStruct((rows,), jnp.float32)

    sw.sweep(jnp.sin, arguments, hardware="h100", mesh=AbstractMesh((2,), ("x",)), rows=[8, 16])


def test_autoshard_names_the_strategy_and_the_mesh(terminal, monkeypatch):
    def wait_for_stage(stage):
        set_stage(stage)
        terminal.wait_for(f"autoshard of `step`: {stage}")

    def step(w, x):
        return w - x.sum()

    monkeypatch.setattr("shardwise.layout_search.evaluate.set_stage", wait_for_stage)
    sw.autoshard(step, hardware="h100", count=2)(jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert any("FSDP on mesh data=2" in line for line in terminal.lines())

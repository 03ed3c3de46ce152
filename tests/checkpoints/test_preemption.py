"""SIGTERM with any number of managers, which are opened and closed in any order."""

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from tests.checkpoints.test_save_faults import ROOT, TIME_LIMIT


def state(step):
    return {"w": jnp.full(3, step)}


@pytest.fixture
def signals():
    """A handler of the program, and the signals that it got."""
    received = []
    handler = lambda number, frame: received.append(number)  # noqa: E731
    previous = signal.signal(signal.SIGTERM, handler)
    yield handler, received
    signal.signal(signal.SIGTERM, previous)


def send():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("closed", range(4))
def test_managers_are_closed_in_any_order(tmp_path, signals, order, closed):
    handler, received = signals
    managers = [checkpoints.Manager(tmp_path / str(number)) for number in range(3)]
    for number in order[:closed]:
        managers[number].close()
    send()
    assert received == [signal.SIGTERM]  # the program's handler is called once
    for number in order[closed:]:
        managers[number].save(7, state(7))
        assert managers[number].stopping and managers[number].steps() == [7]
    for number in order[:closed]:
        assert not managers[number].stopping
    for number in order[closed:]:
        managers[number].close()
    assert signal.getsignal(signal.SIGTERM) is handler
    send()
    assert len(received) == 2


def test_a_manager_that_is_opened_later_keeps_the_others_notified(tmp_path, signals):
    handler, _ = signals
    first = checkpoints.Manager(tmp_path / "first")
    with checkpoints.Manager(tmp_path / "second"):
        pass
    send()
    with checkpoints.Manager(tmp_path / "third") as third:
        assert third.save(1, state(1)) is None  # it was opened after the signal
    first.save(1, state(1))
    assert first.stopping
    first.close()
    first.close()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_handler_that_the_program_installs_later_stays(tmp_path, signals):
    _, received = signals
    later = []
    first = checkpoints.Manager(tmp_path / "first")
    inner = signal.getsignal(signal.SIGTERM)

    def chained(number, frame):
        later.append(number)
        inner(number, frame)

    signal.signal(signal.SIGTERM, chained)
    second = checkpoints.Manager(tmp_path / "second")
    send()
    for manager in (first, second):
        manager.save(1, state(1))
        assert manager.stopping
        manager.close()
    assert signal.getsignal(signal.SIGTERM) is chained
    assert len(later) == len(received) == 1
    send()
    assert len(later) == len(received) == 2


def test_the_step_is_saved_before_the_exit_of_the_programs_handler(tmp_path):
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
    try:
        with pytest.raises(SystemExit) as exit, checkpoints.Manager(tmp_path) as manager:
            for step in range(10):
                if step == 4:
                    send()
                manager.save(step, state(step))
                if manager.stopping:
                    break
        assert exit.value.code == 3 and manager.steps() == [4]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_manager_may_be_closed_in_another_thread(tmp_path, signals):
    _, received = signals
    manager = checkpoints.Manager(tmp_path)
    thread = threading.Thread(target=manager.close)
    thread.start()
    thread.join()
    send()
    assert received == [signal.SIGTERM]


END = """
import gc, os, signal, sys, threading, time
from shardwise import checkpoints
one, two = (checkpoints.Manager(f"{sys.argv[1]}/{number}", every_steps=1) for number in range(2))
case = sys.argv[2]
if case == "late":  # after the last step
    two.save(1, {"x": 3})
    os.kill(os.getpid(), signal.SIGTERM)
    one.close()
    print("open", flush=True)
    two.close()
if case == "closed":
    one.close()
    two.close()
    print("open", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
if case == "thread":
    for manager in (one, two):
        thread = threading.Thread(target=manager.close)
        thread.start()
        thread.join()
    print("open", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
if case == "dropped":  # without close
    del one, two
    gc.collect()
    print("open", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
if case == "forked":
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"x")
        time.sleep(10)
        os._exit(0)  # SIGTERM had no effect
    os.read(reader, 1)  # Python drops signals that come while it forks
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    one.close()
    two.close()
    print("open", flush=True)
    os.kill(os.getpid(), os.waitstatus_to_exitcode(status) and signal.SIGTERM)
print("alive", flush=True)
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "case",
    ["late", "dropped", "forked", *(pytest.param(case, marks=pytest.mark.slow) for case in ("closed", "thread"))],
)
def test_sigterm_ends_the_process_when_no_manager_is_open(tmp_path, case):
    ended = subprocess.run(
        [sys.executable, "-c", END, str(tmp_path), case],
        stdout=subprocess.PIPE,
        timeout=TIME_LIMIT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == -signal.SIGTERM and ended.stdout == b"open\n"
    if case == "late":
        assert checkpoints.restore(tmp_path / "1" / "step-1") == {"x": 3}

"""SharedExecutables: which process compiles, and what the others do when it fails. Processes are threads here.

Real processes run it in `tests/multi_process/test_programs.py`.
"""

import json
import logging
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from shardwise import monitoring
from shardwise.base._jaxlib import RuntimeFailure
from shardwise.base.config import config
from shardwise.runtime import shared_executables
from shardwise.runtime.shared_executables import COMPILED, RECEIVED, SharedExecutables

MACHINE = {"versions": "1", "processor": "arm"}
WAIT = 60.0


class Store:
    """A key-value store like XLA's, in this process."""

    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            if key in self.values and not allow_overwrite:
                raise RuntimeFailure("ALREADY_EXISTS")
            self.values[key] = value
            self._changed.notify_all()

    def key_value_try_get(self, key):
        return self.blocking_key_value_get(key, 0)

    def blocking_key_value_get(self, key, milliseconds):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeFailure("DEADLINE_EXCEEDED")
            return self.values[key]


class Program(str):
    """An executable, whose bytes are those of the string."""

    def serialize(self):
        return self.encode()


class Unserializable(str):
    """An executable of a platform that cannot serialize."""

    def serialize(self):
        raise RuntimeFailure("UNIMPLEMENTED")


def load_program(blob):
    return Program(blob.decode())


class Process:
    """A process that shares executables."""

    def __init__(self, rank, store, **machine):
        member = SimpleNamespace(rank=rank, failures={}, is_closed=False, local_host="127.0.0.1")
        self.member = member
        self.shared = SharedExecutables(member, lambda: store)
        self.machine = {**MACHINE, **machine}
        self.compiled = []

    def compile(self):
        self.compiled.append("compiled")
        return Program("program")

    def get(self, key="key", ranks=(0, 1, 2), load=load_program, compile=None):
        counted = partial(self.shared.count_compilation, compile or self.compile)
        return self.shared.load_or_compile(key, self.machine, ranks, counted, load)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(shared_executables, "_POLL_MILLISECONDS", 20)
    store = Store()
    processes = [Process(rank, store) for rank in range(3)]
    yield processes
    for process in processes:
        process.shared.close()


@pytest.fixture
def events():
    seen = []
    listener = lambda event, *_, **metadata: seen.append(event)  # noqa: E731
    monitoring.register_event_listener(listener)
    monitoring.register_event_duration_secs_listener(listener)
    yield seen
    monitoring.unregister_event_listener(listener)
    monitoring.unregister_event_duration_listener(listener)


def wait_until_all_have_the_bytes(processes):
    """Wait until the server of an executable knows that the last process has received it. Return the server."""
    (server,) = [each.shared._server for each in processes if each.shared._server]
    deadline = time.monotonic() + WAIT
    while server.nbytes and time.monotonic() < deadline:
        time.sleep(0.01)
    return server


def test_one_process_compiles_and_the_others_load(processes, events):
    results = []
    threads = [threading.Thread(target=lambda each=each: results.append(each.get())) for each in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert results == ["program"] * 3
    assert sum(len(each.compiled) for each in processes) == 1
    assert sorted(events) == [COMPILED, RECEIVED, RECEIVED]
    server = wait_until_all_have_the_bytes(processes)
    assert server.nbytes == 0


def test_a_process_that_comes_alone_waits_for_nobody(processes):
    assert processes[2].get("one") == "program"
    assert processes[2].get("two") == "program"
    assert processes[0].get("two") == "program"
    assert processes[0].compiled == []


def test_the_next_process_compiles_when_the_first_one_fails(processes):
    first, second, third = processes
    claimed, release = threading.Event(), threading.Event()

    def dies():
        claimed.set()
        release.wait(WAIT)
        return Program("late")

    lost = threading.Thread(target=lambda: first.get(compile=dies))
    lost.start()
    claimed.wait(WAIT)
    waiting = threading.Thread(target=second.get)
    waiting.start()
    second.member.failures[0] = third.member.failures[0] = "killed"
    waiting.join(WAIT)
    assert second.compiled == ["compiled"]
    assert third.get() == "program"
    assert third.compiled == []
    release.set()
    lost.join(WAIT)


def test_an_error_of_the_compiler_is_raised_in_every_process(processes):
    def fails():
        raise RuntimeFailure("RESOURCE_EXHAUSTED")

    for process in processes:
        with pytest.raises(RuntimeFailure, match="RESOURCE_EXHAUSTED"):
            process.get(compile=fails)


def test_an_executable_that_cannot_be_serialized_is_compiled_by_all(processes):
    compiled = []
    compile = lambda: compiled.append("compiled") or Unserializable("program")  # noqa: E731
    assert [process.get(compile=compile) for process in processes] == ["program"] * 3
    assert len(compiled) == 3


def test_an_executable_that_cannot_be_loaded_is_compiled_again(processes, caplog):
    def fails(blob):
        raise RuntimeFailure("another version")

    processes[0].get()
    assert processes[1].get(load=fails) == "program"
    assert "process 1 compiles a program that process 0 has compiled already" in caplog.text


def test_the_same_program_is_compiled_again_after_the_caches_are_cleared(processes, caplog):
    assert [process.get() for process in processes] == ["program"] * 3
    wait_until_all_have_the_bytes(processes)
    assert [process.get() for process in processes] == ["program"] * 3
    assert [len(process.compiled) for process in processes] == [2, 1, 1]
    assert not caplog.text


def test_a_process_does_not_wait_longer_than_the_setting(processes, caplog):
    claimed, release = threading.Event(), threading.Event()

    def compile_slowly():
        claimed.set()
        release.wait(WAIT)
        return Program("late")

    slow = threading.Thread(target=lambda: processes[0].get(compile=compile_slowly))
    slow.start()
    claimed.wait(WAIT)
    config.update("share_binary_between_hosts_timeout_ms", 50)
    try:
        assert processes[1].get() == "program"
    finally:
        config.update("share_binary_between_hosts_timeout_ms", 1_200_000)
        release.set()
        slow.join(WAIT)
    assert "for process 0 to compile a program, and compiles it too" in caplog.text


def test_a_process_on_another_machine_says_that_it_compiles_itself(processes, caplog):
    other = Process(3, processes[0].shared._store(), processor="x86")
    with caplog.at_level(logging.WARNING):
        processes[0].get("arm key")
        processes[1].get("arm key")
        assert not caplog.text
        assert other.get("x86 key") == "program"
    assert other.compiled == ["compiled"]
    assert "process 3 loads no executables of process 0, because their processor differ: x86 and arm" in caplog.text


def test_a_lost_store_is_no_obstacle(processes):
    def lost():
        raise RuntimeFailure("the coordinator is lost")

    alone = SharedExecutables(processes[0].member, lost)
    assert alone.load_or_compile("key", MACHINE, (0, 1), processes[0].compile, load_program) == "program"


def test_offers_have_digests(processes):
    processes[0].get()
    store = processes[0].shared._store()
    (offer,) = [json.loads(value) for key, value in store.values.items() if key.endswith("/offer")]
    assert offer["nbytes"] == len("program") and len(offer["digest"]) == 64

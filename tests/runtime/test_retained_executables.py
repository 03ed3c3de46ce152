"""RetainedExecutables: executables are loaded again, and offered to newcomers. Processes are objects here."""

from types import SimpleNamespace

import pytest

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.errors import PeerFailure
from shardwise.runtime import retained_executables
from shardwise.runtime.retained_executables import RetainedExecutables
from tests.runtime.test_shared_executables import Program, Store, Unserializable, load_program


@pytest.fixture
def processes():
    made = [RetainedExecutables() for _ in range(3)]
    yield made
    for each in made:
        each.disconnect()


def connect(process, rank, store, newcomers, count=3, failure=None):
    member = SimpleNamespace(rank=rank, num_processes=count, local_host="127.0.0.1", error=lambda *_: failure)
    process.connect(member, store, newcomers)


def refuse():
    raise AssertionError("compiled again")


def test_an_executable_is_compiled_once(processes):
    process = processes[0]
    assert process.load_or_compile("key", load_program, lambda: Program("one")) == "one"
    assert process.load_or_compile("key", load_program, refuse) == "one"
    assert process.load_or_compile("other", load_program, lambda: Program("two")) == "two"


def test_newcomers_load_the_executables_of_the_others(processes):
    old, other, new = processes
    for process in (old, other):
        process.load_or_compile("key", load_program, lambda: Program("one"))
    store = Store()
    for rank, process in enumerate(processes):
        connect(process, rank, store, {2})
    assert new.load_or_compile("key", load_program, refuse) == "one"
    assert new.load_or_compile("absent", load_program, lambda: Program("two")) == "two"
    old.disconnect()
    assert new.load_or_compile("key", load_program, refuse) == "one"


def test_executables_that_cannot_be_serialized_or_loaded_are_compiled(processes):
    process = processes[0]
    for _ in range(2):
        assert process.load_or_compile("key", load_program, lambda: Unserializable("one")) == "one"

    def fail(blob):
        raise RuntimeFailure("INVALID_ARGUMENT")

    process.load_or_compile("damaged", load_program, lambda: Program("two"))
    assert process.load_or_compile("damaged", fail, lambda: Program("three")) == "three"
    assert process.load_or_compile("damaged", load_program, refuse) == "three"


def test_an_executable_that_does_not_arrive_is_compiled_unless_the_generation_has_failed(
    processes, caplog, monkeypatch
):
    monkeypatch.setattr(retained_executables, "_NOTICE_TIME", 0.0)
    old, _, new = processes
    old.load_or_compile("key", load_program, lambda: Program("one"))
    store = Store()
    connect(old, 0, store, {1}, 2)
    connect(new, 1, store, {1}, 2, PeerFailure(0, None, "killed"))
    old.disconnect()
    with pytest.raises(PeerFailure, match="killed"):
        new.load_or_compile("key", load_program, refuse)
    connect(new, 1, store, {1}, 2)
    assert new.load_or_compile("key", load_program, lambda: Program("two")) == "two"
    assert "has not arrived" in caplog.text


def test_the_bytes_are_bounded(processes, monkeypatch):
    monkeypatch.setattr(retained_executables, "_KEEP", 8)
    process = processes[0]
    for key in "abc":
        process.load_or_compile(key, load_program, lambda: Program("1234"))
    process.load_or_compile("c", load_program, refuse)
    assert process.load_or_compile("a", load_program, lambda: Program("5")) == "5"

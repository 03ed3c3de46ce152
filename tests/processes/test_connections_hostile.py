"""Hostile bytes on the coordinator's port and from the coordinator: one connection ends, and nothing else."""

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict

import pytest

from shardwise.errors import RendezvousError
from shardwise.processes import connections
from shardwise.processes import coordinator as coordinator_module
from shardwise.processes.coordinator import listen
from shardwise.processes.member import Member
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Answer,
    CallbacksEnded,
    Comparison,
    Equal,
    Failed,
    Hello,
    Leave,
    Progress,
    Request,
    Suspicion,
    Welcome,
    encode,
    split_address,
)
from tests.process_faults.groups import ROOT
from tests.processes import protocol_fuzz
from tests.processes.members import WAIT, coordinator, join, leave_all, member, wait_until

pytestmark = pytest.mark.faults

HELLO = Hello("secret", PROTOCOL_VERSION, 1, 2, "host", 1, {})


def changed(message, **fields):
    """Return the line of a message with other fields."""
    return json.dumps({"type": type(message).__name__, **asdict(message), **fields}).encode() + b"\n"


def send(server, data):
    """Send bytes as a stranger, and wait until the coordinator closes the connection."""
    with socket.create_connection(split_address(server.address)) as stranger:
        stranger.settimeout(WAIT)
        with suppress(ConnectionError):
            stranger.sendall(data)
            while stranger.recv(1 << 16):
                pass


@pytest.mark.parametrize(
    "line",
    [
        changed(HELLO, token="\ud800"),
        changed(HELLO, token="secret\udfff"),
        changed(HELLO, rank=10**30),
        changed(HELLO, rank=True),
        changed(HELLO, protocol=float("nan")),
        changed(HELLO, requirements={"a": ["b"]}),
        changed(HELLO, requirements=[["a", "b"]]),
        changed(HELLO, host="h" * 5000),
        b'{"type": "Hello", "token": ' + b'{"a":' * 9000 + b"\n",
        b"9" * 5000 + b"\n",
        b'"\xff\xfe\x00"\n',
        '{"type": "Goodbye"}\n'.encode("utf-16"),
        encode(Progress(1)),
        encode(Answer(0, "nobody asked")),
    ],
)
def test_no_first_line_ends_the_coordinator(line):
    with coordinator(2, token="secret") as server:
        send(server, line)
        leave_all(join(server, [0, 1], token="secret"))
        assert server.wait(WAIT)
        assert not server.failures


@contextmanager
def job_with_hostile_member():
    """A job of three processes, and the connection of the last one, which sends what the test likes."""
    with coordinator(3) as server:
        with socket.create_connection(split_address(server.address)) as hostile:
            hostile.settimeout(WAIT)
            hostile.sendall(encode(Hello("", PROTOCOL_VERSION, 2, 3, "host", 1, {})))
            members = join(server, [0, 1], num_processes=3)
            yield server, members, hostile
        for one in members:
            assert not one.is_closed
            one.report_step(7)
            wait_until(lambda one=one: server.steps()[one.rank] == 7)
        leave_all(members)
        assert server.failures.keys() <= {2}


COMPARISON = Comparison("1,2", 1, 0, 0, 7, "f")
SUSPICION = Suspicion("0,1,2", "waited", False, "launch")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (changed(Progress(1), launches={"1,2": ["x"]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"1,2": [1, 2]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"1,2": [1, True, 2]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"1,2": [1, 2, 10**30]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"": [1, 2, 3]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"2,1": [1, 2, 3]}), "wrong fields of Progress"),
        (changed(Progress(1), launches={"٣": [1, 2, 3]}), "wrong fields of Progress"),
        (changed(Progress(1), launches=[["1,2", 1]]), "wrong fields of Progress"),
        (changed(Leave(), launches={"0,99": [1, 2, 3]}), "is not in the set of processes '0,99'"),
        (changed(COMPARISON, processes="2,99"), "is not in the set of processes '2,99'"),
        (changed(COMPARISON, processes="0,1"), "is not in the set of processes '0,1'"),
        (changed(COMPARISON, processes=",".join(map(str, range(30_000)))), "wrong fields of Comparison"),
        (changed(COMPARISON, name="f" * 5000), "wrong fields of Comparison"),
        (changed(SUSPICION, awaited="nothing"), "wrong fields of Suspicion"),
        (changed(SUSPICION, processes="x"), "wrong fields of Suspicion"),
        (changed(SUSPICION, lost=1), "wrong fields of Suspicion"),
        (encode(Welcome(1)), "Welcome from a member"),
        (encode(Hello("", PROTOCOL_VERSION, 0, 3, "host", 1, {})), "Hello from a member"),
        (b"garbage\n", "not a JSON object"),
    ],
)
def test_a_member_that_breaks_the_protocol_is_dropped_and_named(line, reason):
    with job_with_hostile_member() as (server, members, hostile):
        hostile.sendall(line)
        for one in members:
            wait_until(lambda one=one: one.failures)
            error = one.error("0,1,2", range(3))
            assert error.rank == 2
            assert "the coordinator dropped its connection" in error.reason
            assert reason in error.reason
        assert [event.rank for event in server.events if event.kind == "refused"] == [2]


@pytest.mark.parametrize(
    "messages",
    [
        [Answer(1, "nobody asked"), Answer(2**63, "nobody asked")],
        [Suspicion("2", "waited for itself", True, "message"), Suspicion("99", "waited", False, "end")],
        [Failed("\ud800", "\udfff"), Progress(1), Failed("", ""), Leave(), Leave(), COMPARISON],
        [CallbacksEnded("1,2", number, None, "reason", "traceback") for number in range(300)],
        [Progress(2**64 - 1, {"2": [2**63, 0, 0]}, True), Leave({"2": [1, 1, 1]})],
    ],
    ids=lambda messages: type(messages[0]).__name__,
)
def test_valid_messages_in_any_order_harm_nobody_else(messages, caplog):
    with job_with_hostile_member() as (_, members, hostile):
        hostile.sendall(b"".join(map(encode, messages)))
        members[0].report_step(3)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_the_process_sets_of_a_member_are_bounded(monkeypatch):
    monkeypatch.setattr(coordinator_module, "_MOST_SETS", 2)
    with job_with_hostile_member() as (_, members, hostile):
        for processes in ("0,2", "1,2", "2", "0,1,2"):
            hostile.sendall(encode(Progress(1, {processes: [0, 0, 0]})))
        wait_until(lambda: members[0].failures)
        assert "uses more than 2 sets of processes" in members[0].failures[2].reason


def test_the_inquiries_of_a_member_are_bounded():
    with job_with_hostile_member() as (server, members, hostile):
        server._ask = lambda *_: None  # no question is answered
        for _ in range(coordinator_module._MOST_INQUIRIES + 1):
            hostile.sendall(encode(SUSPICION))
        wait_until(lambda: members[0].failures)
        assert "inquiries at the same time" in members[0].failures[2].reason


def test_an_unexpected_exception_ends_only_its_connection(monkeypatch, caplog):
    with job_with_hostile_member() as (server, members, hostile):

        def fail(*_):
            raise ZeroDivisionError("a defect of the coordinator")

        monkeypatch.setattr(server._comparison, "receive_comparison", fail)
        hostile.sendall(encode(COMPARISON))
        wait_until(lambda: members[0].failures)
        assert "ZeroDivisionError('a defect of the coordinator')" in members[0].failures[2].reason
    assert "The coordinator cannot handle a message" in caplog.text


@contextmanager
def malformed_coordinator(*data):
    """A server that answers each message of its first connection with the next of these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(WAIT)
                for each in data:
                    connection.recv(1 << 16)
                    connection.sendall(each)
                with suppress(OSError):
                    while connection.recv(1 << 16):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        thread.join(WAIT)


HOSTILE_LINES = [
    b"\xff\xfe\n",
    b"[" * 20_000 + b"\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b'{"type": "Equal", "processes": "0,1", "number": 1.5}\n',
    b'{"type": "Failure", "rank": "x", "step": null, "reason": "", "detail": ""}\n',
]


@pytest.mark.parametrize("line", [*HOSTILE_LINES, encode(Equal("0,1", 1)), encode(Welcome(2**40))])
def test_a_malformed_answer_to_hello_is_an_error(line):
    with malformed_coordinator(line) as address, pytest.raises(RendezvousError, match=r"listens on|not Welcome"):
        Member(*address, 0, 2, "", {}, WAIT)


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_a_malformed_message_of_the_coordinator_ends_every_wait(line):
    with malformed_coordinator(encode(Welcome(0)), line) as address:
        one = Member(*address, 0, 2, "", {}, WAIT)
        assert not one.compare(Comparison("0,1", 1, 0, 0, 7, "f"), {0, 1}, WAIT)
        error = one.error("0,1", {0, 1})
        assert error.rank == -1
        assert "does not follow the protocol" in error.reason
        one.close()


def test_a_question_that_cannot_be_answered_does_not_end_the_heartbeats(caplog):
    with coordinator(2) as server:
        first, second = join(server, [0, 1])
        second.answers["stack"] = lambda detail: int("not a number")
        assert first.ask_for_failure("0,1", "waited").rank == 1
        second.report_step(9)
        wait_until(lambda: server.steps()[1] == 9)
        assert "has no answer" in caplog.text
        for one in (first, second):
            one.close()


def test_questions_of_unknown_kinds_are_answered():
    with malformed_coordinator(encode(Welcome(0)) + encode(Request(1, "weather", "\ud800"))) as address:
        one = Member(*address, 0, 2, "", {}, WAIT)
        one.send_progress()
        assert not one.is_closed
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "count"), [("free", 600), ("full", 300)])
def test_members_join_during_a_flood_of_connections(mode, count):
    """Silent connections to a process that may open 64 files; with `full`, none of these is free for a while."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.processes.flood_worker", mode, str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    )
    outcome = json.loads(ran.stdout)
    assert outcome["errors"] == []
    assert outcome["failures"] == 0
    assert outcome["opened"] == count
    assert outcome["busy"] < 0.5  # seconds of processor time in one second: the loop does not spin
    assert 10 < ran.stderr.count("The coordinator") < 40  # not one line for each connection


def test_the_oldest_strangers_make_room_for_newcomers(monkeypatch):
    monkeypatch.setattr(connections, "_MOST_STRANGERS", 3)
    with coordinator(2) as server:
        strangers = [socket.create_connection(split_address(server.address)) for _ in range(20)]
        wait_until(lambda: sum(event.kind == "refused" for event in server.events) == 17)
        leave_all(join(server, [0, 1]))
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
def test_errors_of_accept_end_nothing(number):
    class Listener:
        """A listener whose first three connections cannot be accepted."""

        def __init__(self, listener):
            self._listener = listener
            self.errors = 3

        def accept(self):
            if self.errors:
                self.errors -= 1
                raise OSError(number, os.strerror(number))
            return self._listener.accept()

        def __getattr__(self, name):
            return getattr(self._listener, name)

    with coordinator(2, listener=Listener(listen("127.0.0.1", 0))) as server:
        leave_all(join(server, [0, 1]))
        assert not server.failures


def test_a_member_that_is_turned_away_tries_again():
    refusals = []
    with coordinator(1) as server:
        receive = server._connections._receive

        def turn_away_once(connection, message):
            if not refusals:
                refusals.append(connection)
                server._connections._turn_away(connection, "busy")
            else:
                receive(connection, message)

        server._connections._receive = turn_away_once
        leave_all([member(server, 0, num_processes=1)])
    assert len(refusals) == 1


def test_too_few_descriptors_for_the_members_are_an_error(monkeypatch):
    limits = (100, 100)
    monkeypatch.setattr("shardwise.processes.connections.resource.getrlimit", lambda _: limits)
    with pytest.raises(OSError, match=r"the coordinator of 1000 processes needs \d+ open files, and the limit is 100"):
        coordinator_module.Coordinator(1000, starts_engine=False).start()


def test_a_slice_of_the_fuzz():
    report = protocol_fuzz.run(messages=600, seed=7)
    assert report.jobs >= 2
    assert report.before > 100
    assert report.after > 100

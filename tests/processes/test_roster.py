"""The roster: processes wait for their places, and ask whether there is room for more."""

import socket
import threading
import time

import pytest

from shardwise.errors import RendezvousError
from shardwise.processes import roster as roster_module
from shardwise.processes.connections import Connection, Connections
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Assignment,
    Refused,
    RoomQuery,
    Waiting,
    decode,
    split_address,
)
from shardwise.processes.roster import Roster, has_room, wait_for_place

LIMIT = 60.0
PLACE = Assignment(0, 1, 3, "127.0.0.1:1", "token", "", "")


@pytest.fixture
def roster():
    server = Roster(4)
    yield server
    server.stop()


def message(roster, process=5, **fields):
    return Waiting(
        **{"token": roster.token, "protocol": PROTOCOL_VERSION, "process": process, "generation": -1} | fields
    )


def wait_until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_processes_get_their_places(roster):
    places = {}

    def wait(process):
        waiting = message(roster, process, step=7, reason="a failure")
        places[process] = wait_for_place(roster.address, waiting)

    threads = [threading.Thread(target=wait, args=(process,), daemon=True) for process in (3, 5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sorted(roster.waiting()) == [3, 5])
    assert roster.waiting()[5].step == 7 and roster.waiting()[3].reason == "a failure"
    roster.assign(5, PLACE)
    assert sorted(roster.waiting()) == [3]
    threads[1].join(LIMIT)
    roster.assign(3, PLACE)
    threads[0].join(LIMIT)
    assert places == {3: PLACE, 5: PLACE}


def test_a_process_that_disconnects_waits_no_longer(roster):
    with socket.create_connection(split_address(roster.address)) as connection:
        connection.sendall(roster_module.encode(message(roster, step=None, reason="")))
        wait_until(lambda: list(roster.waiting()) == [5])
    wait_until(lambda: not roster.waiting())
    roster.assign(5, PLACE)  # for nobody


def test_strangers_are_dropped(roster, caplog):
    for token, protocol in (("other", PROTOCOL_VERSION), (roster.token, 0)):
        with socket.create_connection(split_address(roster.address)) as connection:
            waiting = message(roster, step=None, reason="", token=token, protocol=protocol)
            connection.sendall(roster_module.encode(waiting))
            assert isinstance(decode(connection.makefile("rb").readline()), Refused)
            assert connection.recv(1) == b""
    assert not roster.waiting()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"token": "other"}, "the token is not that of the launcher"), ({"protocol": 0}, "versions of Shardwise differ")],
)
def test_a_process_that_is_refused_raises_an_error(roster, fields, reason):
    with pytest.raises(RendezvousError, match=f"refuses this process: .*{reason}"):
        wait_for_place(roster.address, message(roster, step=None, reason="", **fields))
    with pytest.raises(RendezvousError, match=f"refuses this process: .*{reason}"):
        has_room(
            roster.address, RoomQuery(**{"token": roster.token, "protocol": PROTOCOL_VERSION} | fields, generation=0)
        )


def test_the_server_waits_again_after_it_was_woken():
    listener = socket.create_server(("127.0.0.1", 0))
    connections = Connections(listener, 1, Connection, lambda *_: None, lambda *_: None, lambda *_: None)
    try:
        for _ in range(2):
            connections.wake()
            connections.serve_once()
            assert not connections._selector.select(0)
    finally:
        connections.close_all()


def test_room_is_asked_for(roster):
    query = RoomQuery(roster.token, PROTOCOL_VERSION, 0)
    assert not has_room(roster.address, query)
    roster.has_room = True
    assert has_room(roster.address, query)


def test_a_roster_that_has_ended_is_an_error(roster, monkeypatch):
    roster.stop()
    monkeypatch.setattr(roster_module, "_RETRY_TIME", 0.2)
    with pytest.raises(RendezvousError, match="cannot be reached: has the launcher ended"):
        wait_for_place(roster.address, message(roster, step=None, reason=""))


def test_a_roster_that_does_not_answer_has_no_room(monkeypatch, caplog):
    """As that of a stopped launcher: the kernel accepts the connection."""
    monkeypatch.setattr(roster_module, "_ROOM_TIME", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not has_room(address, RoomQuery("token", PROTOCOL_VERSION, 0))
    assert "has not answered" in caplog.text

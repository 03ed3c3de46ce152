"""CallServer: requests and answers, strangers, and bytes that are not a request."""

import socket
from contextlib import suppress

import pytest

from shardwise.processes.call_server import CallServer, call, local_host_for
from shardwise.processes.protocol import split_address


def answer(request):
    return {"sum": sum(request["numbers"])}


@pytest.fixture
def server():
    server = CallServer("127.0.0.1", 0, answer)
    yield server
    server.close()


def test_a_request_has_an_answer(server):
    assert call(server.ticket, {"numbers": [1, 2, 3]}, 10) == {"sum": 6}
    assert local_host_for(server.ticket, 10) == "127.0.0.1"


def test_strangers_and_bad_requests_get_no_answer(server):
    address = server.ticket.partition("/")[0]
    for ticket, request in [
        (f"{address}/{'00' * 16}", {"numbers": [1]}),
        (server.ticket, {"letters": []}),
        (server.ticket, {"numbers": ["a"]}),
    ]:
        with pytest.raises(OSError, match=r"closed|reset"):
            call(ticket, request, 10)
    secret = bytes.fromhex(server.ticket.partition("/")[2])
    nested = secret + b"\0\1\0\0" + b"[" * (1 << 16)
    for data in (
        b"",
        b"x",
        secret,
        secret + b"\xff\xff\xff\xff",
        secret + b"\0\0\0\x02[]",
        secret + b"\0\0\0\x01{",
        nested,
    ):
        with socket.create_connection(split_address(address), timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert call(server.ticket, {"numbers": [4]}, 10) == {"sum": 4}


def test_tickets_and_servers_that_are_not_there(server):
    with pytest.raises(ValueError, match="the address of a ticket must be host:port"):
        call("nowhere", {}, 1)
    server.close()
    with pytest.raises(OSError, match="refused"):
        call(server.ticket, {"numbers": []}, 10)

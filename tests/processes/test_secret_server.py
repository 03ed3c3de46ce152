"""SecretServer: slow strangers take no place from processes with the secret, nor do too many open files end it."""

import errno
import socket
import threading
import time
from contextlib import ExitStack, suppress

from shardwise.processes import secret_server
from shardwise.processes.protocol import split_address
from shardwise.processes.secret_server import SecretServer, receive

LIMIT = 60.0


def test_a_server_that_cannot_accept_tries_again(monkeypatch, caplog):
    accept, failures = socket.socket.accept, []

    def fail_once(listener):
        connection, address = accept(listener)
        if not failures:
            failures.append(address)
            connection.close()
            raise OSError(errno.EMFILE, "Too many open files")
        return connection, address

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    monkeypatch.setattr(secret_server, "_PAUSE", 0.0)
    server = SecretServer("127.0.0.1", 0, LIMIT, lambda connection: connection.sendall(b"y"), "test call")
    try:
        with socket.create_connection(split_address(server.address), timeout=LIMIT) as lost:
            assert lost.recv(1) == b""
        with socket.create_connection(split_address(server.address), timeout=LIMIT) as connection:
            connection.sendall(server.secret)
            assert receive(connection, 1) == b"y"
        assert "the server of test calls cannot accept a connection, and tries again" in caplog.text
    finally:
        server.close()


def test_a_closed_server_has_no_thread():
    server = SecretServer("127.0.0.1", 0, LIMIT, lambda connection: None, "test call")
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "test calls")
    server.close()
    thread.join(LIMIT)
    assert not thread.is_alive()


def connect(server):
    return socket.create_connection(split_address(server.address), timeout=LIMIT / 2)


def is_closed(connection):
    """Wait until the server closes a connection, and return True."""
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_slow_strangers_take_no_place(monkeypatch):
    monkeypatch.setattr(secret_server, "_MOST_STRANGERS", 4)
    server = SecretServer("127.0.0.1", 0, LIMIT, lambda connection: connection.sendall(b"y"), "test call")
    with ExitStack() as stack:
        stack.callback(server.close)
        strangers = [stack.enter_context(connect(server)) for _ in range(6)]
        for stranger in strangers[2:]:
            stranger.sendall(b"x")
        assert is_closed(strangers[0]) and is_closed(strangers[1])
        for _ in range(3):
            with connect(server) as connection:
                connection.sendall(server.secret)
                assert receive(connection, 1) == b"y"


def test_a_stranger_that_sends_slowly_is_closed(monkeypatch):
    monkeypatch.setattr(secret_server, "_SECRET_TIME", 0.1)
    server = SecretServer("127.0.0.1", 0, LIMIT, lambda connection: connection.sendall(b"y"), "test call")
    try:
        with connect(server) as stranger:
            with suppress(ConnectionError):
                for byte in server.secret[:-1]:
                    stranger.sendall(bytes([byte]))
                    time.sleep(0.02)
            assert is_closed(stranger)
    finally:
        server.close()

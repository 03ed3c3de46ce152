"""SecretServer: it accepts connections again after the process had too many open files."""

import errno
import socket
import threading

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

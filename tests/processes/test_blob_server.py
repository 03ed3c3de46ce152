"""BlobServer: transfers, secrets, digests, and the memory of blobs that nobody needs any more."""

import socket
import time
from dataclasses import replace

import pytest

from shardwise.processes import blob_server
from shardwise.processes.blob_server import BlobServer, fetch
from shardwise.processes.protocol import split_address

HOST = "127.0.0.1"


@pytest.fixture
def server():
    server = BlobServer(HOST, limit=10_000)
    yield server
    server.close()


def test_receivers_get_the_bytes_and_the_last_one_frees_them(server):
    data = bytes(range(256)) * 20
    offer = server.offer("program", data, {1, 2})
    assert fetch(offer, "program", 1) == data
    assert server.nbytes == len(data)
    assert fetch(offer, "program", 2) == data
    deadline = time.monotonic() + 60
    while server.nbytes and time.monotonic() < deadline:  # until the server knows that the last one has the bytes
        time.sleep(0.01)
    with pytest.raises(FileNotFoundError, match="does not have program any more"):
        fetch(offer, "program", 2)
    assert server.nbytes == 0


def test_the_oldest_blobs_are_dropped_above_the_limit(server):
    first = server.offer("first", b"a" * 6000, {1})
    second = server.offer("second", b"b" * 6000, {1})
    with pytest.raises(FileNotFoundError):
        fetch(first, "first", 1)
    assert fetch(second, "second", 1) == b"b" * 6000


def test_other_bytes_than_described_are_an_error(server):
    offer = server.offer("program", b"abc", {1, 2})
    with pytest.raises(OSError, match="has 3 bytes, not 4"):
        fetch(replace(offer, nbytes=4), "program", 1)
    with pytest.raises(OSError, match="another digest"):
        fetch(replace(offer, digest="0" * 64), "program", 1)


def test_strangers_get_nothing(server):
    offer = server.offer("program", b"abc", {1})
    with pytest.raises(ConnectionResetError):
        fetch(replace(offer, secret="00" * 16), "program", 1)
    with socket.create_connection(split_address(offer.address), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        assert stranger.recv(100) == b""
    assert fetch(offer, "program", 1) == b"abc"


def test_a_closed_server_refuses_connections(server):
    offer = server.offer("program", b"abc", {1})
    server.close()
    with pytest.raises(OSError):
        fetch(offer, "program", 1)


@pytest.mark.slow
def test_a_slow_receiver_gets_all_bytes(monkeypatch):
    """The receiver takes longer than a connection may be silent, and is never silent for as long."""
    monkeypatch.setattr(blob_server, "_SILENCE", 3.0)
    server = BlobServer(HOST, 1 << 30)
    data = bytes(1 << 26)
    offer = server.offer("program", data, {1})
    receive = blob_server.receive

    def receive_slowly(connection, nbytes):
        received = bytearray()
        while len(received) < nbytes:
            received += receive(connection, min(1 << 23, nbytes - len(received)))
            time.sleep(0.75 if nbytes == len(data) else 0)
        return received

    monkeypatch.setattr(blob_server, "receive", receive_slowly)
    try:
        assert fetch(offer, "program", 1) == data
    finally:
        server.close()

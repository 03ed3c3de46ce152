"""Channels: connections between processes over which threads send arrays of bytes, beside the program.

Messages have tags. A sender never waits for a receiver: a thread per peer sends, another one receives into memory until
`take` asks for the tag. So the order of messages cannot deadlock.

Processes know each other's addresses and a common secret, with which each connection starts; others are dropped.
"""

import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, final

import numpy as np

from shardwise.errors import PeerFailure
from shardwise.processes.member import Member

_GREETING = struct.Struct("!I")  # the rank of the process that connects, after the secret
_HEADER = struct.Struct("!HQ")  # the lengths of the tag and of the bytes
_RETRY_INTERVAL = 0.05  # seconds between attempts to connect

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@final
class _Peer:
    """A connected process: its socket, the queue of its sender thread, and the messages that have arrived."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.outgoing: SimpleQueue[tuple[str, Callable[[], Bytes]] | None] = SimpleQueue()
        self.arrived: dict[str, Bytes] = {}
        self.error = ""  # why the connection is lost
        self._threads = 2  # that use the connection
        self._lock = threading.Lock()

    def leave(self) -> None:
        """Close the connection if the calling thread is the last one that uses it."""
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self.connection.close()


@final
class Channels:
    """Connections to other processes.

    Use: `address` of each process is sent to all others, then each calls `connect`.

    Args:
        member: this process's connection to the coordinator, which detects failures.
        timeout: the longest time to wait for another process, in seconds.
    """

    def __init__(self, member: Member, timeout: float):
        self._member = member
        self._secret = b""
        self._timeout = timeout
        self._peers: dict[int, _Peer] = {}
        self._listener = socket.create_server((member.local_host, 0), family=_family(member.local_host))

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port on which this process listens."""
        host, port, *_ = self._listener.getsockname()
        return host, port

    def connect(self, addresses: Mapping[int, tuple[str, int]], secret: bytes) -> None:
        """Connect to other processes. All of them call this.

        Args:
            addresses: the address of each process; this process is ignored.
            secret: bytes that only these processes know.

        Raises:
            PeerFailure: if a process does not connect in time.
        """
        self._secret = secret
        own, deadline = self._member.rank, time.monotonic() + self._timeout
        for rank in sorted(rank for rank in addresses if rank < own):
            connection = socket.create_connection(addresses[rank], timeout=self._timeout)
            connection.sendall(self._secret + _GREETING.pack(own))
            self._add(rank, connection)
        expected = {rank for rank in addresses if rank > own}
        while not expected <= self._peers.keys():
            if (failure := self._member.error("", expected)) is not None:
                raise failure
            if time.monotonic() > deadline:
                missing = sorted(expected - self._peers.keys())
                raise self._find_failure(missing, f"waited {self._timeout:.0f} s for a connection")
            self._accept(expected)
        self._listener.close()

    def _accept(self, expected: Collection[int]) -> None:
        """Accept a connection, and drop it unless it starts with the secret and the rank of an expected process."""
        self._listener.settimeout(_RETRY_INTERVAL)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return
        connection.settimeout(1.0)
        greeting = np.empty(len(self._secret) + _GREETING.size, np.uint8)
        with suppress(OSError):
            _receive_into(connection, greeting)
            (rank,) = _GREETING.unpack(greeting[len(self._secret) :].tobytes())
            is_secret = hmac.compare_digest(greeting[: len(self._secret)].tobytes(), self._secret)
            if is_secret and rank in expected and rank not in self._peers:
                self._add(rank, connection)
                return
        connection.close()

    def _add(self, rank: int, connection: socket.socket) -> None:
        peer = self._peers[rank] = _Peer(connection)
        for role in (self._send, self._receive):
            name = f"shardwise channel {rank}"
            threading.Thread(target=self._run, args=(role, peer), name=name, daemon=True).start()

    def _run(self, role: Callable[[_Peer], None], peer: _Peer) -> None:
        """Send or receive until the connection ends. The other direction ends with an error, but not with the end."""
        try:
            role(peer)
        except Exception as error:  # of the socket, or of the program that computes the bytes
            peer.error = peer.error or f"lost a connection ({error})"
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            self._member.notify()
        peer.leave()

    def post(self, rank: int, tag: str, read: Callable[[], Bytes]) -> None:
        """Send bytes to a process, in the background.

        Args:
            rank: the process.
            tag: identifies the message.
            read: returns the bytes; a thread calls it, and it may wait for a device.
        """
        self._peers[rank].outgoing.put((tag, read))

    def take(self, rank: int, tag: str) -> Bytes:
        """Wait for a message, and return its bytes.

        Raises:
            PeerFailure: if the process fails, or sends nothing in time.
        """
        peer = self._peers[rank]
        self._member.wait_for(lambda: tag in peer.arrived or bool(peer.error), (rank,), self._timeout)
        if tag in peer.arrived:
            return peer.arrived.pop(tag)
        reason = peer.error or f"waited {self._timeout:.0f} s for a message of process {rank}"
        verdict = self._find_failure([rank], reason, lost=bool(peer.error))
        if verdict.rank >= 0:
            raise verdict
        raise PeerFailure(rank, None, f"it did not send {tag} within {self._timeout:.0f} s ({verdict.reason})")

    def _find_failure(self, ranks: Collection[int], reason: str, lost: bool = False) -> PeerFailure:
        known = self._member.error("", ranks)
        if isinstance(known, PeerFailure):
            return known
        processes = ",".join(map(str, sorted({*ranks, self._member.rank})))
        return self._member.ask_for_failure(processes, reason, lost)

    def close(self) -> None:
        """Close all connections, after the messages that have been posted."""
        self._listener.close()
        for peer in self._peers.values():
            peer.outgoing.put(None)

    def _send(self, peer: _Peer) -> None:
        while (message := peer.outgoing.get()) is not None:
            tag, read = message
            data, name = read(), tag.encode()
            peer.connection.sendall(_HEADER.pack(len(name), data.nbytes) + name)
            peer.connection.sendall(data.data)
            del message, read, data  # the next `get` may wait long
        with suppress(OSError):
            peer.connection.shutdown(socket.SHUT_WR)

    def _receive(self, peer: _Peer) -> None:
        header = np.empty(_HEADER.size, np.uint8)
        while True:
            _receive_into(peer.connection, header)
            length, nbytes = _HEADER.unpack(header.tobytes())
            name, data = np.empty(length, np.uint8), np.empty(nbytes, np.uint8)
            _receive_into(peer.connection, name)
            _receive_into(peer.connection, data)
            peer.arrived[name.tobytes().decode()] = data
            self._member.notify()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _receive_into(connection: socket.socket, data: Bytes) -> None:
    """Fill an array with received bytes."""
    view = data.data
    while view.nbytes:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the other process has closed it")
        view = view[count:]

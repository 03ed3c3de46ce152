"""BlobServer: sends named byte strings to other processes of a program, over TCP.

A request starts with the server's secret; others are dropped. The receiver compares the bytes with their digest.
"""

import hashlib
import socket
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import final

from shardwise.processes.protocol import split_address
from shardwise.processes.secret_server import SecretServer, receive

_REQUEST = struct.Struct("!IH")  # after the secret: the rank of the receiver, and the length of the name
_RESPONSE = struct.Struct("!q")  # the number of bytes, or -1 if there is no such blob
_SILENCE = 30.0  # seconds without progress after which a connection is closed
_SENT_BYTES = 1 << 20  # bytes of one call that sends


@final
@dataclass(frozen=True)
class Offer:
    """A blob on a server: the server's address and secret, and the blob's size and SHA-256 digest."""

    address: str
    secret: str
    nbytes: int
    digest: str


@final
@dataclass
class _Blob:
    """The bytes of a blob, and the ranks that have not received it."""

    data: bytes
    receivers: set[int] = field(default_factory=set)


@final
class BlobServer:
    """Serves blobs to processes that know its secret.

    A blob is dropped when all of its receivers have it, or when newer ones exceed the limit.

    Args:
        host: the address to listen on.
        limit: the most bytes to keep.
    """

    def __init__(self, host: str, limit: int):
        self._limit = limit
        self._blobs: OrderedDict[str, _Blob] = OrderedDict()
        self._lock = threading.Lock()
        self._server = SecretServer(host, 0, _SILENCE, self._send, "shardwise blob")

    @property
    def nbytes(self) -> int:
        """The bytes of all blobs."""
        with self._lock:
            return sum(len(blob.data) for blob in self._blobs.values())

    def offer(self, name: str, data: bytes, receivers: set[int]) -> Offer:
        """Serve a blob to these ranks, and return its description for them."""
        with self._lock:
            self._blobs[name] = _Blob(data, set(receivers))
            total = sum(len(blob.data) for blob in self._blobs.values())
            while total > self._limit and len(self._blobs) > 1:
                _, oldest = self._blobs.popitem(last=False)
                total -= len(oldest.data)
        return Offer(self._server.address, self._server.secret.hex(), len(data), hashlib.sha256(data).hexdigest())

    def close(self) -> None:
        """Stop listening, and drop all blobs."""
        self._server.close()
        with self._lock:
            self._blobs.clear()

    def _send(self, connection: socket.socket) -> None:
        rank, length = _REQUEST.unpack(receive(connection, _REQUEST.size))
        name = bytes(receive(connection, length)).decode(errors="replace")
        with self._lock:
            blob = self._blobs.get(name)
        if blob is None:
            connection.sendall(_RESPONSE.pack(-1))
            return
        connection.sendall(_RESPONSE.pack(len(blob.data)))
        view = memoryview(blob.data)
        for start in range(0, len(view), _SENT_BYTES):  # the timeout limits each call, and not each byte
            connection.sendall(view[start : start + _SENT_BYTES])
        with self._lock:
            blob.receivers.discard(rank)
            if not blob.receivers and self._blobs.get(name) is blob:
                del self._blobs[name]


def fetch(offer: Offer, name: str, rank: int) -> bytes:
    """Return a blob of another process.

    Args:
        offer: its description.
        name: its name.
        rank: the rank of this process.

    Raises:
        FileNotFoundError: if the server has dropped the blob.
        OSError: if the server cannot be reached, or sends other bytes than the described ones.
    """
    host, port = split_address(offer.address, "the address of a blob")
    with socket.create_connection((host, port), timeout=_SILENCE) as connection:
        encoded = name.encode()
        connection.sendall(bytes.fromhex(offer.secret) + _REQUEST.pack(rank, len(encoded)) + encoded)
        (nbytes,) = _RESPONSE.unpack(receive(connection, _RESPONSE.size))
        if nbytes < 0:
            raise FileNotFoundError(f"the server at {offer.address} does not have {name} any more")
        if nbytes != offer.nbytes:
            raise OSError(f"the server at {offer.address} has {nbytes} bytes, not {offer.nbytes}")
        data = bytes(receive(connection, nbytes))
    if hashlib.sha256(data).hexdigest() != offer.digest:
        raise OSError(f"the server at {offer.address} sent bytes with another digest")
    return data

"""CallServer: answers JSON requests of processes that know its secret, over TCP."""

import hmac
import json
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, final

from shardwise.processes.blob_server import receive
from shardwise.processes.protocol import join_address, split_address

_SECRET_BYTES = 16
_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 24  # bytes of a request or an answer
_REQUEST_TIME = 10.0  # seconds in which a request arrives
_MOST_CONNECTIONS = 256

_log = logging.getLogger("shardwise")


@final
class CallServer:
    """A server with one function, which a thread calls with each request: a JSON object in, a JSON object out.

    Args:
        host: the address to listen on.
        port: the port; 0 for any.
        answer: the function.

    Attributes:
        ticket: the address and the secret as one string, for `call`.
    """

    def __init__(self, host: str, port: int, answer: Callable[[dict[str, Any]], Mapping[str, Any]]):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self._secret, self._answer = secrets.token_bytes(_SECRET_BYTES), answer
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.ticket = f"{join_address(*self._listener.getsockname()[:2])}/{self._secret.hex()}"
        threading.Thread(target=self._accept, name="shardwise calls", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._connections.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="shardwise call", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(_REQUEST_TIME)
                if not hmac.compare_digest(receive(connection, _SECRET_BYTES), self._secret):
                    return
                try:
                    answer = self._answer(_receive_message(connection))
                except (ValueError, KeyError, TypeError) as error:
                    _log.warning("dropped a request that is not valid: %s", error)
                    return
                _send_message(connection, answer)
        finally:
            self._connections.release()


def call(ticket: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Return the answer of a `CallServer`.

    Args:
        ticket: the server's `ticket`.
        request: the request.
        timeout: the seconds to wait for the answer.

    Raises:
        OSError: if the server cannot be reached, or does not answer.
        ValueError: if the ticket is not one.
    """
    address, _, secret = ticket.partition("/")
    host, port = split_address(address, "the address of a ticket")
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(bytes.fromhex(secret))
        _send_message(connection, request)
        try:
            return _receive_message(connection)
        except ValueError as error:
            raise OSError(f"the server at {address} sent an answer that is not valid: {error}") from error


def local_host_for(ticket: str, timeout: float) -> str:
    """Return the address of this host from which a `CallServer` is reached.

    Raises:
        OSError: if the server cannot be reached.
        ValueError: if the ticket is not one.
    """
    host, port = split_address(ticket.partition("/")[0], "the address of a ticket")
    with socket.create_connection((host, port), timeout=timeout) as connection:
        return str(connection.getsockname()[0])


def _send_message(connection: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive_message(connection: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
    if length > _LONGEST:
        raise ValueError(f"a message of {length} bytes; the most is {_LONGEST}")
    message = json.loads(receive(connection, length))
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message

"""CallServer: answers JSON requests of processes that know its secret, over TCP."""

import json
import logging
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, final

from shardwise.processes.protocol import split_address
from shardwise.processes.secret_server import SecretServer, receive

_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 24  # bytes of a request or an answer
_SILENCE = 10.0  # seconds without a byte of a request after which its connection is closed

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
        self._answer = answer
        self._server = SecretServer(host, port, _SILENCE, self._serve, "shardwise call")
        self.ticket = f"{self._server.address}/{self._server.secret.hex()}"

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            request = _receive_message(connection)
            answer = self._answer(request)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("dropped a request that is not valid: %s", error)
            return
        _send_message(connection, answer)


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
    try:
        message = json.loads(receive(connection, length))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message

"""GlooConnections: the TCP connections of XLA's CPU collectives, which end runs that wait for a failed process.

XLA has no function that ends a run, and waits until its timeout, because the processes that are alive stay connected.
Each process finds its connections by the address on which Gloo listens, which the processes exchange, and closes them.
XLA keeps the connections of a group of devices for later programs. So they are closed only if every group of devices
that has communicated contains a device of a failed process: otherwise, survivors could not communicate any more.
"""

import ast
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from shardwise.processes.member import Member

# Seconds between a failure and the first attempt to close the connections, in which runs that the failed process has
# completed may end; and between further attempts, for runs that have started meanwhile.
_PAUSES = (0.2, 0.5, 1.0, 3.0, 10.0)
_KEY = "shardwise/gloo"
_DESCRIPTORS = Path("/proc/self/fd")  # Linux only; elsewhere, runs end at XLA's timeout
_TABLE = re.compile(r"(#devices\d+) = dense<(\[\[.*?\]\])>")
_PAIRS = "source_target_pairs = "

Address = tuple[Any, ...]
_log = logging.getLogger("shardwise")


def listening_addresses() -> set[Address]:
    """Return the addresses of the TCP sockets of this process that listen."""
    return {connection.getsockname() for connection in _sockets() if _listens(connection)}


@final
class GlooConnections:
    """The connections of this process to the other processes of a program, for collectives between CPU devices.

    Args:
        member: the connection of this process to the coordinator, which detects failures.
        store: the client of XLA's key-value store.
        listener: the address on which Gloo listens in this process; None if it is not known.
    """

    def __init__(self, member: Member, store: Any, listener: Address | None):
        self._member = member
        self._addresses: set[Address] = set()  # on which Gloo listens in all processes
        self._groups: set[frozenset[int]] = set()  # the ranks of each group of devices that communicates
        self._aborted: set[int] = set()  # failed ranks after whose failure the connections were closed
        self._lock = threading.Lock()
        store.key_value_set(f"{_KEY}/{member.rank}", repr(listener))

    def read_addresses(self, store: Any) -> None:
        """Read the addresses of all processes, which must have created their `GlooConnections`.

        If one is not known, no connection is closed: the other processes would wait nevertheless.
        """
        addresses = [ast.literal_eval(value) for _, value in store.key_value_dir_get(_KEY)]
        self._addresses = set(addresses) if None not in addresses else set()

    def add_groups(self, text: str, devices: Sequence[Any]) -> None:
        """Record the groups of devices that communicate in a module.

        Args:
            text: the module.
            devices: the devices that run it.
        """
        if devices[0].platform != "cpu":
            return
        ranks = [device.process_index for device in devices]
        for name, content in _TABLE.findall(text):
            rows = ast.literal_eval(content)
            if f"{_PAIRS}{name}" in text:  # all devices of the pairs are one group
                rows = [[index for row in rows for index in row]]
            groups = {frozenset(ranks[index] for index in row if index >= 0) for row in rows if len(row) > 1}
            with self._lock:
                self._groups |= groups

    def abort_after_failure(self) -> None:
        """Close the connections if a process has failed, in another thread. Runs that wait for it then end."""
        if self._member.failures.keys() - self._aborted - {-1}:
            threading.Thread(target=self._abort, name="shardwise abort", daemon=True).start()

    def _abort(self) -> None:
        for pause in _PAUSES:
            time.sleep(pause)
            failed = set(self._member.failures) - {-1}
            with self._lock:
                self._aborted |= failed
                if not all(not failed.isdisjoint(group) for group in self._groups):
                    return
                self.close_connections()

    def close_connections(self) -> None:
        """Close the connections: the runs that wait for another process end with an error."""
        for connection in _sockets():
            with suppress(OSError):  # not connected
                ends = {connection.getsockname(), connection.getpeername()}
                if not ends.isdisjoint(self._addresses) and not _listens(
                    connection
                ):  # Gloo aborts without its listener
                    connection.shutdown(socket.SHUT_RDWR)


def _listens(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP socket of this process, which is closed afterwards."""
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # closed meanwhile, or no socket
                if not os.readlink(_DESCRIPTORS / name).startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
                    if is_tcp and connection.type == socket.SOCK_STREAM:
                        yield connection

"""SharedExecutables: one process compiles a program, and the other processes that run it load the executable.

The first process that needs a program claims it in XLA's key-value store, compiles it, and serves the serialized
executable to the others, with a digest in the store. If the process fails, the next one claims the program. A process
on another kind of machine has another key, and compiles its own. The platform may not be able to serialize executables;
then every process compiles. The processes may need a program at different times, or some of them never: a process waits
only for another one that compiles.
"""

import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from itertools import count
from typing import Any, final

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.base.config import config
from shardwise.monitoring import record_event, record_event_duration_secs
from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.processes.member import Member
from shardwise.runtime.binary import Binary

COMPILED, RECEIVED = "/shardwise/executables/compiled", "/shardwise/executables/received"
_KEEP = 1 << 30  # the most bytes of executables that other processes have not loaded yet
_POLL_MILLISECONDS = 500
_PREFIX = "shardwise/executables"

_log = logging.getLogger("shardwise")


@final
class SharedExecutables:
    """The executables that the processes of a program load from each other.

    Args:
        member: the connection of this process to the coordinator, which detects failures.
        store: returns the client of XLA's key-value store, or raises PeerFailure if it is lost.
    """

    def __init__(self, member: Member, store: Callable[[], Any]):
        self._member = member
        self._store = store
        self._server: BlobServer | None = None
        self._machine: dict[str, str] | None = None

    def load_or_compile(
        self,
        key: str,
        machine: dict[str, str],
        ranks: Collection[int],
        compile_module: Callable[[], Binary],
        load: Callable[[bytes], Binary],
    ) -> Binary:
        """Return the executable of a program: received from another process, or compiled here.

        Args:
            key: the digest of everything that the executable depends on.
            machine: the properties of this process that it depends on, by name.
            ranks: the processes that run the program; this process is one of them.
            compile_module: compiles the program.
            load: loads a serialized executable.
        """
        self._compare_machines(machine)
        deadline = time.monotonic() + config.share_binary_between_hosts_timeout_ms / 1000
        for attempt in count():
            name = f"{_PREFIX}/{key}/{attempt}"
            owner, is_new = self._claim(name)
            if is_new:
                return self._compile_for_others(name, ranks, compile_module)
            if owner in (None, self._member.rank):  # this process compiles the program again, as the others do
                break
            offer = self._wait_for_offer(name, owner, deadline)
            if offer is None and owner in self._member.failures:
                continue
            if offer is not None and (binary := self._receive(offer, name, owner, load)) is not None:
                return binary
            break
        return compile_module()

    @staticmethod
    def count_compilation(compile_module: Callable[[], Binary]) -> Binary:
        """Compile a program that several processes run, and record the event."""
        binary = compile_module()
        record_event(COMPILED)
        return binary

    def close(self) -> None:
        """Serve no executables any more."""
        if self._server is not None:
            self._server.close()

    def _claim(self, name: str) -> tuple[int | None, bool]:
        """Claim a program. Return the rank of the process that compiles it, and whether this call has claimed it.

        The rank is None if the store is lost.
        """
        if self._set(f"{name}/owner", str(self._member.rank), overwrite=False):
            return self._member.rank, True
        try:
            return int(self._store().key_value_try_get(f"{name}/owner")), False
        except RuntimeFailure:
            return None, False

    def _compile_for_others(self, name: str, ranks: Collection[int], compile_module: Callable[[], Binary]) -> Binary:
        offer: Offer | None = None
        try:
            binary = compile_module()
            offer = self._offer(name, binary, ranks)
            return binary
        finally:
            # After an error, the others compile too, and get it themselves.
            self._set(f"{name}/offer", json.dumps(None if offer is None else asdict(offer)))

    def _offer(self, name: str, binary: Binary, ranks: Collection[int]) -> Offer | None:
        """Serve an executable to the other processes; None if it cannot be serialized or served."""
        try:
            blob = binary.serialize()
            if self._server is None:
                self._server = BlobServer(self._member.local_host, _KEEP)
            return self._server.offer(name, blob, {*ranks} - {self._member.rank})
        except (RuntimeFailure, OSError) as error:
            _log.debug("an executable cannot be sent to other processes, which compile it too: %s", error)
            return None

    def _wait_for_offer(self, name: str, owner: int, deadline: float) -> Offer | None:
        """Wait for the executable of another process. None if it failed, has no executable, or takes too long."""
        while owner not in self._member.failures and not self._member.is_closed:
            try:
                content = json.loads(self._store().blocking_key_value_get(f"{name}/offer", _POLL_MILLISECONDS))
                return None if content is None else Offer(**content)
            except RuntimeFailure:  # not compiled yet
                if time.monotonic() > deadline:
                    seconds = config.share_binary_between_hosts_timeout_ms / 1000
                    _log.warning(
                        "process %d has waited %.0f s for process %d to compile a program, and compiles it too",
                        self._member.rank,
                        seconds,
                        owner,
                    )
                    return None
        return None

    def _receive(self, offer: Offer, name: str, owner: int, load: Callable[[bytes], Binary]) -> Binary | None:
        """Load an executable of another process. None if that fails, which is logged."""
        start = time.perf_counter()
        try:
            binary = load(fetch(offer, name, self._member.rank))
        except FileNotFoundError as error:  # this process has loaded it before
            _log.debug("%s", error)
            return None
        except (OSError, RuntimeFailure, ValueError, TypeError) as error:
            _log.warning(
                "process %d compiles a program that process %d has compiled already: its executable cannot be loaded "
                "here (%s)",
                self._member.rank,
                owner,
                error,
            )
            return None
        record_event_duration_secs(RECEIVED, time.perf_counter() - start, process=owner)
        return binary

    def _compare_machines(self, machine: dict[str, str]) -> None:
        """At the first program, log how this machine differs from the first one that compiled a program."""
        if self._machine is not None:
            return
        self._machine = machine
        self._set(f"{_PREFIX}/machine", json.dumps([self._member.rank, machine]), overwrite=False)
        try:
            rank, other = json.loads(self._store().key_value_try_get(f"{_PREFIX}/machine"))
        except RuntimeFailure:
            return
        for name, value in machine.items():
            if other[name] != value:
                _log.warning(
                    "process %d loads no executables of process %d, because their %s differ: %s and %s",
                    self._member.rank,
                    rank,
                    name,
                    value,
                    other[name],
                )

    def _set(self, key: str, value: str, overwrite: bool = True) -> bool:
        """Set a key of the store. Return False if it exists and may not be overwritten, or if the store is lost."""
        try:
            self._store().key_value_set(key, value, allow_overwrite=overwrite)
        except RuntimeFailure:
            return False
        return True

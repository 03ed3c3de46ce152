"""RetainedExecutables: the serialized executables of this process, which a new client loads instead of compiling.

A client ends with its generation (`generations.py`), and its executables with it. The processes that stay load the
retained bytes. They also offer them to the newcomers of the next generation, such as a spare process.
"""

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from typing import Any, final

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.monitoring import record_event_duration_secs
from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.processes.member import Member
from shardwise.runtime.binary import Binary

RETAINED = "/shardwise/executables/retained"
_KEEP = 1 << 30  # the most bytes of executables
_KEY = "shardwise/retained_executables"
_NOTICE_TIME = 2.0  # seconds for the notice that the process has failed whose executable has not arrived
_POLL_INTERVAL = 0.05

_log = logging.getLogger("shardwise")


@final
class RetainedExecutables:
    """The bytes of the executables that this process has compiled or received, the least recently used first."""

    def __init__(self) -> None:
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._member: Member | None = None
        self._store: Any = None
        self._server: BlobServer | None = None
        self._offers: dict[str, Offer] | None = None  # to this process, by key; None before they are read

    def connect(self, member: Member, store: Any, newcomers: Collection[int]) -> None:
        """Offer the executables to the newcomers of a generation, before one of them needs a program.

        Args:
            member: the connection of this process to the coordinator.
            store: the client of XLA's key-value store.
            newcomers: the ranks of the newcomers.
        """
        self._member, self._store, self._offers = member, store, None
        first = next((rank for rank in range(member.num_processes) if rank not in newcomers), None)
        if member.rank != first or not newcomers:
            return
        with self._lock:
            blobs = dict(self._blobs)
        self._server = BlobServer(member.local_host, 2 * _KEEP)
        offers = {key: asdict(self._server.offer(key, blob, set(newcomers))) for key, blob in blobs.items()}
        store.key_value_set(_KEY, json.dumps(offers))

    def disconnect(self) -> None:
        """End the offers, when the process leaves a generation."""
        if self._server is not None:
            self._server.close()
        self._member = self._store = self._server = self._offers = None

    def load_or_compile(self, key: str, load: Callable[[bytes], Binary], make: Callable[[], Binary]) -> Binary:
        """Return the executable of a program: from its retained bytes, from another process, or from `make`.

        Args:
            key: the digest of everything that the executable depends on.
            load: loads a serialized executable.
            make: compiles the program, or loads its executable from elsewhere.

        Raises:
            PeerFailure: if a process fails while its executable is received.
        """
        start = time.perf_counter()
        if (blob := self._find(key)) is not None:
            try:
                binary = load(blob)
            except (RuntimeFailure, ValueError, TypeError) as error:
                _log.warning("a retained executable cannot be loaded, and is compiled again: %s", error)
            else:
                record_event_duration_secs(RETAINED, time.perf_counter() - start)
                return binary
        binary = make()
        with suppress(RuntimeFailure):  # some platforms cannot serialize
            self._add(key, binary.serialize())
        return binary

    def _find(self, key: str) -> bytes | None:
        """Return the bytes of an executable of this process, or of another one that offers it."""
        with self._lock:
            if key in self._blobs:
                self._blobs.move_to_end(key)
                return self._blobs[key]
        if (offer := self._read_offers().pop(key, None)) is None or self._member is None:
            return None
        try:
            blob = fetch(offer, key, self._member.rank)
        except OSError as error:
            self._raise_failure(self._member)
            _log.warning("an executable of another process has not arrived, and is compiled again: %s", error)
            return None
        self._add(key, blob)
        return blob

    def _raise_failure(self, member: Member) -> None:
        """Raise the failure of a process, which ends the generation: the next one may offer what has not arrived."""
        deadline = time.monotonic() + _NOTICE_TIME
        while True:
            if (failure := member.error("", range(member.num_processes))) is not None:
                raise failure
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_INTERVAL)

    def _read_offers(self) -> dict[str, Offer]:
        if self._offers is None:
            self._offers = {}
            with suppress(RuntimeFailure):  # nobody offers executables
                if self._store is not None:
                    contents = json.loads(self._store.key_value_try_get(_KEY))
                    self._offers = {key: Offer(**content) for key, content in contents.items()}
        return self._offers

    def _add(self, key: str, blob: bytes) -> None:
        with self._lock:
            self._nbytes += len(blob) - len(self._blobs.pop(key, b""))
            self._blobs[key] = blob
            while self._nbytes > _KEEP and len(self._blobs) > 1:
                _, oldest = self._blobs.popitem(last=False)
                self._nbytes -= len(oldest)

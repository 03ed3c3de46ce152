"""OuterServer: outer parameters of groups that are separate programs, updated with those that answer in time.

A round starts with the first outer gradient, and ends when all groups that took part in the last one have sent theirs,
or at the deadline. The others are late or dead: nobody waits for them again until they return. A gradient that arrives
late counts in the round that is open then.

The deadline counts from the first gradient, but not before the groups of the last round are expected to have trained as
long as for that one: a group that has joined in the middle of a round would otherwise end every round too early.
"""

import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.processes.call_server import CallServer
from shardwise.processes.protocol import split_address
from shardwise.strategies.outer_momentum import OuterMomentum

_KEPT = 3  # versions of the outer parameters that groups can still fetch
_RANK = 0  # of the receiver of a blob; groups have none
_PROBE_INTERVAL = 0.25  # seconds between two looks whether the groups are alive
_PROBE_TIME = 1.0  # seconds for a connection to a group

_log = logging.getLogger("shardwise")


@final
@dataclass
class _Round:
    """A round that collects outer gradients."""

    gradients: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)  # of each group
    timer: threading.Timer | None = None  # ends it at the deadline
    is_closed: bool = False


@final
@dataclass(frozen=True)
class _Session:
    """A process that has joined as a group, and the address at which its leader listens."""

    name: str
    address: str


@final
class OuterServer:
    """Holds the outer parameters of groups that train on their own, and updates them with their outer gradients.

    It runs in threads of a process that outlives the groups. Groups join with an `OuterExchange`, at any time. Nobody
    waits for a group whose process has ended. Programs that join without a name are spares: one takes the place of a
    group that has ended, or is late.

    Args:
        outer: the optimizer of outer gradients; by default, that of DiLoCo.
        deadline: the seconds after the first outer gradient of a round for which it waits for the others.
        max_staleness: the most updates that an outer gradient may have missed. An older one is dropped, and its group
            continues from the current parameters.
        groups: names of groups whose places are free at first, for programs that join without a name.
        host: the address to listen on, which the groups reach. The traffic is not encrypted.
        port: the port; by default, any.

    Attributes:
        ticket: the address and a secret as one string, for `OuterExchange`.

    Raises:
        ValueError: if the deadline is not positive, or the staleness is negative.
        OSError: if it cannot listen.

    Example:
        >>> server = jax.strategies.OuterServer(deadline=30)
        >>> exchange = jax.strategies.OuterExchange(server.ticket, "a")
        >>> params = exchange.join({"w": jnp.ones(2)})
        >>> exchange.exchange({"w": params["w"] - 0.5})
        {'w': Array([0.33500004, 0.33500004], dtype=float32)}
        >>> exchange.close()
        >>> server.close()
    """

    def __init__(
        self,
        outer: OuterMomentum | None = None,
        *,
        deadline: float = 60.0,
        max_staleness: int = 2,
        groups: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ):
        if not deadline > 0 or max_staleness < 0:
            raise ValueError(
                f"OuterServer: deadline must be positive and max_staleness at least 0, not deadline={deadline}, "
                f"max_staleness={max_staleness}"
            )
        self._outer = OuterMomentum() if outer is None else outer
        self._deadline, self._max_staleness, self._host = deadline, max_staleness, host
        self._changed = threading.Condition()
        self._layout: Sequence[Any] = ()  # the name, shape and dtype of each array
        self._params: np.ndarray[Any, Any] | None = None
        self._velocity: np.ndarray[Any, Any] | None = None
        self._version = 0
        self._round = _Round()
        self._awaited: set[str] = set()  # the groups for which a round waits
        self._sessions: dict[str, _Session] = {}  # of each group: a group that joins again replaces the one before
        self._free = list(groups)  # groups whose places a spare can take
        self._counted: dict[str, int] = {}  # session → the number of its last gradient that counted
        self._blobs: BlobServer | None = None
        self._offer: Offer | None = None
        self._has_ended = threading.Event()
        self._counted_gradients = 0
        self._last_update = self._interval = 0.0  # the time of the last update, and the seconds since the one before
        self._calls = CallServer(host, port, self._answer)
        self.ticket = self._calls.ticket
        threading.Thread(target=self._probe_groups, name="shardwise outer groups", daemon=True).start()

    @property
    def version(self) -> int:
        """The number of updates so far."""
        with self._changed:
            return self._version

    @property
    def gradients(self) -> int:
        """The number of outer gradients in all updates so far."""
        with self._changed:
            return self._counted_gradients

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups for which the next round waits."""
        with self._changed:
            return tuple(sorted(self._awaited))

    def close(self) -> None:
        """Stop. Groups that wait get an error."""
        self._calls.close()
        with self._changed:
            self._has_ended.set()
            if self._round.timer is not None:
                self._round.timer.cancel()
            if self._blobs is not None:
                self._blobs.close()
            self._changed.notify_all()

    def _answer(self, request: dict[str, Any]) -> Mapping[str, Any]:
        match request["kind"]:
            case "join":
                return self._join(
                    request["group"], str(request["session"]), request["layout"], Offer(**request["offer"])
                )
            case "exchange":
                return self._exchange(request)
            case "current":
                with self._changed:
                    return self._current()
            case "leave":
                return self._leave(str(request["group"]), str(request["session"]))
        raise ValueError(f"unknown kind {request['kind']!r:.40}")

    def _join(self, group: str | None, session: str, layout: Sequence[Any], offer: Offer) -> Mapping[str, Any]:
        """Let a group take part. The parameters of the first one are the first outer parameters."""
        with self._changed:
            is_first = self._params is None
        data = fetch(offer, session, _RANK) if is_first else b""  # without the lock: the group may be slow
        with self._changed:
            self._check_open()
            if self._params is None:
                self._layout = layout
                self._params = np.frombuffer(data, _dtype_of(layout)).copy()
                self._velocity = np.zeros_like(self._params)
                self._blobs = BlobServer(self._host, _KEPT * self._params.nbytes)
                self._publish()
            if layout != self._layout:
                differing = [one for one in [*layout, *self._layout] if one not in layout or one not in self._layout]
                return {"error": f"its parameters differ from those of the other groups, such as {differing[:1]}"}
            is_spare = group is None
            if group is None:
                if not self._free:
                    return {"group": None}
                group = self._free[0]
            self._set_free(group, False)
            self._sessions[group] = _Session(session, offer.address)
            # After the first update, a group is awaited only from its first gradient on, because it may compile until
            # then. A spare has compiled: it is late only by the time since the update.
            is_early = is_spare and time.monotonic() < self._last_update + self._deadline
            if self._version == 0 or is_early:
                self._awaited.add(group)
            return self._current(deadline=self._deadline, group=group)

    def _exchange(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Count an outer gradient, and return the parameters after the round."""
        group, session, number = str(request["group"]), str(request["session"]), int(request["number"])
        with self._changed:
            if not self._is_current(group, session):
                return self._replaced()
            if (missed := self._version - int(request["version"])) > self._max_staleness:
                reason = f"it has missed {missed} updates, more than max_staleness={self._max_staleness}"
                return self._current(dropped=reason)
            if self._counted.get(session, 0) >= number:  # the answer to an earlier request was lost
                return self._after(self._round, group)
            self._check_open()
        data = fetch(Offer(**request["offer"]), f"{session}/{number}", _RANK)
        gradient = np.frombuffer(data, _dtype_of(self._layout))
        with self._changed:
            self._check_open()
            if self._params is None or gradient.shape != self._params.shape:
                raise ValueError(f"an outer gradient of {gradient.size} elements")
            if not self._is_current(group, session):  # meanwhile
                return self._replaced()
            if self._counted.get(session, 0) >= number:  # the same request has arrived twice
                return self._after(self._round, group)
            if not np.isfinite(gradient).all():
                self._awaited.discard(group)
                self._close_if_complete()
                return self._current(dropped="it is not finite")
            current = self._round
            if not current.gradients:
                early = max(0.0, self._last_update + self._interval - time.monotonic())
                current.timer = threading.Timer(early + self._deadline, self._close_at_deadline, (current,))
                current.timer.daemon = True
                current.timer.start()
            current.gradients[group] = gradient
            self._counted[session] = number
            self._awaited.add(group)
            self._set_free(group, False)
            self._close_if_complete()
            return self._after(current, group)

    def _after(self, current: _Round, group: str) -> Mapping[str, Any]:
        """Return the parameters after a round in which a group takes part."""
        if group in current.gradients:
            self._changed.wait_for(lambda: current.is_closed or self._has_ended.is_set())
            if not current.is_closed:
                self._check_open()
        return self._current()

    def _check_open(self) -> None:
        if self._has_ended.is_set():
            raise ConnectionAbortedError("the outer server is closed")

    def _leave(self, group: str, session: str) -> Mapping[str, Any]:
        with self._changed:
            if self._is_current(group, session):
                self._remove(group)
                self._set_free(group, False)
        return {}

    def _is_current(self, group: str, session: str) -> bool:
        return group in self._sessions and self._sessions[group].name == session

    def _replaced(self) -> Mapping[str, Any]:
        return self._current(dropped="another process has joined as this group", is_replaced=True)

    def _remove(self, group: str) -> None:
        """Wait for a group no longer."""
        del self._sessions[group]
        self._awaited.discard(group)
        self._close_if_complete()

    def _set_free(self, group: str, is_free: bool) -> None:
        """Record whether a spare can take the place of a group."""
        if is_free != (group in self._free):
            (self._free.append if is_free else self._free.remove)(group)

    def _probe_groups(self) -> None:
        """Remove groups that have ended. A host that does not answer says nothing: its group may be cut off."""
        while not self._has_ended.wait(_PROBE_INTERVAL):
            with self._changed:
                sessions = dict(self._sessions)
            for group, session in sessions.items():
                if not _listens(session.address):
                    with self._changed:
                        if self._sessions.get(group) == session:
                            _log.warning("the group %s has ended", group)
                            self._set_free(group, True)
                            self._remove(group)

    def _close_if_complete(self) -> None:
        if self._round.gradients and self._awaited <= self._round.gradients.keys():
            self._close()

    def _close_at_deadline(self, current: _Round) -> None:
        with self._changed:
            if not current.is_closed and not self._has_ended.is_set():
                self._close()

    def _close(self) -> None:
        """Update the parameters with the gradients of the round, in the order of the groups' names."""
        gradients, timer = self._round.gradients, self._round.timer
        if timer is not None:
            timer.cancel()  # it would keep the gradients in memory until the deadline
        if late := sorted(self._awaited - gradients.keys()):
            _log.warning("outer update %d without the groups %s, which are late", self._version + 1, ", ".join(late))
        mean = sum(gradients[group] for group in sorted(gradients)) / len(gradients)
        self._params, self._velocity = self._outer.update(self._params, self._velocity, mean)
        self._version += 1
        self._counted_gradients += len(gradients)
        now = time.monotonic()
        self._interval = min(now - self._last_update, self._interval + self._deadline)
        self._last_update = now
        for group in late:
            self._set_free(group, True)
        self._publish()
        self._awaited = set(gradients)
        self._round.is_closed = True
        self._round = _Round()
        self._changed.notify_all()

    def _publish(self) -> None:
        if self._blobs is not None and self._params is not None:
            self._offer = self._blobs.offer(str(self._version), self._params.tobytes(), {-1})  # until it is old

    def _current(self, **others: Any) -> Mapping[str, Any]:
        return {"version": self._version, "offer": self._offer and asdict(self._offer), **others}


def _listens(address: str) -> bool:
    """Return False if no process listens at an address of a host that answers."""
    try:
        with socket.create_connection(split_address(address, "the address of a group"), timeout=_PROBE_TIME):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True


def _dtype_of(layout: Sequence[Any]) -> np.dtype[Any]:
    """Return the dtype of outer gradients: float64 if a parameter has it, else float32."""
    return np.dtype(np.float64 if any(dtype == "float64" for _, _, dtype in layout) else np.float32)

"""OuterExchange: a group's exchange of outer gradients with an OuterServer."""

import logging
import math
import secrets
import time
from dataclasses import asdict
from typing import Any, TypeVar, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.creation import make_array_from_callback
from shardwise.errors import RendezvousError, StrategyError
from shardwise.experimental.multihost_utils import process_allgather
from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.processes.call_server import call, local_host_for
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.client import process_count
from shardwise.runtime.group import Group
from shardwise.strategies.leaves import has_dtype, leaf_name

_T = TypeVar("_T")
_NAME = "OuterExchange"
_RETRY_SECONDS = 0.5
_CALL_SECONDS = 60.0  # for an answer, besides the deadline of a round
_PLACE_SECONDS = 0.2  # between two questions of a spare for a place
_RANK = 0

_log = logging.getLogger("shardwise")


@final
class OuterExchange:
    """Lets a group of devices train beside others that are separate programs, and exchange outer gradients with them.

    A group is a program of one process, or of several that have called `distributed.initialize`, and call all methods
    together. It trains on its own, and calls `exchange` after every H steps. A group that is late, stops or dies does
    not stop the others. One that is started again calls `join`, and continues from their parameters.

    Args:
        ticket: the `ticket` of the `OuterServer`.
        group: the name of the group. A program that joins with a name replaces the one that had it. With None, the
            program is a spare: `join` waits until a group has ended or is late, and takes its place.
        patience: the seconds for which it tries to reach the server.

    Attributes:
        group: the name of the group; None for a spare that waits.
        version: the number of updates of the outer parameters that this group has; -1 before `join`.

    Raises:
        StrategyError: if the ticket is not one.
        RendezvousError: if the server cannot be reached.

    Example:
        >>> server = jax.strategies.OuterServer()
        >>> exchange = jax.strategies.OuterExchange(server.ticket, "a")
        >>> exchange.join({"w": jnp.ones(2)})
        {'w': Array([1., 1.], dtype=float32)}
        >>> exchange.close()
        >>> server.close()
    """

    def __init__(self, ticket: str, group: str | None, *, patience: float = 60.0):
        self._ticket, self.group, self._patience = ticket, group, patience
        self._is_spare = group is None
        self._session, self._number = secrets.token_hex(8), 0
        advice = "All processes of a group must call OuterExchange"
        self._processes = Group("outer exchange", advice=advice) if process_count() > 1 else None
        self._deadline = 0.0
        self._layout: list[list[Any]] = []  # the name, shape and dtype of each array
        self._base: np.ndarray[Any, Any] | None = None  # the outer parameters from which this group trains
        self.version = -1
        self._is_closed = False
        self._blobs: BlobServer | None = None
        if self._is_leader:
            try:
                host = self._retried(lambda: local_host_for(ticket, patience))
            except ValueError as error:
                raise StrategyError(f"{_NAME}: {error}") from None
            self._blobs = BlobServer(host, 0)  # keeps the newest one

    def join(self, params: _T) -> _T:
        """Return the outer parameters of the groups: those passed by the first one that joins.

        Args:
            params: a pytree of floating-point arrays.

        Raises:
            StrategyError: if a leaf is not a floating-point array, or the parameters of the other groups differ; after
                `close`.
            RendezvousError: if the server cannot be reached.
        """
        self._check_open()
        vector = self._vector(params)
        self._layout = _layout(params)
        return self._take(self._join(vector), params)

    def exchange(self, params: _T) -> _T:
        """Send what this group has learned, and return the outer parameters to continue from.

        It waits for the other groups until the deadline of the server. A program that joined as a spare, and was
        replaced because it was late, waits for a place again.

        Args:
            params: the parameters that the group has trained.

        Raises:
            StrategyError: if `join` was not called, or a leaf is not a floating-point array; after `close`.
            RendezvousError: if the server cannot be reached. The group can go on training with its parameters, and
                exchange later.
        """
        self._check_open()
        if self.version < 0:
            raise StrategyError(f"{_NAME}: call `join` before `exchange`: it returns the parameters to start from")
        if _layout(params) != self._layout:
            raise StrategyError(f"{_NAME}: the names, shapes or dtypes of the parameters differ from those of `join`")
        vector = self._vector(params)
        gradient = None if self._base is None or vector is None else self._base - vector
        self._number += 1
        answer = self._ask(
            "exchange", f"{self._session}/{self._number}", gradient, version=self.version, number=self._number
        )
        if reason := answer.get("dropped"):
            _log.warning("the outer gradient of the group %r was dropped: %s", self.group, reason)
        if self._is_spare and answer.get("is_replaced"):
            self.group = None
            answer = self._join(vector)
        return self._take(answer, params)

    def close(self) -> None:
        """Leave: the others do not wait for this group any more."""
        is_open, self._is_closed = not self._is_closed, True
        if is_open and self._blobs is not None:
            try:
                self._call({"kind": "leave", "group": self.group, "session": self._session})
            except OSError as error:
                _log.warning("the group %r left without the outer server: %s", self.group, error)
            self._blobs.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StrategyError(
                f"{_NAME}: the group {self.group!r} has left with `close`: create another {_NAME}, and call `join`"
            )

    def _join(self, vector: np.ndarray[Any, Any] | None) -> dict[str, Any]:
        """Return the server's answer when this program has a place."""
        while True:
            answer: dict[str, Any] = self._ask("join", self._session, vector, layout=self._layout)
            if "error" in answer:
                raise StrategyError(f"{_NAME}: the group {self.group!r} cannot join: {answer['error']}")
            if answer["group"] is not None:
                self.group, self._deadline = answer["group"], float(answer["deadline"])
                return answer
            time.sleep(_PLACE_SECONDS)

    @property
    def _is_leader(self) -> bool:
        return self._processes is None or self._processes.index == 0

    def _vector(self, params: object) -> np.ndarray[Any, Any] | None:
        """Return the parameters as one vector in the leader; None in the other processes."""
        parts = []
        for path, leaf in tree_util.tree_leaves_with_path(params):
            if not has_dtype(leaf, jnp.floating):
                raise StrategyError(f"{_NAME}: {leaf_name(path)!r} is {leaf!r:.80}, not a floating-point array")
            is_shared = isinstance(leaf, ArrayImpl) and not leaf.is_fully_addressable
            parts.append(process_allgather(leaf, tiled=True) if is_shared else np.asarray(leaf))
        if not self._is_leader:
            return None
        dtype = np.float64 if any(part.dtype == np.float64 for part in parts) else np.float32
        return np.concatenate([part.astype(dtype).ravel() for part in parts] or [np.zeros(0, dtype)])

    def _take(self, answer: dict[str, Any], params: _T) -> _T:
        """Fetch the parameters that an answer offers, in the shardings of `params`."""
        while (data := self._fetch(answer)) is None:  # this group stopped for so long that there are newer ones
            answer = self._ask("current")
        self.version = int(answer["version"])
        leaves, structure = tree_util.tree_flatten(params)
        dtype = np.float64 if any(leaf.dtype == np.float64 for leaf in leaves) else np.float32
        vector = np.frombuffer(data, dtype)
        if self._is_leader:
            self._base = vector
        start, results = 0, []
        for leaf in leaves:
            size = math.prod(leaf.shape)
            value = vector[start : start + size].reshape(leaf.shape).astype(leaf.dtype)
            start += size
            results.append(_like(leaf, value))
        taken: _T = structure.unflatten(results)
        return taken

    def _fetch(self, answer: dict[str, Any]) -> bytes | None:
        """Return the parameters that an answer offers; None if the server has dropped them."""
        data: bytes | None
        try:
            data = self._retried(lambda: fetch(Offer(**answer["offer"]), str(answer["version"]), _RANK))
        except FileNotFoundError:
            data = None
        if self._processes is None:
            return data
        return data if all(self._processes.exchange(data is not None)) else None

    def _ask(self, kind: str, blob: str = "", vector: np.ndarray[Any, Any] | None = None, **values: Any) -> Any:
        """Return the server's answer to a request, which offers a vector, in all processes of the group."""
        answer: dict[str, Any] = {}
        failure: RendezvousError | None = None
        if self._blobs is not None:
            request = {"kind": kind, "group": self.group, "session": self._session, **values}
            if vector is not None:
                request["offer"] = asdict(self._blobs.offer(blob, vector.tobytes(), {-1}))  # until the next one
            try:
                answer = self._retried(lambda: self._call(request))
            except RendezvousError as error:
                failure = error
        if self._processes is not None:
            message, answer = self._processes.exchange([str(failure or ""), answer])[0]
            failure = failure or (RendezvousError(message) if message else None)
        if failure is not None:
            raise failure
        return answer

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        return call(self._ticket, request, self._deadline + _CALL_SECONDS)

    def _retried(self, function: Any) -> Any:
        """Return the result of a function that reaches the server, which may be busy or start again."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return function()
            except FileNotFoundError:
                raise
            except OSError as error:
                if time.monotonic() > end:
                    address = self._ticket.partition("/")[0]
                    raise RendezvousError(
                        f"{_NAME}: the outer server at {address} does not answer the group {self.group!r}: {error}. Go "
                        "on training and exchange later, or restore a checkpoint with another OuterServer"
                    ) from error
                time.sleep(_RETRY_SECONDS)


def _layout(params: object) -> list[list[Any]]:
    """Return the name, shape and dtype of each array."""
    return [
        [leaf_name(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in tree_util.tree_leaves_with_path(params)
    ]


def _like(leaf: Any, value: np.ndarray[Any, Any]) -> Any:
    """Return a value as an array with the sharding of another one."""
    if not isinstance(leaf, ArrayImpl):
        return value
    return make_array_from_callback(leaf.shape, leaf.sharding, lambda index: value[index])

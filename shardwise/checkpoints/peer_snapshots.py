"""PeerSnapshots: recent states of a training run in the memory of its processes, which survive the death of some."""

import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, final

from shardwise import tree_util
from shardwise.api.creation import devices_by_box, make_array_from_callback
from shardwise.api.meshes.placement import block_until_ready, device_put
from shardwise.base._jaxlib import RuntimeFailure
from shardwise.checkpoints.manager import Restored
from shardwise.checkpoints.peer_blocks import (
    BlockKey,
    HeldSnapshot,
    assemble,
    blocks_to_send,
    overlapping,
    pack,
    take_blocks,
    unpack,
)
from shardwise.checkpoints.peer_restore import PeerRestore
from shardwise.checkpoints.slowdown_meter import SlowdownMeter
from shardwise.checkpoints.snapshot import named_leaves
from shardwise.checkpoints.target import Target, target_of
from shardwise.compiler.dtypes import is_key
from shardwise.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, PeerFailure
from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.processes.partners import failure_domain, partners
from shardwise.random import wrap_key_data
from shardwise.runtime.array import ArrayImpl, key_data_sharding
from shardwise.runtime.box import box_of
from shardwise.runtime.cluster import cluster
from shardwise.runtime.generations import generations
from shardwise.runtime.group import Group

_NO_LIMIT = 1 << 62
_POLL_MILLISECONDS = 200
_FIRST_INTERVAL = 10  # steps between the first two snapshots, if the interval is chosen
_LONGEST_GROWTH = 2  # an interval is at most this many times the last one: one slow snapshot says little
_SHARE = 0.01  # the most of the time that snapshots take then

_log = logging.getLogger("shardwise")


class MoreProcesses(BaseException):
    """More processes can take part: `recover` ends the generation. It is no Exception, which programs handle."""


@final
class PeerSnapshots:
    """Snapshots of a training state in host memory, with copies in the memory of other processes.

    Every process keeps the shards of its own devices, and copies those that no other process holds to a partner, on
    another host if there are several. A thread sends them while the devices compute, with digests. When the partner has
    them, and so have all other partners, the snapshot replaces the last one. If processes die, the others restore the
    newest snapshot onto a mesh of their own devices, without a file.

    All processes create it at the same point of the program, and call its methods with the same arguments.

    Args:
        every_steps: save the steps that are multiples of it. By default, the interval is chosen so that `save` takes
            less than 1% of the time, with the time by which steps are slower while a snapshot is copied beside them.
        processes: the ranks of the processes that take part; by default, all.

    Attributes:
        last_step: the last step that was passed to `save`, or restored before; None before the first.

    Raises:
        RuntimeError: if there is a single process, unless the others of `recover` have failed.
        PeerFailure: if a process fails, or does not come.
        ValueError: if `every_steps` is not positive, or this process does not take part.

    Example:
        >>> jax.checkpoints.PeerSnapshots(every_steps=10)
        Traceback (most recent call last):
        RuntimeError: PeerSnapshots needs several processes: call distributed.initialize first
    """

    def __init__(self, every_steps: int | None = None, processes: Sequence[int] | None = None):
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"PeerSnapshots: every_steps must be positive, not {every_steps}")
        if cluster.member is None or (cluster.member.num_processes == 1 and not generations.is_recovering):
            raise RuntimeError("PeerSnapshots needs several processes: call distributed.initialize first")
        self.last_step: int | None = None
        self._member = cluster.member
        self._every_steps = every_steps
        self._server = BlobServer(self._member.local_host, _NO_LIMIT)
        # The last complete snapshot and newer ones, by name. A restored state is a new snapshot of the same step; until
        # it is complete, some blocks have copies only in the old one.
        self._held: dict[str, HeldSnapshot] = {}
        self._lock = threading.Lock()
        self._complete: int | None = None  # the step of the last snapshot that was complete in all processes
        self._transfer: _Transfer | None = None
        self._next_step = 0
        self._interval = 0  # the steps until the next snapshot, if it is chosen; 0 before the first one
        self._last_save: tuple[int, float] | None = None  # the last saved step, and when `save` returned
        self._cost = 0.0  # seconds that the last `save` took, after the arrays were computed
        self._meter = SlowdownMeter()
        self._count = 0  # snapshots since `_connect`
        self._last_name = ""  # of the last complete snapshot since `_connect`
        self._has_room = False  # whether the next snapshot is the last one, because more processes can take part
        self._connect(processes)

    def _connect(self, processes: Sequence[int] | None) -> None:
        """Exchange the failure domains of the processes, and a prefix of the names of snapshots."""
        group = Group("snapshots", processes=processes, advice="Every process must create and restore PeerSnapshots")
        messages = group.exchange([failure_domain(os.environ, self._member.local_host), secrets.token_hex(8)])
        self.processes = list(group.processes)
        self._hosts = {rank: str(message[0]) for rank, message in zip(group.processes, messages, strict=True)}
        self._partners = partners(self._hosts)
        self._prefix = f"shardwise/snapshots/{messages[0][1]}"
        self._count = 0

    def join_again(self) -> None:
        """Continue with the processes of the next generation, which all call it. The snapshots are kept.

        Raises:
            PeerFailure: if a process fails.
        """
        with self._lock:
            transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.thread.join()
        assert cluster.member is not None
        self._member = cluster.member
        self._server.close()
        self._server = BlobServer(self._member.local_host, _NO_LIMIT)
        self._last_save, self._next_step, self._last_name, self._has_room = None, 0, "", False
        self._interval = 0
        self._meter = SlowdownMeter()
        self._connect(None)

    @property
    def nbytes(self) -> int:
        """The bytes of host memory of the snapshots in this process: its own blocks, and its partners'."""
        with self._lock:
            return sum(snapshot.nbytes for snapshot in self._held.values())

    def latest(self) -> int | None:
        """Return the step of the newest snapshot that is complete as far as this process knows; None without one."""
        with self._lock:
            return self._complete if self._held else None

    def save(self, step: int, tree: object, *, force: bool = False) -> bool:
        """Take a snapshot if the step is due: copy the shards of this process to host memory, and send them.

        It waits until the arrays are computed, and until the last snapshot is complete in all processes. The arrays may
        be donated afterwards.

        Args:
            step: the number of the step, from 0.
            tree: the pytree to save.
            force: whether to save though the step is not due.

        Returns:
            Whether the step was saved.

        Raises:
            CheckpointError: if an array was donated or deleted, or is unreduced.
            PeerFailure: if a process failed.
        """
        self.last_step = step
        self._member.note_step(step)
        is_due = step % self._every_steps == 0 if self._every_steps is not None else step >= self._next_step
        if not is_due and not force:
            self._meter.end_step(time.perf_counter(), self._is_copying())
            return False
        start = time.perf_counter()
        costs = self.wait()
        if self._every_steps is None:
            self._choose_interval(step, costs)
        has_room = self._has_room
        waited = time.perf_counter()
        arrays = [leaf for leaf in tree_util.tree_leaves(tree) if isinstance(leaf, ArrayImpl)]
        block_until_ready([array for array in arrays if not array.is_deleted()])  # computing them is no cost
        computed = time.perf_counter()
        self._meter.end_step(computed - (waited - start), is_copying=False)
        self._start(take_blocks(step, tree, self._member.rank))
        end = time.perf_counter()
        self._meter.start_copy(end)
        self._last_save, self._cost = (step, end), end - computed + waited - start
        if has_room:
            self.wait()
            raise MoreProcesses("more processes can take part")
        return True

    def _choose_interval(self, step: int, costs: Sequence[tuple[float, float]]) -> None:
        """Choose the next step to save from what all processes have measured for the last snapshot."""
        step_time = min((each[1] for each in costs), default=0.0)
        if self._interval and step_time > 0:
            chosen = math.ceil(max(each[0] for each in costs) / (_SHARE * step_time))
            self._interval = min(max(1, chosen), _LONGEST_GROWTH * self._interval)
        else:
            self._interval = self._interval or _FIRST_INTERVAL
        self._next_step = step + self._interval

    def _start(self, snapshot: HeldSnapshot) -> None:
        keys = blocks_to_send(snapshot, self._member.rank, self._hosts)
        with self._lock:
            self._count += 1
            measured = [self._cost + self._meter.slowdown, self._step_time(snapshot.step)]
            name = f"{self._prefix}/{self._count}"
            self._held[name] = snapshot
            self._transfer = transfer = _Transfer(self, name, snapshot, keys, measured)
        transfer.thread.start()

    def _step_time(self, step: int) -> float:
        """Return the seconds per step since the last snapshot; 0 before the second one."""
        if self._last_save is None or step <= self._last_save[0]:
            return 0.0
        return (time.perf_counter() - self._last_save[1]) / (step - self._last_save[0])

    def _is_copying(self) -> bool:
        """Return whether a snapshot is copied now."""
        with self._lock:
            return self._transfer is not None and self._transfer.thread.is_alive()

    def wait(self) -> list[tuple[float, float]]:
        """Wait until the last snapshot is complete in all processes.

        Returns:
            For each process, the seconds that the snapshot before it took, and those of a step.

        Raises:
            PeerFailure: if a process failed.
        """
        with self._lock:
            transfer = self._transfer
        if transfer is None:
            return []
        start = time.monotonic()
        transfer.thread.join()
        self._member.pace.add_wait(start)
        if isinstance(transfer.error, PeerFailure):
            raise transfer.error
        if transfer.error is not None:
            _log.warning("the snapshot of step %d is not complete: %s", transfer.step, transfer.error)
        return transfer.measured

    def complete(self, transfer: "_Transfer") -> None:
        """Drop all snapshots but one, which is complete in all processes, and the keys of the one before."""
        with self._lock:
            self._complete, self._has_room = transfer.step, transfer.has_room
            self._held = {name: snapshot for name, snapshot in self._held.items() if name == transfer.name}
        # Every process has read the keys of the last snapshot before it took this one.
        name, self._last_name = self._last_name, transfer.name
        for key in ("offer", "done") if name else ():
            with suppress(RuntimeFailure):
                cluster.store.key_value_delete(f"{name}/{key}/{self._member.rank}")

    def drop(self, transfer: "_Transfer") -> None:
        """Drop a snapshot of which all processes know that it is not complete."""
        with self._lock:
            self._held.pop(transfer.name, None)

    def restore(self, like: object, *, shardings: object = None, processes: Sequence[int] | None = None) -> Restored:
        """Restore the newest snapshot whose blocks are all in the memory of some processes.

        After a `PeerFailure`, the processes that are alive call it, with the shardings of a mesh of their devices. The
        restored state is a new snapshot at once, which protects these processes against the next failure. The old one
        is kept until the new one is complete.

        Args:
            like: a pytree of arrays or `ShapeDtypeStruct`s, whose structure, types and shardings the result has.
            shardings: a sharding for all arrays, instead of the shardings of `like`.
            processes: the ranks of the processes that take part from now on; by default, those of before.

        Returns:
            The step and the tree, without metrics and metadata.

        Raises:
            CheckpointNotFound: if no snapshot is complete; the message says which blocks were lost with whom.
            CheckpointMismatch: if the snapshot differs from `like`.
            PeerFailure: if another process fails. The snapshots are kept: the others may call it again.
        """
        restored = self.resume(like, shardings=shardings, processes=processes)
        if restored is None:
            raise CheckpointNotFound(
                f"no snapshot is complete in the memory of the processes {self.processes} (none was saved): "
                "restore the newest checkpoint on disk"
            )
        return restored

    def resume(
        self, like: object, *, shardings: object = None, processes: Sequence[int] | None = None
    ) -> Restored | None:
        """Restore the newest snapshot as `restore` does, if there has been one.

        Args:
            like: a pytree of arrays or `ShapeDtypeStruct`s, whose structure, types and shardings the result has.
            shardings: a sharding for all arrays, instead of the shardings of `like`.
            processes: the ranks of the processes that take part from now on; by default, those of before.

        Returns:
            The step and the tree, without metrics and metadata; None if no snapshot was ever complete.

        Raises:
            CheckpointNotFound: if there was a complete snapshot, and parts of it are lost.
            CheckpointMismatch: if the snapshot differs from `like`.
            PeerFailure: if another process fails. The snapshots are kept: the others may call it again.
        """
        with self._lock:
            transfer = self._transfer
        if transfer is not None:
            transfer.thread.join()  # it ends at once if one of its processes has failed
        ranks = self.processes if processes is None else sorted(processes)
        group = Group("restored snapshots", processes=ranks, advice="Every process must call PeerSnapshots.restore")
        restore = PeerRestore(group, self._member.rank, self._server)
        with self._lock:
            held = dict(self._held)
        if (chosen := restore.choose_snapshot(held, self._complete)) is None:
            return None
        name, snapshot = chosen
        targets = {name: target_of(name, leaf, shardings, cast=False) for name, (_, leaf) in named_leaves(like).items()}
        _check_types(snapshot, targets)
        with self._lock:
            self._held[name] = snapshot
        restore.fetch_blocks(snapshot, _needed(snapshot, targets))
        with self._lock:
            self._held, self._complete = {name: snapshot}, snapshot.step
        leaves = [_restored(name, target, snapshot) for name, target in targets.items()]
        tree = tree_util.tree_structure(like, is_leaf=lambda node: node is None).unflatten(leaves)
        self._server.close()  # with what it offered to processes that have failed
        self._server = BlobServer(self._member.local_host, _NO_LIMIT)
        self._connect(ranks)
        with self._lock:
            self._transfer, self._last_save, self._next_step = None, None, snapshot.step + 1
        self._meter = SlowdownMeter()
        self.last_step = snapshot.step if self.last_step is None else self.last_step
        protected = take_blocks(snapshot.step, tree, self._member.rank)
        restore.keep_values(snapshot, protected)
        self._start(protected)
        return Restored(snapshot.step, tree, {}, {})

    def close(self) -> None:
        """Free the memory of the snapshots, after the last one is complete or a process has failed."""
        with self._lock:
            transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.thread.join()  # other processes may still wait for the blocks of this one
        with self._lock:
            self._held.clear()
        self._server.close()


@final
class _Transfer:
    """Sends the blocks of one snapshot to the partner, and receives those of the processes whose partner this is.

    Attributes:
        name: the name of the snapshot, which is the prefix of its keys in XLA's store.
        step: the step of the snapshot.
        error: why the snapshot is not complete; None if it is, or if the transfer still runs.
        measured: what each process has measured, when the snapshot is complete.
        has_room: whether more processes can take part.
        thread: the thread.
    """

    def __init__(
        self,
        snapshots: PeerSnapshots,
        name: str,
        snapshot: HeldSnapshot,
        keys: Sequence[BlockKey],
        measured: Sequence[float],
    ):
        self.name, self.step = name, snapshot.step
        self.error: Exception | None = None
        self.measured: list[tuple[float, float]] = []
        self.has_room = False
        self._snapshots, self._snapshot, self._keys, self._measured = snapshots, snapshot, keys, measured
        self.thread = threading.Thread(target=self._run, name=f"snapshot of step {self.step}", daemon=True)

    def _run(self) -> None:
        try:
            self._exchange()
        except Exception as error:  # `wait` raises or logs it
            self.error = error

    def _exchange(self) -> None:
        owner, rank = self._snapshots, self._snapshots._member.rank
        report: list[float] | None = None
        try:
            self._send_and_receive()
            report = list(self._measured)
        except OSError as error:
            _log.warning("process %d has not received the blocks of its partner: %s", rank, error)
        has_room = generations.is_recovering and rank == owner.processes[0] and generations.has_room()
        digest = self._snapshot.held_digests()[rank]
        cluster.store.key_value_set(f"{self.name}/done/{rank}", json.dumps([report, has_room, digest]))
        messages = {other: json.loads(self._wait_for(f"{self.name}/done/{other}")) for other in owner.processes}
        reports = {other: received for other, (received, _, _) in messages.items()}
        if absent := [other for other, received in reports.items() if received is None]:
            owner.drop(self)
            raise CheckpointError(f"the processes {absent} have not received the blocks of their partners")
        self.has_room = any(each for _, each, _ in messages.values())
        self.measured = [(float(cost), float(step_time)) for cost, step_time in reports.values()]
        self._snapshot.value_digests.update({other: str(digest) for other, (_, _, digest) in messages.items()})
        owner.complete(self)

    def _send_and_receive(self) -> None:
        owner, rank = self._snapshots, self._snapshots._member.rank
        if (partner := owner._partners.get(rank)) is not None:
            blocks = pack([(key, self._snapshot.blocks[key]) for key in self._keys])
            contents = {"blocks": blocks, "values": self._snapshot.values_of[rank]}
            offers = {
                name: asdict(owner._server.offer(f"{self.name}/{name}", content, {partner}))
                for name, content in contents.items()
            }
            cluster.store.key_value_set(f"{self.name}/offer/{rank}", json.dumps(offers))
        for ward in sorted(each for each, partner in owner._partners.items() if partner == rank):
            received = {
                name: fetch(Offer(**offer), f"{self.name}/{name}", rank)
                for name, offer in json.loads(self._wait_for(f"{self.name}/offer/{ward}")).items()
            }
            with owner._lock:
                self._snapshot.blocks.update(unpack(received["blocks"]))
                self._snapshot.values_of[ward] = received["values"]

    def _wait_for(self, key: str) -> str:
        """Return the value of a key of XLA's store that another process sets.

        Raises:
            PeerFailure: if a process fails, or does not set it in time.
        """
        member, ranks = self._snapshots._member, self._snapshots.processes
        deadline = time.monotonic() + cluster.timeouts.peer
        while True:
            if (failure := member.error("", ranks)) is not None:
                raise failure
            try:
                return str(cluster.store.blocking_key_value_get(key, _POLL_MILLISECONDS))
            except RuntimeFailure:  # not set yet
                if time.monotonic() > deadline:
                    raise member.ask_for_failure(
                        ",".join(map(str, ranks)), f"waited {cluster.timeouts.peer:.0f} s for a snapshot"
                    ) from None


def _check_types(snapshot: HeldSnapshot, targets: Mapping[str, Target]) -> None:
    """Raise an error if the leaves of a snapshot differ from the targets."""
    differences = []
    for name in sorted({*targets, *snapshot.types, *snapshot.values}):
        if name not in targets:
            differences.append(f"{name!r} is not in `like`")
        elif name in snapshot.types:
            target, (shape, dtype) = targets[name], snapshot.types[name]
            shape = shape[:-1] if is_key(target.dtype) else shape
            is_dtype = is_key(target.dtype) or target.dtype == dtype
            if target.sharding is None or target.shape != shape or not is_dtype:
                differences.append(f"{name!r} is {dtype}[{','.join(map(str, shape))}], and {target} in `like`")
        elif name not in snapshot.values:
            differences.append(f"{name!r} is not in the snapshot")
    if differences:
        raise CheckpointMismatch(
            f"the snapshot of step {snapshot.step} differs from `like`: {'; '.join(differences)}", tuple(differences)
        )


def _needed(snapshot: HeldSnapshot, targets: Mapping[str, Target]) -> list[BlockKey]:
    """Return the blocks from which the shards of this process are assembled."""
    needed: set[BlockKey] = set()
    for name, target in targets.items():
        if name in snapshot.types:
            shape, _ = snapshot.types[name]
            for box in devices_by_box(shape, _words_sharding(target)):
                needed.update(overlapping(box, snapshot.holders, name))
    return sorted(needed)


def _restored(name: str, target: Target, snapshot: HeldSnapshot) -> Any:
    """Return a leaf: assembled from blocks, or this process's own."""
    if name in snapshot.values:
        value = snapshot.values[name]
        if target.sharding is None:
            return value
        return _as_key(device_put(value, _words_sharding(target)), target)
    shape, dtype = snapshot.types[name]
    own = {box: data for (leaf, box), data in snapshot.blocks.items() if leaf == name}
    words = make_array_from_callback(
        shape,
        _words_sharding(target),
        lambda index: assemble(
            box_of([slice(*part.indices(n)) for part, n in zip(index, shape, strict=True)]), own, dtype
        ),
        dtype,
    )
    return _as_key(words, target)


def _words_sharding(target: Target) -> Any:
    return key_data_sharding(target.sharding) if is_key(target.dtype) and target.sharding else target.sharding


def _as_key(words: Any, target: Target) -> Any:
    return wrap_key_data(words, impl=target.dtype.impl) if is_key(target.dtype) else words

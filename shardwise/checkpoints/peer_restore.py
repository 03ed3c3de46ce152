"""Choose the snapshot that some processes restore from their memory, and send them the parts that they lack."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

from shardwise.checkpoints.peer_blocks import (
    BlockKey,
    HeldSnapshot,
    block_key,
    described_snapshot,
    pack,
    unpack,
)
from shardwise.errors import CheckpointError, CheckpointNotFound
from shardwise.processes.blob_server import BlobServer, Offer, fetch
from shardwise.runtime.box import box_text
from shardwise.runtime.group import Group


@final
class PeerRestore:
    """One restore by the processes of a group, each of which creates it and calls its methods in the same order.

    Args:
        group: the processes.
        rank: the rank of this process.
        server: the server of this process, for the parts that others lack.
    """

    def __init__(self, group: Group, rank: int, server: BlobServer):
        self._group, self._rank, self._server = group, rank, server
        self._blocks: dict[int, set[BlockKey]] = {}  # the blocks of the chosen snapshot that each process holds
        self._value_digests: dict[int, str] = {}  # of the values that each process restores

    def choose_snapshot(
        self, held: Mapping[str, HeldSnapshot], complete: int | None
    ) -> tuple[str, HeldSnapshot] | None:
        """Return the newest snapshot of which the processes hold all blocks. A process without one gets a description.

        Args:
            held: the snapshots of this process, by name. Two of one step hold the same state.
            complete: the last snapshot that all processes had completed, as far as this process knows.

        Returns:
            The name and the snapshot; None if there has been no complete one.

        Raises:
            CheckpointNotFound: if the complete ones are lost; the message says which blocks were lost with whom.
            CheckpointError: if a part does not arrive.
            PeerFailure: if a process fails.
        """
        parts = {
            name: [list(snapshot.blocks), snapshot.held_digests(), snapshot.value_digests]
            for name, snapshot in held.items()
        }
        messages = self._group.exchange([complete, parts])
        ranks = self._group.processes
        holders = {rank: message[1] for rank, message in zip(ranks, messages, strict=True) if message[1]}
        lost: dict[str, str] = {}
        for name, snapshot in held.items():
            if absent := [rank for rank, names in holders.items() if name not in names]:
                lost[name] = f"processes {absent} do not have it"
                continue
            keys = [[block_key(*key) for key in names[name][0]] for names in holders.values()]
            if missing := snapshot.missing(keys):
                lost[name] = _describe_lost(snapshot, missing)
            elif orphans := [rank for rank, source in _value_sources(ranks, holders, name).items() if source is None]:
                lost[name] = f"the values of the processes {orphans}, which may differ from those of others, are lost"
        verdicts = self._group.exchange({name: [held[name].step, lost.get(name, "")] for name in held})
        reasons = {(step, name): reason for verdict in verdicts for name, (step, reason) in verdict.items()}
        step, chosen = max((key for key, reason in reasons.items() if not reason), default=(None, ""))
        if step is None:
            if all(message[0] is None for message in messages):
                return None
            described = "; ".join(f"step {key[0]}: {reasons[key]}" for key in sorted(reasons, reverse=True))
            raise CheckpointNotFound(
                f"no snapshot is complete in the memory of the processes {ranks} ({described or 'none was saved'}): "
                "restore the newest checkpoint on disk"
            )
        for rank in ranks:
            part = holders[rank][chosen] if rank in holders else [[]]
            self._blocks[rank] = {block_key(*key) for key in part[0]}
        sources = _value_sources(ranks, holders, chosen)
        for rank in ranks:
            source = sources.get(rank)
            holder, owner = (rank, None) if source is None else source
            digests: Mapping[str, str] = holders[holder][chosen][1]
            self._value_digests[rank] = next(iter(digests.values())) if owner is None else digests[str(owner)]
        return chosen, self._describe(step, held.get(chosen), sources)

    def _describe(
        self, step: int, snapshot: HeldSnapshot | None, sources: Mapping[int, tuple[int, int] | None]
    ) -> HeldSnapshot:
        """Return the chosen snapshot. Processes that do not hold it get its description, and their values.

        Args:
            step: the step.
            snapshot: the part that this process holds.
            sources: for each process that holds no part, the process that holds its values, and the rank of the values.
        """
        offers: dict[int, list[tuple[str, bytes]]] = {}
        for rank, source in sources.items():
            if source is not None and source[0] == self._rank and snapshot is not None:
                offers[rank] = [
                    (f"description/{step}/{rank}", snapshot.description()),
                    (f"values/{step}/{rank}", snapshot.values_of[source[1]]),
                ]
        received, error = self._exchange(offers)
        self._group.agree(error)
        if snapshot is None:
            description, packed = received
            snapshot = described_snapshot(step, description, self._rank, packed)
        return snapshot

    def keep_values(self, restored: HeldSnapshot, protected: HeldSnapshot) -> None:
        """Let the snapshot of a restored state keep the values of other processes, which it copies again only later.

        Args:
            restored: the snapshot from which the state is restored.
            protected: the new snapshot of the state.
        """
        protected.value_digests.update(self._value_digests)
        for rank, digest in restored.held_digests().items():
            if self._value_digests.get(rank) == digest:
                protected.values_of.setdefault(rank, restored.values_of[rank])

    def fetch_blocks(self, snapshot: HeldSnapshot, needed: Iterable[BlockKey]) -> None:
        """Add the blocks that this process needs to its part of the snapshot.

        It keeps those that have arrived also if a process fails, perhaps the only other one that has them.

        Raises:
            CheckpointError: if they do not arrive at a process.
            PeerFailure: if a process fails.
        """
        requests: dict[int, list[BlockKey]] = {}
        for key in needed:
            if key not in snapshot.blocks:
                holders = [rank for rank in self._group.processes if key in self._blocks[rank]]
                requests.setdefault(holders[self._rank % len(holders)], []).append(key)
        messages = self._group.exchange({str(rank): keys for rank, keys in requests.items()})
        offers: dict[int, list[tuple[str, bytes]]] = {}
        for rank, message in zip(self._group.processes, messages, strict=True):
            if keys := [block_key(*each) for each in message.get(str(self._rank), [])]:
                content = pack([(key, snapshot.blocks[key]) for key in keys])
                offers[rank] = [(f"restore/{snapshot.step}/{rank}", content)]
        received, error = self._exchange(offers)
        for content in received:
            snapshot.blocks.update(unpack(content))
        self._group.agree(error)

    def _exchange(self, contents: Mapping[int, list[tuple[str, bytes]]]) -> tuple[list[bytes], CheckpointError | None]:
        """Send named byte strings to other processes, by rank. Return those for this one, and why some are missing."""
        offers: dict[str, Any] = {
            str(rank): [[name, asdict(self._server.offer(name, content, {rank}))] for name, content in each]
            for rank, each in contents.items()
        }
        received = []
        error: CheckpointError | None = None
        for message in self._group.exchange(offers):
            for name, offer in message.get(str(self._rank), []):
                try:
                    received.append(fetch(Offer(**offer), name, self._rank))
                except OSError as failure:
                    error = CheckpointError(f"parts of the snapshot did not arrive: {failure}")
        return received, error


def _value_sources(
    ranks: Sequence[int], holders: Mapping[int, Mapping[str, Any]], name: str
) -> dict[int, tuple[int, int] | None]:
    """Return which process holds the values of each process without a snapshot.

    Args:
        ranks: the processes.
        holders: the parts of the processes that hold snapshots, by rank and name.
        name: the name of the snapshot.

    Returns:
        For each process without a snapshot, the rank of a holder, and that of the values, which are its own or equal to
        them; None if there are none. A process that did not take the snapshot has no values of its own: it gets those
        of the others if they are all equal.
    """
    held = [(rank, int(owner), digest) for rank, names in holders.items() for owner, digest in names[name][1].items()]
    digests: dict[str, str] = {}  # of the processes that took the snapshot; none if it is not complete
    for names in holders.values():
        digests |= names[name][2]
    sources: dict[int, tuple[int, int] | None] = {}
    for rank in ranks:
        if rank not in holders:
            accepted = {digests[str(rank)]} if str(rank) in digests else set(digests.values())
            suitable = ((holder, owner) for holder, owner, digest in held if owner == rank or accepted == {digest})
            sources[rank] = next(suitable, None)
    return sources


def _describe_lost(snapshot: HeldSnapshot, missing: list[BlockKey]) -> str:
    name, box = missing[0]
    more = f" and {len(missing) - 1} more blocks" if len(missing) > 1 else ""
    return f"{name!r} {box_text(box)}, which the processes {list(snapshot.holders[missing[0]])} held{more}, is lost"

"""Connect processes that run different programs of one computation, and check that they agree on it."""

import secrets
from collections.abc import Sequence

from shardwise.errors import ProgramMismatch
from shardwise.processes.channels import Channels
from shardwise.runtime.cluster import cluster
from shardwise.runtime.group import Group


def connect_channels(name: str, processes: Sequence[int]) -> Channels:
    """Connect this process to others, which call this too.

    Args:
        name: the computation, for errors.
        processes: the ranks of the processes, in ascending order; this process is one of them.

    Raises:
        PeerFailure: if a process fails, or does not come in time.
    """
    assert cluster.member is not None
    group = _group(name, processes)
    channels = Channels(cluster.member, cluster.timeouts.peer)
    messages = group.exchange({"address": channels.address, "secret": secrets.token_hex(16)})
    addresses = {
        rank: (str(message["address"][0]), int(message["address"][1]))
        for rank, message in zip(group.processes, messages, strict=True)
    }
    channels.connect(addresses, bytes.fromhex(messages[0]["secret"]))
    return channels


def check_agreement(name: str, processes: Sequence[int], description: str) -> None:
    """Check that processes describe a computation in the same way. All of them call this.

    Args:
        name: the computation, for errors.
        processes: the ranks of the processes, in ascending order; this process is one of them.
        description: the properties that must be equal, one per line.

    Raises:
        PeerFailure: if a process fails, or does not come in time.
        ProgramMismatch: if the descriptions differ; it shows the first line that does.
    """
    group = _group(name, processes)
    descriptions = group.exchange(description)
    for rank, other in zip(group.processes, descriptions, strict=True):
        if other != descriptions[0]:
            pairs = zip(descriptions[0].splitlines(), other.splitlines(), strict=False)
            ours, theirs = next(((a, b) for a, b in pairs if a != b), (descriptions[0], other))
            raise ProgramMismatch(
                f"the processes disagree about {name}. Process {group.processes[0]}: {ours}. Process {rank}: {theirs}. "
                "Every process must use the same arguments."
            )


def _group(name: str, processes: Sequence[int]) -> Group:
    return Group(name, processes=processes, advice=f"Every process must call {name}, in the same order")

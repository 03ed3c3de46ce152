"""Identity of a checkpoint: detects whether two reads of one path read the same checkpoint.

A writer may delete a step, or replace it, while another process reads it.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.checkpoints.location import MANIFEST, Location
from shardwise.checkpoints.manifest import LARGEST_MANIFEST
from shardwise.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint


def identity_of(location: Location) -> str | None:
    """Return a digest of a checkpoint's location and manifest; None if there is no checkpoint.

    An invalid manifest has an identity too.

    Raises:
        CheckpointError: if it cannot be read.
    """
    try:
        data = location.data()
        content = None if data is None else data.read(MANIFEST, LARGEST_MANIFEST)
        if content is None and (data is None or location.data() is None):
            return None
    except CorruptCheckpoint as error:
        return hashlib.sha256(str(error).encode()).hexdigest()
    return hashlib.sha256(f"{data}\n".encode() + (content or b"")).hexdigest()


@contextmanager
def check_unchanged(location: Location, identity: str | None) -> Iterator[None]:
    """Return a context for reading a checkpoint, which detects whether the checkpoint is deleted or replaced meanwhile.

    Args:
        location: the checkpoint.
        identity: its identity; None if there was no checkpoint, in which case nothing is checked.

    Raises:
        CheckpointNotFound: if the context fails because the checkpoint was deleted, or if it was replaced.
    """
    try:
        yield
    except Exception as error:
        if identity is not None and _current_identity(location, identity) != identity:
            raise _deleted(location) from error
        raise
    if identity is not None and _current_identity(location, identity) not in (identity, None):
        raise _deleted(location)  # replaced; if it was deleted instead, all blocks were read before


def _current_identity(location: Location, before: str) -> str | None:
    """Return the current identity of a checkpoint; `before` if it cannot be read."""
    try:
        return identity_of(location)
    except CheckpointError:
        return before


def _deleted(location: Location) -> CheckpointNotFound:
    return CheckpointNotFound(
        f"{location} was deleted or replaced while it was read: another program writes to this folder. Read a later "
        "step, or let that program keep more steps."
    )

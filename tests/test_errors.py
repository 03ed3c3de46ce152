"""Exceptions that travel between processes are equal after pickling."""

import pickle

import pytest

from shardwise.errors import DataStateMismatch, EndOfDataError, PeerFailure


@pytest.mark.parametrize(
    "error",
    [
        PeerFailure(1, 7, "it was killed", "by signal 9"),
        EndOfDataError(3, 5),
        DataStateMismatch("the seeds differ", ("seed",)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickling_keeps_the_message_and_the_attributes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)

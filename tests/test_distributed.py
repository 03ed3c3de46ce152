"""The public functions of `distributed` that need no other process."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import JaxRuntimeError, PeerFailure, ProgramMismatch, RendezvousError


def test_shutdown_needs_initialize():
    assert not sw.distributed.is_initialized()
    with pytest.raises(RuntimeError, match=r"distributed\.shutdown needs distributed\.initialize first"):
        sw.distributed.shutdown()


def test_report_step_needs_an_integer():
    sw.distributed.report_step(np.int64(3))
    for step in ("x", 1.5, None):
        with pytest.raises(TypeError, match="report_step needs the number of the step, an integer, not"):
            sw.distributed.report_step(step)


def test_a_peer_failure_says_which_process_and_step():
    failure = PeerFailure(3, 17, "it was killed", "  File 'train.py'\n")
    assert isinstance(failure, JaxRuntimeError)
    assert (failure.rank, failure.step) == (3, 17)
    assert str(failure) == "process 3 failed after step 17: it was killed\n  File 'train.py'"
    assert str(PeerFailure(-1, None, "nobody answers")) == "a process failed: nobody answers"
    assert issubclass(ProgramMismatch, JaxRuntimeError)
    assert issubclass(RendezvousError, RuntimeError)

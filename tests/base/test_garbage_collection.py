"""The pause of the garbage collector."""

import gc

import pytest

from shardwise.base.garbage_collection import pauses_garbage_collection


def test_the_collector_is_paused_in_the_function_and_resumed_after_an_error():
    @pauses_garbage_collection
    def fail():
        assert not gc.isenabled()
        raise ValueError

    assert gc.isenabled()
    with pytest.raises(ValueError):
        fail()
    assert gc.isenabled()


def test_a_collector_that_the_user_disabled_stays_disabled():
    gc.disable()
    try:
        pauses_garbage_collection(gc.isenabled)()
        assert not gc.isenabled()
    finally:
        gc.enable()

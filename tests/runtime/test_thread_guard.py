"""The thread guard allows programs on several processes in one thread only."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from shardwise.runtime.thread_guard import guard

CLIENT = SimpleNamespace(process_index=lambda: 0)
DEVICES = [SimpleNamespace(client=CLIENT, process_index=index) for index in (0, 1)]


def run_in_thread(function):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def test_only_the_thread_that_set_the_guard_may_launch():
    run = guard.guarded(sum, DEVICES)
    with guard.set(True):
        assert run([1, 2]) == 3
        with pytest.raises(
            RuntimeError, match="launched in another thread than the one where the thread guard was set"
        ):
            run_in_thread(lambda: run([1, 2]))
        with guard.set(False):
            assert run_in_thread(lambda: run([1, 2])) == 3
    assert run_in_thread(lambda: run([1, 2])) == 3


def test_programs_of_one_process_are_not_checked():
    assert guard.guarded(sum, DEVICES[:1]) is sum


def test_two_threads_cannot_set_the_guard():
    def set_again():
        with guard.set(True):
            pass

    with guard.set(True), pytest.raises(RuntimeError, match="another thread has set the thread guard"):
        run_in_thread(set_again)

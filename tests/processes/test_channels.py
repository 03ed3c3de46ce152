"""Channels between processes, with members in threads of this process."""

import socket
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from shardwise.errors import PeerFailure
from shardwise.processes.channels import Channels
from tests.processes.members import WAIT, coordinator, join

SECRET = b"s" * 16


@contextmanager
def connected(count, timeout=WAIT, secrets=None, before_connect=lambda addresses: None):
    """Yield the members and channels of some processes, and the errors of those that could not connect."""
    with coordinator(count) as server:
        members = join(server, range(count), num_processes=count)
        channels = [Channels(member, timeout) for member in members]
        addresses = {rank: each.address for rank, each in enumerate(channels)}
        before_connect(addresses)
        errors = {}

        def connect(rank):
            try:
                channels[rank].connect(addresses, secrets[rank] if secrets else SECRET)
            except Exception as error:
                errors[rank] = error

        threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        try:
            yield members, channels, errors
        finally:
            for each in channels:
                each.close()
            for member in members:
                member.close()


def numbers(count, start=0):
    return ((np.arange(count) + start) % 251).astype(np.uint8)


def test_messages_arrive_by_tag_in_any_order():
    with connected(3) as (_, channels, errors):
        assert not errors
        for source in range(3):
            for target in {0, 1, 2} - {source}:
                for index in range(4):
                    channels[source].post(target, f"{index}", lambda n=index, s=source: numbers(1000 * n, s))
        for target in range(3):
            for source in {0, 1, 2} - {target}:
                for index in (2, 0, 3, 1):
                    received = channels[target].take(source, f"{index}")
                    np.testing.assert_array_equal(received, numbers(1000 * index, source))


def test_large_messages_in_both_directions_do_not_wait_for_each_other():
    """Both exceed the buffers of the sockets, and neither side receives before it has sent."""
    large = numbers(20_000_000)
    with connected(2) as (_, channels, _):
        for source in range(2):
            channels[source].post(1 - source, "large", lambda: large)
        for target in range(2):
            np.testing.assert_array_equal(channels[target].take(1 - target, "large"), large)


def test_connections_without_the_secret_are_dropped():
    strangers = []

    def intrude(addresses):
        for greeting in (b"GET / HTTP/1.1\r\n\r\n" * 3, b"x" * 20, SECRET + b"\0\0\0\7", b""):
            stranger = socket.create_connection(addresses[0])
            stranger.sendall(greeting)
            if not greeting:
                stranger.close()
            strangers.append(stranger)

    with connected(2, before_connect=intrude) as (_, channels, errors):
        assert not errors
        channels[1].post(0, "x", lambda: numbers(3))
        np.testing.assert_array_equal(channels[0].take(1, "x"), numbers(3))
    for stranger in strangers:
        stranger.close()


def test_lost_process_is_a_failure():
    with connected(2) as (members, channels, _):
        members[1].report_exception(ValueError("broken"))
        with pytest.raises(PeerFailure, match="broken"):
            channels[0].take(1, "never")


def test_error_of_the_computation_is_a_failure_of_the_receiver():
    def fail():
        raise RuntimeError("no such value")

    with connected(2) as (_, channels, _):
        channels[1].post(0, "x", fail)
        with pytest.raises(PeerFailure, match="lost a connection"):
            channels[0].take(1, "x")


def test_process_that_sends_nothing_is_named():
    with connected(2, timeout=0.2) as (_, channels, _):
        with pytest.raises(PeerFailure, match=r"it did not send F1\.0 within 0 s") as raised:
            channels[0].take(1, "F1.0")
        assert raised.value.rank == 1

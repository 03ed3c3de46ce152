"""Framing, decoding and addresses of the control channel."""

import dataclasses

import pytest

from shardwise.processes.protocol import (
    CallbackResult,
    CallbacksEnded,
    Failure,
    Goodbye,
    Hello,
    LineBuffer,
    Message,
    Progress,
    ProtocolError,
    decode,
    encode,
    join_address,
    resolve,
    split_address,
    tokens_match,
)

MESSAGES = [
    Hello("secret", 1, 3, 4, "host", 17, {"XLA_FLAGS": "--a=1"}),
    Progress(None),
    Progress(7, {"0,1": [64, 2**63 + 5, 3]}, True),
    Failure(1, None, "killed", "line 1\nline 2"),
    CallbacksEnded("0,1", 3, None, "", ""),
    CallbackResult("0,1", 3, 1, 7, "a callback raised ValueError", "line 1\nline 2"),
    Goodbye(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_that_decodes_to_it(message):
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_every_message_type_is_a_frozen_dataclass():
    for message_type in Message.types.values():
        assert dataclasses.is_dataclass(message_type)
        assert message_type.__dataclass_params__.frozen


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r",
        b"\x16\x03\x01\x02\x00",
        b"null",
        b"[]",
        b"{}",
        b'{"type": 3}',
        b'{"type": "Message"}',
        b'{"type": "Goodbye", "more": 1}',
        b'{"type": "Progress", "step": "7", "launches": {}, "at_step": false}',
        b'{"type": "Progress", "step": true, "launches": {}, "at_step": false}',
        b'{"type": "Progress", "step": 7, "launches": {"0,1": [1.5, 2, 3]}, "at_step": false}',
        b'{"type": "Progress", "step": 7, "launches": {"0,1": [1]}, "at_step": false}',
        b'{"type": "Failure", "rank": 1, "step": null, "reason": "x"}',
        b'{"type": "Hello", "token": null}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_message_are_an_error(line):
    with pytest.raises(ProtocolError):
        decode(line)


def test_lines_are_split_wherever_the_bytes_are_cut():
    data = b"one\ntwo\n\nthree\n"
    for size in range(1, len(data) + 1):
        buffer = LineBuffer(100)
        lines = [line for start in range(0, len(data), size) for line in buffer.add(data[start : start + size])]
        assert lines == [b"one", b"two", b"", b"three"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nshort\n"])
def test_a_long_line_is_an_error(end):
    buffer = LineBuffer(10)
    buffer.add(b"12345")
    with pytest.raises(ProtocolError, match="more than 10 bytes"):
        buffer.add(b"678901" + end)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("node-7.cluster:1234", "node-7.cluster", 1234), ("[::1]:5", "::1", 5)],
)
def test_addresses(address, host, port):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "host:", ":1234", "host:port", "host:70000", "host:-1", "::1:5", "http://host:1", 7, "a b:1"],
)
def test_malformed_addresses_are_an_error(address):
    with pytest.raises(ValueError, match=r"coordinator_address must be host:port, not"):
        split_address(address)


def test_an_unknown_host_is_an_error():
    with pytest.raises(ValueError, match=r"the host 'no\.such\.host\.invalid' cannot be resolved"):
        resolve("no.such.host.invalid", 1)


def test_tokens():
    assert tokens_match("", "")
    assert tokens_match("geheim ü", "geheim ü")
    assert not tokens_match("", "secret")

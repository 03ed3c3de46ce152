"""Hostile JSON is an error."""

import pytest

from shardwise.checkpoints.untrusted_json import parse_json
from shardwise.errors import CorruptCheckpoint


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'{"a": 1, "a": 2}', b"\xff", b""])
def test_hostile_json_is_an_error(text):
    with pytest.raises(CorruptCheckpoint, match="the file is not JSON"):
        parse_json(text, "the file")


def test_json_of_too_many_values_is_not_parsed(monkeypatch):
    monkeypatch.setattr("shardwise.checkpoints.untrusted_json._MOST_VALUES", 100)
    assert parse_json(b"[" + b"{}," * 49 + b"{}]", "the file") == [{}] * 50
    with pytest.raises(CorruptCheckpoint, match="has more than 100 JSON values"):
        parse_json(b"[" + b"{}," * 60 + b"{}]", "the file")

"""`--failures` of `shardwise simulate`: its values, and its errors."""

import pytest

import shardwise as sw
from shardwise.launch.failure_options import parse_failures
from shardwise.launch.load_target import CommandError


def test_fields_are_parsed():
    assert parse_failures("days=30,spare_nodes=4,write_seconds=1.5") == sw.Failures(
        days=30, spare_nodes=4, write_seconds=1.5
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day=54", "Did you mean 'days'"),
        ("", "write NAME=VALUE,…, such as days=54,spare_nodes=8. The names are: days, per_device_day"),
        ("days=1,days=2", "has 'days' twice"),
        ("days=long", "'long' is not a number"),
        ("days=[1]", "--failures: Failures: days must be a number"),
        ("days=-1", "--failures: Failures: days must be finite and not negative"),
        ("policies=1", "The names are"),
    ],
)
def test_errors(text, message):
    with pytest.raises(CommandError, match=message.replace("[", r"\[")):
        parse_failures(text)

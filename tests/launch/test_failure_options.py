"""`--failures` of `shardwise simulate`: its values, and its errors."""

import pytest

import shardwise as sw
from shardwise.launch.failure_options import parse_failures, with_failures
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


def test_too_many_failures_are_an_error_of_the_command():
    x = sw.ShapeDtypeStruct((8, 8), "float32")
    run = sw.simulate(lambda x: x @ x, hardware="h100")(x)
    assert with_failures(run, None) is run
    with pytest.raises(CommandError, match=r"--failures: Failures: .* interruptions are expected"):
        with_failures(run, sw.Failures(per_device_day=1e9))

"""Numbers from outside: options of commands, arguments of `distributed.initialize`, and variables."""

import numpy as np
import pytest

from shardwise import distributed
from shardwise.processes.number_checks import check_integer, check_seconds
from shardwise.processes.variables import Variables

TIMEOUTS = ["initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds", "peer_timeout"]
PROCESS = {"coordinator_address": "127.0.0.1:1", "num_processes": 1, "process_id": 0}


def test_numbers_in_range_are_returned():
    assert check_integer("count", np.int64(3), 1, 3) == 3
    assert check_seconds("time", np.float32(0.5)) == check_seconds("time", 0.5) == 0.5
    assert check_seconds("time", 0, minimum=0) == 0


@pytest.mark.parametrize("value", [0, 4, -1, 10**30])
def test_integers_out_of_range(value):
    with pytest.raises(ValueError, match=f"count must be from 1 to 3, not {value}"):
        check_integer("count", value, 1, 3)


@pytest.mark.parametrize("value", [1.0, "1", None, True, float("nan")])
def test_values_that_are_not_integers(value):
    with pytest.raises(TypeError, match="count must be an int, not"):
        check_integer("count", value, 1, 3)


@pytest.mark.parametrize("name", TIMEOUTS)
@pytest.mark.parametrize(
    "value",
    [0, -1, float("nan"), float("inf"), -float("inf"), 1e9, 10**400],
    ids=["0", "-1", "nan", "inf", "-inf", "1e9", "huge"],
)
def test_timeouts_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be from (1|0\.001) to 100000000 seconds, not"):
        distributed.initialize(**PROCESS, **{name: value})


@pytest.mark.parametrize("name", TIMEOUTS)
@pytest.mark.parametrize("value", ["5", True, [1], 1j])
def test_timeouts_that_are_not_numbers(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number of seconds, not"):
        distributed.initialize(**PROCESS, **{name: value})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"local_device_ids": -1}, ValueError, "local_device_ids must be from 0 to 65535, not -1"),
        ({"local_device_ids": [0, 0]}, ValueError, "local_device_ids must be distinct"),
        ({"local_device_ids": []}, ValueError, "local_device_ids must be distinct GPUs of this host, and at least one"),
        ({"local_device_ids": "01"}, TypeError, "local_device_ids must be an int, not '0'"),
        ({"local_device_ids": 1.5}, TypeError, "local_device_ids must be an int, not 1.5"),
        ({"partition_index": -1}, ValueError, "partition_index must be from 0 to 65535, not -1"),
        ({"slice_index": 0.5}, TypeError, "slice_index must be an int, not 0.5"),
        ({"num_processes": 10**6}, ValueError, "num_processes must be from 1 to 65536, not 1000000"),
        ({"process_id": 2.0}, TypeError, "process_id must be an int"),
    ],
)
def test_wrong_numbers_of_initialize(arguments, error, message):
    with pytest.raises(error, match=message):
        distributed.initialize(**{**PROCESS, **arguments})


@pytest.mark.parametrize("text", ["0", "0.0", "nan", "inf", "-1", "1e3", "999999999", "9" * 5000])
def test_variables_of_seconds(text):
    with pytest.raises(ValueError, match=r"PEER=.*seconds"):
        Variables({"PEER": text}).seconds("PEER")

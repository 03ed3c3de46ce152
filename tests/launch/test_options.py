"""Options of a launch: ranks, and errors that name the option."""

import pytest

from shardwise.launch.options import LaunchOptions

COMMAND = ["python", "train.py"]


def test_ranks_of_a_node():
    options = LaunchOptions(COMMAND, 4, nodes=3, node_rank=2, coordinator="host:1234")
    assert list(options.ranks) == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"processes": 0}, "-n"),
        ({"devices_per_process": 0}, "--devices-per-process"),
        ({"node_rank": 1}, r"--node-rank \(with --nodes 1\)"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"spares": -1}, "--spares"),
        ({"nodes": 2, "coordinator": "host:1", "spares": 1}, "--spares needs one node"),
        ({"processes": 1, "spares": 1}, "--spares needs -n 2 or more, because the state of a single process is lost"),
        ({"min_processes": 2}, "--min-processes needs --spares"),
        ({"spares": 1, "min_processes": 3}, r"--min-processes \(with -n 2\)"),
        ({"replace_stragglers": True}, "--replace-stragglers needs --spares"),
        ({"timeout": 0.0}, "--timeout"),
        ({"coordinator": "host"}, "--coordinator"),
        ({"nodes": 2}, "--nodes needs --coordinator host:port"),
        ({"nodes": 2, "coordinator": "host:1", "max_restarts": 1}, "--max-restarts needs one node"),
    ],
)
def test_errors_name_the_option(options, text):
    with pytest.raises(ValueError, match=text):
        LaunchOptions(COMMAND, **{"processes": 2, **options})

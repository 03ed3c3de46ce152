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
        ({"nodes": 2, "coordinator": "host:1", "spares": 1}, "several nodes needs SHARDWISE_COORDINATOR_TOKEN"),
        ({"processes": 1, "spares": 1}, "--spares needs -n 2 or more, or two nodes"),
        ({"min_processes": 2}, "--min-processes needs --spares"),
        ({"spares": 1, "min_processes": 3}, r"--min-processes \(with -n 2\)"),
        ({"replace_stragglers": True}, "--replace-stragglers needs --spares"),
        ({"spare_nodes": 1}, "--spare-nodes needs --spares"),
        ({"spares": 1, "spare_nodes": 1}, r"--spare-nodes \(with --nodes 1\) must be from 0 to 0"),
        ({"timeout": 0.0}, "--timeout"),
        ({"coordinator": "host"}, "--coordinator"),
        ({"nodes": 2}, "--nodes needs --coordinator host:port"),
        ({"nodes": 2, "coordinator": "host:0"}, "and a port that is not 0"),
        ({"nodes": 2, "coordinator": "host:1", "max_restarts": 1}, "--max-restarts needs one node"),
    ],
)
def test_errors_name_the_option(options, text):
    with pytest.raises(ValueError, match=text):
        LaunchOptions(COMMAND, **{"processes": 2, **options})


def test_numbers_of_several_nodes(monkeypatch):
    monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", "secret")
    options = {"nodes": 2, "coordinator": "host:1", "spares": 0}
    assert LaunchOptions(COMMAND, 1, **options, min_processes=2).spares == 0, (
        "a single process of each node has a partner"
    )
    with pytest.raises(ValueError, match=r"--min-processes \(with -n 2 --nodes 2\) must be from 1 to 4"):
        LaunchOptions(COMMAND, 2, **options, min_processes=5)
    with pytest.raises(
        ValueError, match=r"--min-processes \(with -n 2 --nodes 2 --spare-nodes 1\) must be from 1 to 2"
    ):
        LaunchOptions(COMMAND, 2, **options, spare_nodes=1, min_processes=3)
    with pytest.raises(ValueError, match="the state of a single process is lost with it"):
        LaunchOptions(COMMAND, 1, **options, spare_nodes=1)

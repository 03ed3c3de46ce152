"""partners: on other hosts, if there are several."""

from shardwise.processes.partners import failure_domain, partners


def test_partners_are_on_other_hosts():
    assert partners({0: "a", 1: "a", 2: "a"}) == {0: 1, 1: 2, 2: 0}
    assert partners({0: "a", 1: "a", 2: "b", 3: "b"}) == {0: 2, 1: 3, 2: 0, 3: 1}
    assert partners({0: "a", 1: "b", 2: "a", 3: "c"}) == {0: 1, 2: 1, 1: 3, 3: 0}
    assert partners({3: "a", 5: "a"}) == {3: 5, 5: 3}
    assert partners({3: "a"}) == {}


def test_the_nodes_of_launchers_are_failure_domains():
    assert failure_domain({"SHARDWISE_NODE_RANK": "1"}, "10.0.0.1") == "node 1"
    assert failure_domain({}, "10.0.0.1") == failure_domain({"SHARDWISE_NODE_RANK": ""}, "10.0.0.1") == "10.0.0.1"

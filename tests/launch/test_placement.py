"""placement: ranks and devices of the processes of a generation, on one node and on several."""

from shardwise.launch.placement import place_devices, place_ranks


def test_a_spare_of_one_node_takes_the_free_rank():
    def node_of(number):
        return 0

    assert place_ranks({}, [0, 1, 2], 3, node_of, 3) == {0: 0, 1: 1, 2: 2}
    assert place_ranks({0: 0, 2: 2}, [3, 4], 3, node_of, 3) == {0: 0, 2: 2, 3: 1}
    assert place_ranks({0: 0, 2: 2}, [], 2, node_of, 3) == {0: 0, 2: 1}, "a smaller generation has the ranks 0 and 1"


def test_a_rank_stays_on_its_node_if_that_has_a_spare():
    nodes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 1, 6: 2, 7: 2, 8: 2}

    def ranks(old, new, size=4):
        return place_ranks(old, new, size, nodes.__getitem__, 2)

    assert ranks({}, [0, 1, 2, 3]) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert ranks({0: 0, 1: 1, 2: 2}, [4, 5]) == {0: 0, 1: 1, 2: 2, 5: 3}
    assert ranks({1: 1, 2: 2, 3: 3}, [4, 5]) == {4: 0, 1: 1, 2: 2, 3: 3}
    assert ranks({0: 0, 1: 1}, [4, 6, 7, 8]) == {0: 0, 1: 1, 6: 2, 7: 3}, "of the node on which most processes wait"
    assert ranks({2: 2, 3: 3}, [4], size=3) == {2: 2, 3: 0, 4: 1}, "processes with the state take part"


def test_processes_keep_their_devices():
    nodes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 1}

    def indices(ranks, old):
        return place_devices(ranks, old, nodes.__getitem__)

    first = indices({0: 0, 1: 1, 2: 2, 3: 3}, {})
    assert first == {0: 0, 1: 1, 2: 0, 3: 1}
    assert indices({0: 0, 1: 1, 2: 2, 5: 3}, first) == {0: 0, 1: 1, 2: 0, 5: 1}, "those of the process that failed"
    assert indices({0: 0, 1: 1, 2: 2, 4: 3}, first) == {0: 0, 1: 1, 2: 0, 4: 2}, "a spare of another node"
    assert indices({0: 1, 4: 0}, first) == {0: 0, 4: 1}

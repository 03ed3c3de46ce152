"""placement: which process gets which rank, and which devices of its node, in a generation of a program."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence


def place_ranks(
    old: Mapping[int, int], new: Sequence[int], size: int, node_of: Callable[[int], int], processes: int
) -> dict[int, int]:
    """Return the rank of each process of a generation.

    Processes of the last generation keep their ranks, if these exist. A free rank goes to a process of the node that
    had it at the start, or else of the node on which most processes wait.

    Args:
        old: the ranks of the processes of the last generation that wait; at most `size` of them.
        new: the other processes that wait.
        size: the number of ranks; at most the number of processes that wait.
        node_of: the node of a process.
        processes: the number of processes of each node at the start.
    """
    ranks = {number: rank for number, rank in old.items() if rank < size}
    displaced, others = [number for number in old if number not in ranks], list(new)
    for rank in sorted(set(range(size)) - set(ranks.values())):
        candidates = displaced or others  # the processes of the last generation have the state
        waiting = Counter(map(node_of, candidates))
        home = rank // processes

        def preference(number: int, home: int = home, waiting: Counter[int] = waiting) -> tuple[bool, int, int]:
            return node_of(number) != home, -waiting[node_of(number)], number

        number = min(candidates, key=preference)
        candidates.remove(number)
        ranks[number] = rank
    return ranks


def place_devices(ranks: Mapping[int, int], old: Mapping[int, int], node_of: Callable[[int], int]) -> dict[int, int]:
    """Return the index of each process among those of its node, which selects its devices.

    Args:
        ranks: the rank of each process.
        old: the indices in the last generation, which its processes keep.
        node_of: the node of a process.
    """
    indices = {number: old[number] for number in ranks if number in old}
    for number in sorted(ranks.keys() - indices.keys(), key=ranks.__getitem__):
        taken = {index for other, index in indices.items() if node_of(other) == node_of(number)}
        indices[number] = next(index for index in range(len(taken) + 1) if index not in taken)
    return indices

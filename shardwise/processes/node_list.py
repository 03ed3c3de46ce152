"""Slurm's compressed lists of host names: `node[01-03,7],login` is node01, node02, node03, node7, login."""

import re
from itertools import product

# More hosts than any cluster has. A longer list is an error, so that it cannot exhaust memory.
MAX_HOSTS = 2**20

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def expand_node_list(text: str, source: str = "node list") -> list[str]:
    """Return the host names of a Slurm node list, in order.

    Args:
        text: names separated by commas; a name may have one or more ranges of numbers in brackets.
        source: the variable that holds the list, for errors.

    Raises:
        ValueError: if the text is not a node list.
    """
    hosts: list[str] = []
    for name in _split_names(text, source):
        # Literal parts are at even positions, the contents of brackets at odd positions.
        parts = re.split(r"\[([^\[\]]*)\]", name)
        choices = [_numbers(part, text, source) if place % 2 else [part] for place, part in enumerate(parts)]
        if any("[" in part or "]" in part for part in parts[::2]):
            raise ValueError(f"{source}={text}: brackets are not balanced")
        count = 1
        for alternatives in choices:
            count *= len(alternatives)
        if len(hosts) + count > MAX_HOSTS:
            raise ValueError(f"{source}={text}: the list has more than {MAX_HOSTS} hosts")
        hosts += ["".join(combination) for combination in product(*choices)]
    return hosts


def _split_names(text: str, source: str) -> list[str]:
    """Split at the commas outside brackets."""
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", text)]
    if not all(names) or any(re.search(r"\s", name) for name in names):
        raise ValueError(f"{source}={text}: a host name is empty or contains blanks")
    return names


def _numbers(ranges: str, text: str, source: str) -> list[str]:
    """Return the numbers of `01-03,7`. The numbers of a range have the width of its start."""
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{source}={text}: [{ranges}] is not a list of numbers and ranges such as [01-03,7]")
        start, stop = match[1], match[2] or match[1]
        if not 0 <= int(stop) - int(start) < MAX_HOSTS:
            raise ValueError(f"{source}={text}: the range {item} is empty or has more than {MAX_HOSTS} numbers")
        numbers += [str(index).zfill(len(start)) for index in range(int(start), int(stop) + 1)]
    return numbers

"""partners: which process keeps copies of the snapshots of another one."""

from collections.abc import Mapping

from shardwise.processes.variables import NODE_RANK


def partners(hosts: Mapping[int, str]) -> dict[int, int]:
    """Return the partner of each process, which keeps copies of its blocks: on another host, if there are several.

    The processes of a host have different partners, as far as the next host has enough processes. A single process has
    none.

    Args:
        hosts: the host or other failure domain of each process, by rank.
    """
    by_host: dict[str, list[int]] = {}
    for rank, host in sorted(hosts.items()):
        by_host.setdefault(host, []).append(rank)
    if len(hosts) == 1:
        return {}
    if len(by_host) == 1:
        ranks = sorted(hosts)
        return {rank: ranks[(position + 1) % len(ranks)] for position, rank in enumerate(ranks)}
    names = list(by_host)
    result: dict[int, int] = {}
    for index, name in enumerate(names):
        following = by_host[names[(index + 1) % len(names)]]
        result |= {rank: following[position % len(following)] for position, rank in enumerate(by_host[name])}
    return result


def failure_domain(variables: Mapping[str, str], host: str) -> str:
    """Return the domain whose processes may fail together: the node of a launcher, or the host without one.

    Args:
        variables: the environment variables of the process.
        host: the address of its host.
    """
    node = variables.get(NODE_RANK)
    return f"node {node}" if node else host

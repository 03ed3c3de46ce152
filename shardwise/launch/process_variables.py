"""The environment variables that the launcher sets in all of its processes."""

import os
from pathlib import Path

from shardwise.launch.options import LaunchOptions
from shardwise.processes import environment
from shardwise.processes.variables import (
    LAUNCHER_PID,
    NODE_RANK,
    RECORD_FOLDER,
    RESTART_COUNT,
    ROSTER,
    ROSTER_PROCESS,
    ROSTER_TOKEN,
)

# Variables of an outer launcher or user, which the processes must not inherit in addition to the launcher's own.
_OUTER_VARIABLES = tuple(
    name.replace("SHARDWISE_", prefix, 1)
    for name in (
        environment.ADDRESS,
        environment.BIND_ADDRESS,
        environment.NUM_PROCESSES,
        environment.PROCESS_ID,
        environment.LOCAL_DEVICE_IDS,
        NODE_RANK,
        ROSTER,
    )
    for prefix in ("SHARDWISE_", "JAX_")
)


def roster_variables(address: str, token: str, number: int) -> dict[str, str]:
    """Return the variables of a process that waits for its place at a roster.

    Args:
        address: the address of the roster.
        token: the secret that it expects.
        number: the number of the process.
    """
    return {ROSTER: address, ROSTER_TOKEN: token, ROSTER_PROCESS: str(number)}


def process_variables(options: LaunchOptions, restart: int, log_folder: Path | None) -> dict[str, str]:
    """Return the variables of all processes.

    Args:
        options: the options of the launch.
        restart: the number of previous attempts.
        log_folder: the folder of the log files and launch records, or None for none.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _OUTER_VARIABLES}
    variables |= {
        environment.LAUNCHER: "1",
        LAUNCHER_PID: str(os.getpid()),
        RESTART_COUNT: str(restart),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": variables.get("PYTHONFAULTHANDLER") or "1",
    }
    if log_folder is not None:
        variables.setdefault(RECORD_FOLDER, str(log_folder.absolute()))
    if options.nodes > 1:
        variables[NODE_RANK] = str(options.node_rank)
    if options.timeout is not None:
        variables[environment.PEER_TIMEOUT] = f"{options.timeout:f}"
    if options.devices_per_process is not None:
        variables["SHARDWISE_NUM_CPU_DEVICES"] = str(options.devices_per_process)
    return variables

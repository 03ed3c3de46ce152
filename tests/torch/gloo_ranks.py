"""Runs ranks of torch.distributed on this machine, over loopback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(script: str, count: int, *arguments: object) -> None:
    """Run a script in several ranks, and wait until all have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(count)]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()

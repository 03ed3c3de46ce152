"""The training program of the soak: program.py FOLDER STEPS PAUSE TIMEOUT. Each step takes PAUSE seconds or more."""

import os
import sys
import time

import shardwise as sw
from tests.multi_process.resumable import train


def main(folder: str, steps: str, pause: str, timeout: str) -> None:
    print(f"pid {os.getpid()}", flush=True)
    sw.distributed.initialize()
    train(
        folder,
        steps=int(steps),
        every_steps=5,
        before_step=lambda step, manager: time.sleep(float(pause)),
        timeout=float(timeout),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A training program under the launcher: resuming.py FOLDER FAULT. FAULT is `none` or `kill`, of process 1 in step 6.

After a restart it continues from the last checkpoint.
"""

import os
import signal
import sys

import shardwise as sw
from tests.multi_process.resumable import train


def main(folder: str, fault: str) -> None:
    sw.distributed.initialize()

    def before_step(step, manager):
        first_life = int(os.environ["SHARDWISE_RESTART_COUNT"]) == 0
        if fault == "kill" and step == 6 and first_life and sw.process_index() == 1:
            manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    train(folder, before_step=before_step)


if __name__ == "__main__":
    main(*sys.argv[1:])

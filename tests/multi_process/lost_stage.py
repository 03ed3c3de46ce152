"""A pipeline of two processes, of which one is killed or sleeps after its first step. Program: RANK PORT FAULT."""

import os
import signal
import sys
import time

import numpy as np

import shardwise as sw
from shardwise.errors import PeerFailure
from shardwise.parallel import mpmd_pipeline
from shardwise.sharding import Mesh
from tests.parallel.mpmd.language_model import batch, stages_and_params


def main():
    rank, port, fault = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sw.config.update("num_cpu_devices", 1)
    sw.distributed.initialize(f"127.0.0.1:{port}", 2, rank, peer_timeout=300 if fault == "kill" else 3)
    stages, params = stages_and_params([1, 1])
    train = mpmd_pipeline(stages, [Mesh(np.array([device]), ("data",)) for device in sw.devices()], 2)
    float(train.value_and_grad(params, *batch())[0])
    if rank == 1:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(20)  # a process that is stuck
        os._exit(0)
    try:
        train.value_and_grad(params, *batch())
    except PeerFailure as error:
        print(f"FAILURE {error.rank} {error}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""overlap_options: the compiler options with which XLA overlaps collectives with kernels on GPUs."""

import os

from shardwise.base._jaxlib import CompilerOptions
from shardwise.base.config import config
from shardwise.compiler.partition.local_program import LocalProgram

# XLA's default on GPUs is a scheduler that keeps memory low, and does not start collectives early.
_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def overlap_options(local: LocalProgram, platform: str) -> CompilerOptions:
    """Return the options that a program is compiled with besides the user's, which override them.

    Programs without collectives, programs for CPU, and options that `XLA_FLAGS` names are left alone.
    """
    named = _SCHEDULER in os.environ.get("XLA_FLAGS", "")
    if platform != "gpu" or not config.overlap_collectives or named or not local.collectives():
        return ()
    return ((_SCHEDULER, True),)

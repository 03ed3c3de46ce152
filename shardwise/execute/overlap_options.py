"""overlap_options: the compiler options with which XLA overlaps collectives with kernels on GPUs."""

import os

from shardwise.base._jaxlib import CompilerOptions
from shardwise.base.config import config
from shardwise.compiler.partition.local_program import LocalProgram

# XLA's default scheduler on GPUs minimizes memory, and does not start collectives early.
_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def overlap_options(local: LocalProgram, platform: str) -> CompilerOptions:
    """Return compiler options for a program, in addition to the user's, which take precedence.

    There are none for programs without collectives and for CPU. Options that are set in `XLA_FLAGS` are omitted.
    """
    named = _SCHEDULER in os.environ.get("XLA_FLAGS", "")
    if platform != "gpu" or not config.overlap_collectives or named or not local.collectives():
        return ()
    return ((_SCHEDULER, True),)

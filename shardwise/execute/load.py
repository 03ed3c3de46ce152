"""load: compile the StableHLO module of a partitioned program for concrete devices."""

from collections.abc import Sequence
from typing import Any

from shardwise.base._jaxlib import CompilerOptions
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.executable import Executable


def load(
    stages: Stages,
    devices: Sequence[Any],
    out_shardings: Sequence[Sharding],
    committed: bool,
    options: CompilerOptions = (),
    serialized: bytes | None = None,
) -> Executable:
    """Compile a partitioned program with XLA, or load its serialized executable.

    Args:
        stages: the partitioned program, lowered to StableHLO.
        devices: the devices that run it.
        out_shardings: the sharding of each result.
        committed: whether the results are committed to these shardings.
        options: compiler options of XLA.
        serialized: the executable of the program for these devices, as `serialize_executable` returns it.
    """
    return Executable(
        stages.module, stages.local, devices, out_shardings, committed, stages.out_types, options, serialized
    )

"""load: compile the StableHLO text of a partitioned program for concrete devices."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.pipeline import Stages
from shardwise.runtime.executable import Executable
from shardwise.runtime.sharding import Sharding


def load(
    stages: Stages,
    devices: Sequence[Any],
    out_shardings: Sequence[Sharding],
    committed: bool,
    asked: Sequence[tuple[str, str | bool | int | float]] = (),
) -> Executable:
    """The last stage: XLA compiles the text for these devices, with the options of its own that are `asked` for."""
    return Executable(stages.module, stages.local, devices, out_shardings, committed, stages.out_types, asked)

"""planned: the report of a request: what its program will do on its devices, as plain data."""

from shardwise.api.request import Request, Target, stages
from shardwise.compiler.partition.report import Report, report
from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.plan.hardware import Chip, chip, chip_of


def planned(request: Request, target: Target, compiled: Partitioned, hardware: str | Chip | None = None) -> Report:
    """The report of a request that went through every stage. `hardware`: for other chips than the target's."""
    named = chip(hardware) if isinstance(hardware, str) else hardware
    return report(
        compiled.sharded,
        compiled.plan,
        compiled.local,
        named or chip_of(target.devices[0].device_kind),
        request.names,
        compiled.module.aliases,
    )


def replanned(request: Request) -> Report:
    """The report of a request of which only the compiled program is left: plans are the same each time."""
    target = request.target()
    compiled, _ = stages(request, target)
    return planned(request, target, compiled)

"""planned: the report of a request: what its program will do on its devices, as plain data."""

from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.report.report import Report, report
from shardwise.execute.request import Request, stages

Plan = Report  # as users know it: to the compiler, a plan is the layouts that were chosen


def planned(request: Request, compiled: Partitioned, chip: Chip | None = None) -> Report:
    """The report of a request that went through every stage. `chip`: with times of other chips than it is for."""
    return report(
        compiled.sharded,
        compiled.plan,
        compiled.local,
        chip or compiled.plan.chip,
        request.names,
        compiled.module.aliases,
    )


def replanned(request: Request) -> Report:
    """The report of a request of which only the compiled program is left: plans are the same each time."""
    compiled, _ = stages(request, request.target())
    return planned(request, compiled)

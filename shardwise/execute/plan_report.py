"""planned: the report of a request: what its program will do on its devices, as plain data."""

from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.report.report import Report, report
from shardwise.execute.request import Request, partition_request

Plan = Report  # as users know it: to the compiler, a plan is the layouts that were chosen


def request_report(request: Request, compiled: Stages, chip: Chip | None = None) -> Report:
    """The report of a request that went through every stage. `chip`: with times of other chips than it is for."""
    return report(
        compiled.sharded,
        compiled.plan,
        compiled.local,
        chip or compiled.plan.chip,
        request.names,
        compiled.module.aliases,
    )


def replan_report(request: Request) -> Report:
    """The report of a request of which only the compiled program is left: plans are the same each time."""
    compiled, _ = partition_request(request, request.target())
    return request_report(request, compiled)

"""request_report: the plan of a request on its devices, as plain data."""

from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.report import Plan, report
from shardwise.compiler.stage_dump import StageDump
from shardwise.execute.request import Request, partition_request


def request_report(request: Request, stages: Stages, chip: Chip | None = None) -> Plan:
    """Return the report of a partitioned request. Times are estimated for `chip`, by default the target's chip."""
    return report(
        stages.problem,
        stages.plan,
        stages.local,
        chip or stages.plan.chip,
        request.names,
        stages.module.aliases,
        stages.partitioned,
    )


def replan_report(request: Request, chip: Chip | None = None, dump: StageDump | None = None) -> Plan:
    """Partition a request again, and return its report. Planning is deterministic.

    Args:
        request: the program and its inputs.
        chip: the chip to plan for, if it is not the chip of the target's devices.
        dump: keeps the result of every pass.
    """
    stages, _ = partition_request(request, request.target(), chip, dump)
    return request_report(request, stages)

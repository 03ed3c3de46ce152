"""A report as text: totals, inputs and outputs with their layouts, collectives costliest first, the peak of memory."""

from collections.abc import Sequence

from shardwise.compiler.ir.program import NOWHERE
from shardwise.compiler.partition.report import CollectiveRow, EndRow, Report

_SHOWN = 6  # of the values that are alive at the peak


def format_report(report: Report, advice: str = "") -> str:
    """The text that `explain` prints."""
    where = f"mesh {report.mesh}" if report.mesh.axis_names else "one device"
    total = f"{len(report.collectives)} collective{'' if len(report.collectives) == 1 else 's'}"
    lines = [
        f"{report.name} on {where}: {total}, {human_bytes(report.wire_bytes)} sent by each device",
        f"  about {human_seconds(report.seconds)} a call on {report.chip.name}, if nothing overlaps: "
        f"{human_seconds(report.compute_seconds)} of compute, "
        f"{human_seconds(report.communication_seconds)} of communication",
        "",
    ]
    lines += [_end("in", row) for row in report.inputs] + [_end("out", row) for row in report.outputs]
    if report.collectives:
        head = f"  {'collective':14} {'axes':16} {'sent':>10} {'time':>9}  {'piece':14} {'line':18} why"
        lines += ["", head, *map(_collective, report.collectives)]
    lines += ["", *_memory(report)]
    return "\n".join([*lines, *(["", f"  {advice}"] if advice else [])])


def _end(what: str, row: EndRow) -> str:
    return f"  {what:3} {row.name:24} {row.type:16} {row.layout!s:28} {shape_text(row.piece)} a device"


def _collective(row: CollectiveRow) -> str:
    why = f"{row.reason or 'you wrote it'} ({row.times} times)" if row.times > 1 else row.reason or "you wrote it"
    axes, sent, time = ",".join(row.axes), human_bytes(row.sent), human_seconds(row.seconds)
    return f"  {row.kind:14} {axes:16} {sent:>10} {time:>9}  {row.type:14} {row.source!s:18} {why}"


def _memory(report: Report) -> list[str]:
    found = report.timeline
    during = ""
    if found.steps:
        step = found.steps[found.peak]
        during = f", while {step.op} at {step.source} runs" if step.source.file else f", while {step.op} runs"
    lines = [f"  memory: at most {human_bytes(found.peak_bytes)} a device{during}"]
    for held in found.alive[:_SHOWN]:
        line = str(held.source) if held.source != NOWHERE else ""
        lines.append(f"  {human_bytes(held.bytes):>10}  {held.what:24} {held.type:16} {line}".rstrip())
    if len(found.alive) > _SHOWN:
        rest = found.alive[_SHOWN:]
        lines.append(f"  {human_bytes(sum(held.bytes for held in rest)):>10}  in {len(rest)} smaller ones")
    return lines


def shape_text(shape: Sequence[int]) -> str:
    """`8×16`."""
    return "×".join(map(str, shape)) or "scalar"


def human_bytes(count: float) -> str:
    """1536 → 1.5 kB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def human_seconds(seconds: float) -> str:
    """0.0015 → 1.5 ms."""
    if not seconds:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e9:.1f} ns"

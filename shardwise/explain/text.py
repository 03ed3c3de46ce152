"""A report as text: totals, inputs and outputs with their layouts, collectives costliest first, the peak of memory."""

from collections.abc import Sequence

from shardwise.compiler.ir.program import NOWHERE
from shardwise.compiler.report.report import CollectiveRow, Report

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
    ends = [("in", row) for row in report.inputs] + [("out", row) for row in report.outputs]
    rows = [[what, row.name, row.type, str(row.layout), f"{shape_text(row.piece)} a device"] for what, row in ends]
    lines += _aligned(rows, (3, 24, 16, 28, 0)) if rows else []
    if report.collectives:
        heads = ["collective", "axes", "sent", "time", "piece", "line", "why"]
        lines += ["", *_aligned([heads, *map(_collective, report.collectives)], (14, 16, -10, -9, 14, 18, 0))]
    lines += ["", *_memory(report)]
    return "\n".join([*lines, *(["", f"  {advice}"] if advice else [])])


def _collective(row: CollectiveRow) -> list[str]:
    why = row.reason or "you wrote it"
    often = f"{why} ({row.times} times)" if row.times > 1 else why
    sent, time = human_bytes(row.sent), human_seconds(row.seconds)
    return [row.kind, ",".join(row.axes), sent, time, row.type, str(row.source), often]


def _aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Rows in columns of at least these widths; those that are negative stand at the right."""
    fitting = [max(abs(width), *(len(row[n]) for row in rows)) if width else 0 for n, width in enumerate(widths)]
    return [
        "  "
        + " ".join(
            f"{cell:{'>' if least < 0 else '<'}{width}}"
            for cell, width, least in zip(row, fitting, widths, strict=True)
        )
        for row in rows
    ]


def _memory(report: Report) -> list[str]:
    found = report.timeline
    during = ""
    if found.steps:
        step = found.steps[found.peak]
        during = f", while {step.op} at {step.source} runs" if step.source.file else f", while {step.op} runs"
    lines = [f"  memory: at most {human_bytes(found.peak_bytes)} a device{during}"]
    rows = [
        [human_bytes(held.bytes), held.what, held.type, str(held.source) if held.source != NOWHERE else ""]
        for held in found.alive[:_SHOWN]
    ]
    lines += [line.rstrip() for line in _aligned(rows, (-10, 24, 16, 0))] if rows else []
    if len(found.alive) > _SHOWN:
        rest = found.alive[_SHOWN:]
        lines.append(f"  {human_bytes(sum(held.bytes for held in rest)):>10} in {len(rest)} smaller ones")
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

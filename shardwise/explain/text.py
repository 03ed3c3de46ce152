"""A report as text: totals per kind and axis, layouts of inputs and outputs, collectives costliest first, memory."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwise.compiler.ir.program import NOWHERE
from shardwise.compiler.report.idle import IdleRow
from shardwise.compiler.report.report import CollectiveRow, CollectiveTotal, Plan
from shardwise.compiler.report.timeline import Step
from shardwise.explain.end_groups import MAX_SINGLE, group_by_layout

if TYPE_CHECKING:  # profiles are rare, and reading them needs numpy
    from shardwise.explain.measured_plan import MeasuredPlan, MeasuredRow

_MAX_LIVE = 6  # the most live values to list at the memory peak
_MAX_LAUNCHES = 12  # the most launches to list
_MAX_MEASURED = 20  # the most rows of a profile to list
_MAX_OPS = 3  # the most ops of such a row to list


def format_report(report: Plan, advice: Sequence[str] = (), measured: "MeasuredPlan | None" = None) -> str:
    """Format the report that `explain` prints."""
    where = f"mesh {report.mesh}" if report.mesh.axis_names else "one device"
    lines = [
        f"{report.name} on {where}: {collectives_text(report)}, {human_bytes(report.wire_bytes)} sent per device",
        f"  about {human_seconds(report.seconds)} per call on {report.chip.name}, {_time_text(report)}",
        *(f"  {idle_text(row)}" for row in report.timeline.idle),
        "",
    ]
    if len(report.collectives) > 1:
        heads = ["total", "axes", "count", "sent", "time"]
        lines += [*align([heads, *map(_total_cells, report.totals())], (14, 16, -6, -10, -9)), ""]
    lines += _end_lines(report)
    if report.collectives:
        heads = ["collective", "axes", "sent", "time", "shard", "line", "why"]
        rows, widths = [heads, *map(_collective_cells, report.collectives)], [14, 16, -10, -9, 14, 18, 0]
        if shares_launches(report):
            launches = ["launch", *(str(row.launch) for row in report.collectives)]
            rows, widths = [[launch, *row] for launch, row in zip(launches, rows, strict=True)], [-6, *widths]
        lines += ["", *align(rows, widths)]
    lines += ["", *launches] if (launches := _launch_lines(report)) else []
    lines += ["", *kernels] if (kernels := kernel_lines(report)) else []
    lines += ["", *memory_lines(report)]
    lines += ["", *_measured_lines(measured)] if measured is not None else []
    return "\n".join([*lines, *(["", *(f"  {line}" for line in advice)] if advice else [])])


def kernel_lines(report: Plan) -> list[str]:
    """Return which kernels of our own the plan has, and which of them are computed by other ops, and why."""
    counts = Counter(row.op for row in report.kernels if not row.plain_reason)
    own = []
    if report.float8_products:
        own.append(f"  matrix products: {report.products}, of which {report.float8_products} in float8")
    own += [f"  own kernels: {', '.join(f'{count} {op}' for op, count in counts.items())}"] if counts else []
    plain = dict.fromkeys(row for row in report.kernels if row.plain_reason)
    return own + [f"  {row.op} at {row.source} is computed by plain ops: {row.plain_reason}" for row in plain]


def _launch_lines(report: Plan) -> list[str]:
    """Return a line for each launch of collectives with what runs beside it, the longest exposed first.

    There are none if the hardware does not overlap communication with compute.
    """
    steps = sorted((step for step in report.timeline.steps if step.sent), key=lambda step: -step.exposed)
    if not report.chip.overlaps or not steps:
        return []
    heads = ["launch of", "sent", "time", "exposed", "line", "beside"]
    lines = align([heads, *map(launch_cells, steps[:_MAX_LAUNCHES])], (22, -10, -9, -9, 18, 0))
    if len(steps) > _MAX_LAUNCHES:
        rest = steps[_MAX_LAUNCHES:]
        exposed = human_seconds(sum(step.exposed for step in rest))
        lines.append(f"  and {count_text(len(rest), 'launch')}, of which {exposed} exposed")
    return lines


def launch_cells(step: Step) -> list[str]:
    """Return the cells of a launch: what it sends, bytes, time, exposed time, line, and what runs beside it."""
    what = f"{step.collectives} {step.op}" if step.collectives > 1 else step.op
    beside = " … ".join(f"{op} at {source}" for op, source in dict.fromkeys(step.beside)) or "nothing"
    when = {1: ", for the next iteration", -1: ", for the iteration before"}.get(step.iteration, "")
    times = f" ({step.times} times)" if step.times > 1 else ""
    return [
        what,
        human_bytes(step.sent),
        human_seconds(step.seconds),
        human_seconds(step.exposed),
        str(step.source),
        f"{beside}{when}{times}",
    ]


def _measured_lines(measured: "MeasuredPlan") -> list[str]:
    """Return a table of the kernels of a profile and their predictions, and the largest differences."""
    heads = ["measured", "line", "kernels", "planned", "predicted", "time", "difference"]
    rows = [measured_cells(row) for row in measured.rows[:_MAX_MEASURED]]
    lines = [f"  {measured_text(measured)}", "", *align([heads, *rows], (22, 18, -7, -7, -9, -9, -10))]
    if rest := measured.rows[_MAX_MEASURED:]:
        lines.append(f"  and {count_text(len(rest), 'line')}, {human_seconds(sum(row.measured for row in rest))}")
    return [*lines, "", "  largest differences:", *(f"    {difference_text(row)}" for row in measured.differences)]


def measured_text(measured: "MeasuredPlan") -> str:
    """Describe a profile: the measured and the predicted time, and how much of it has a line."""
    error = measured.predicted / measured.seconds - 1
    return (
        f"measured on {measured.device_kind}: {human_seconds(measured.seconds)} per call, "
        f"predicted {human_seconds(measured.predicted)} ({_signed(100 * error, '.1f')}%); "
        f"{100 * measured.attributed:.1f}% of the device time has a line"
    )


def measured_cells(row: "MeasuredRow") -> list[str]:
    """Return the cells of a row: ops, line, numbers of kernels, predicted and measured time, and the difference."""
    return [
        ops_text(row),
        row.line,
        str(row.measured_kernels),
        str(row.predicted_kernels),
        human_seconds(row.predicted),
        human_seconds(row.measured),
        signed_seconds(row.difference),
    ]


def difference_text(row: "MeasuredRow") -> str:
    """Describe a difference: `dot at model.py:31: predicted 1.2 ms, measured 1.9 ms, +0.7 ms`."""
    place = f"{ops_text(row)} at {row.line or 'an unknown line'}"
    predicted, seconds = human_seconds(row.predicted), human_seconds(row.measured)
    return f"{place}: predicted {predicted}, measured {seconds}, {signed_seconds(row.difference)}"


def ops_text(row: "MeasuredRow") -> str:
    """Return the names of the ops of a row, the first few."""
    more = ", …" if len(row.ops) > _MAX_OPS else ""
    return ", ".join(row.ops[:_MAX_OPS]) + more or "unknown"


def signed_seconds(seconds: float) -> str:
    """Format a difference of durations: `+0.7 ms`, `−12.0 µs`."""
    return ("−" if seconds < 0 else "+" if seconds > 0 else "") + human_seconds(abs(seconds))


def _signed(value: float, form: str) -> str:
    return f"{'−' if value < 0 else '+'}{abs(value):{form}}"


def shares_launches(report: Plan) -> bool:
    """Return whether some collectives share a launch."""
    return len(report.launches) < len(report.collectives)


def collectives_text(report: Plan) -> str:
    """Format the number of collectives, and of their launches if some share one: `9 collectives in 4 launches`."""
    count = count_text(len(report.collectives), "collective")
    return f"{count} in {count_text(len(report.launches), 'launch')}" if shares_launches(report) else count


def idle_text(row: IdleRow) -> str:
    """Describe the idle time of each device in a schedule."""
    return (
        f"{row.what} along {row.axis!r}: each device is idle in {row.idle_ticks} of {row.ticks} ticks, "
        f"{row.share:.1%} of {human_seconds(row.seconds)}, which is {human_seconds(row.idle_seconds)} per call"
    )


def _total_cells(total: CollectiveTotal) -> list[str]:
    sent, time = human_bytes(total.sent), human_seconds(total.seconds)
    return [total.kind, ",".join(total.axes), str(total.count), sent, time]


def _end_lines(report: Plan) -> list[str]:
    """Return a line per input and output, or per layout if there are many."""
    ends = (("in", report.inputs), ("out", report.outputs))
    if len(report.inputs) + len(report.outputs) > MAX_SINGLE:
        rows = [
            [direction, str(group.layout), count_text(len(group.rows), "array"), human_bytes(group.bytes), group.names]
            for direction, end_rows in ends
            for group in group_by_layout(end_rows)
        ]
        return align([["", "layout", "arrays", "per device", "names"], *rows], (3, 28, 10, -10, 0))
    rows = [
        [direction, row.name, row.type, str(row.layout), f"{shape_text(row.shard_shape)} per device"]
        for direction, end_rows in ends
        for row in end_rows
    ]
    return align(rows, (3, 24, 16, 28, 0)) if rows else []


def _collective_cells(row: CollectiveRow) -> list[str]:
    reason = row.reason or "you wrote it"
    why = f"{reason} ({row.times} times)" if row.times > 1 else reason
    sent, time = human_bytes(row.sent), human_seconds(row.seconds)
    return [row.kind, ",".join(row.axes), sent, time, row.type, str(row.source), why]


def align(rows: Sequence[Sequence[str]], min_widths: Sequence[int]) -> list[str]:
    """Align rows in columns of at least these widths. A negative width aligns right, 0 does not align."""
    widths = [max(abs(least), *(len(row[n]) for row in rows)) if least else 0 for n, least in enumerate(min_widths)]
    return [
        "  "
        + " ".join(
            f"{cell:{'>' if least < 0 else '<'}{width}}"
            for cell, width, least in zip(row, widths, min_widths, strict=True)
        )
        for row in rows
    ]


def _time_text(report: Plan) -> str:
    """Describe the components of the time of a call."""
    parts = (
        f"{human_seconds(report.compute_seconds)} of compute, "
        f"{human_seconds(report.communication_seconds)} of communication"
    )
    if report.host_copy_seconds:
        parts += f", {human_seconds(report.host_copy_seconds)} of copies from and to host memory"
    if not report.chip.overlaps:
        return f"without overlap: {parts}"
    exposed = f"with overlap: {parts}, of which {human_seconds(report.exposed_seconds)} exposed"
    if report.unscheduled is None:
        return exposed
    return f"{exposed} ({human_seconds(report.unscheduled.seconds)} per call without the schedule of communication)"


def memory_lines(report: Plan) -> list[str]:
    """Return a line with the peak memory of the plan, and lines of the largest values that are live at the peak."""
    timeline = report.timeline
    during = ""
    if timeline.steps:
        step = timeline.steps[timeline.peak]
        during = f", during {step.op} at {step.source}" if step.source.file else f", during {step.op}"
    lines = [f"  peak memory: {human_bytes(timeline.peak_bytes)} per device{during}"]
    rows = [
        [human_bytes(held.bytes), held.what, held.type, str(held.source) if held.source != NOWHERE else ""]
        for held in timeline.alive[:_MAX_LIVE]
    ]
    lines += [line.rstrip() for line in align(rows, (-10, 24, 16, 0))] if rows else []
    if len(timeline.alive) > _MAX_LIVE:
        rest = timeline.alive[_MAX_LIVE:]
        lines.append(f"  {human_bytes(sum(held.bytes for held in rest)):>10} in {len(rest)} smaller values")
    return lines


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun: `1 array`, `2 arrays`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape as `8×16`."""
    return "×".join(map(str, shape)) or "scalar"


def human_bytes(count: float) -> str:
    """Format a number of bytes with a unit: 1536 is `1.5 kB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def human_seconds(seconds: float) -> str:
    """Format a duration with a unit: 0.0015 is `1.5 ms`."""
    if not seconds:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e9:.1f} ns"

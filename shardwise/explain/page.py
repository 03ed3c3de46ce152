"""A report as one self-contained HTML page: totals, collectives, time, memory, layouts, the program."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from shardwise.compiler.ir.program import NOWHERE, Source
from shardwise.compiler.report.report import EndRow, Plan, ValueRow
from shardwise.explain.drawing import draw_layout, draw_memory, draw_mesh, draw_timeline
from shardwise.explain.end_groups import MAX_SINGLE, EndGroup, group_by_layout
from shardwise.explain.page_assets import SCRIPT, STYLE
from shardwise.explain.text import (
    collectives_text,
    difference_text,
    human_bytes,
    human_seconds,
    idle_text,
    launch_cells,
    measured_cells,
    measured_text,
    shape_text,
    shares_launches,
)

if TYPE_CHECKING:  # profiles are rare, and reading them needs numpy
    from shardwise.explain.measured_plan import MeasuredPlan

_MAX_OPEN_VALUES = 60  # the table of a longer program is collapsed at first


def format_page(report: Plan, advice: Sequence[str] = (), measured: "MeasuredPlan | None" = None) -> str:
    """Return the HTML document."""
    title = f"plan of {report.name}"
    sections = (
        _head(report, advice),
        _section("Collectives", _collectives(report)),
        _section("Time", _time(report)),
        _section("Measured", _measured(measured)) if measured is not None else "",
        _section("Memory", _memory(report)),
        _section("Inputs and outputs", _ends(report)),
        _section("Program", _program(report.values)),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{''.join(sections)}</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _section(title: str, body: str) -> str:
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{body}\n</section>\n'


def _head(report: Plan, advice: Sequence[str]) -> str:
    where = f"mesh {report.mesh}: {report.mesh.device_count} devices" if report.mesh.axis_names else "one device"
    share = 100 * report.peak_bytes / report.chip.memory
    memory_share = (
        f"{share:.0f}% of {human_bytes(report.chip.memory)}" if share >= 1 else f"of {human_bytes(report.chip.memory)}"
    )
    figures = (
        ("time per call", human_seconds(report.seconds), "with overlap" if report.chip.overlaps else "without overlap"),
        ("compute", human_seconds(report.compute_seconds), "of this"),
        (
            "communication",
            human_seconds(report.communication_seconds),
            f"{human_seconds(report.exposed_seconds)} exposed",
        ),
        ("sent per device", human_bytes(report.wire_bytes), f"in {collectives_text(report)}"),
        ("peak memory per device", human_bytes(report.peak_bytes), memory_share),
    )
    boxes = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>" for name, value, note in figures)
    advice_html = "".join(f'<p class="advice">{_with_code(line[0].upper() + line[1:])}.</p>' for line in advice)
    return (
        f'<header>\n<div class="top"><div><h1>{escape(report.name)}</h1><p class="sub">{escape(where)}</p>'
        f'<p class="sub">estimated for {escape(report.chip.name)}</p></div>'
        f'<div class="mesh">{draw_mesh(report.mesh)}</div></div>\n'
        f'<dl class="figures">{boxes}</dl>\n{advice_html}</header>\n'
    )


def _with_code(text: str) -> str:
    """Escape a string, and convert its parts between backquotes to `<code>`."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _collectives(report: Plan) -> str:
    if not report.collectives:
        return '<p class="note">None: devices do not communicate.</p>'
    rows = []
    for row in report.collectives:
        pins = f'<div class="note pins">pinned: {" ".join(map(_pin_code, row.pins))}</div>' if row.pins else ""
        rows.append(
            [
                ("", "", f"<code>{escape(row.kind)}</code>"),
                ("", "", escape(", ".join(row.axes))),
                ("number", f"{row.sent}", human_bytes(row.sent)),
                ("number", f"{row.seconds}", human_seconds(row.seconds)),
                ("number", f"{row.times}", f"{row.times}"),
                ("", "", f"<code>{escape(row.type)}</code>"),
                ("line", _source_key(row.source), _line(row.source)),
                ("why", "", _with_code(row.reason or "you wrote it") + pins),
            ]
        )
    heads = ["collective", "axes", "sent", "time", "times", "shard", "line", "why"]
    if shares_launches(report):
        heads.insert(5, "launch")
        for row, cells in zip(report.collectives, rows, strict=True):
            cells.insert(5, ("number", f"{row.launch}", f"{row.launch}"))
    return _totals(report) + _table("collectives, costliest first", heads, rows, 3)


def _totals(report: Plan) -> str:
    """Return a table of the total of each kind of collective and mesh axes; empty for a single collective."""
    if len(report.collectives) < 2:
        return ""
    rows = [
        [
            ("", "", f"<code>{escape(total.kind)}</code>"),
            ("", "", escape(", ".join(total.axes))),
            ("number", f"{total.count}", f"{total.count}"),
            ("number", f"{total.sent}", human_bytes(total.sent)),
            ("number", f"{total.seconds}", human_seconds(total.seconds)),
        ]
        for total in report.totals()
    ]
    return _table("totals per kind and mesh axis", ["total", "axes", "count", "sent", "time"], rows, 4, "scroll low")


def _pin_code(text: str) -> str:
    """Return the name of a pin as code, with its layout as a tooltip."""
    name, _, layout = text.rpartition(" in P(")
    return f'<code title="P({escape(layout)}">{escape(name.strip("`"))}</code>'


def _time(report: Plan) -> str:
    note = "Estimated. A kernel in a loop is one bar, as long as all its iterations together."
    chart = draw_timeline(report.timeline)
    if not chart:
        return '<p class="note">No ops.</p>'
    idle = "".join(f"<p>{escape(idle_text(row))}.</p>" for row in report.timeline.idle)
    before = ""
    if report.unscheduled is not None:
        saved = human_seconds(report.unscheduled.seconds)
        before = f"<p>Without the schedule of communication, {saved}:</p>{draw_timeline(report.unscheduled)}"
    return f'{idle}{chart}{_launches(report)}{before}<p class="note">{note}</p>'


def _launches(report: Plan) -> str:
    """Return a table of launches, with what runs beside each; empty if the hardware does not overlap them."""
    steps = [step for step in report.timeline.steps if step.sent]
    if not steps or not report.chip.overlaps:
        return ""
    rows = []
    for step in sorted(steps, key=lambda step: -step.exposed):
        what, sent, seconds, exposed, _, beside = launch_cells(step)
        rows.append(
            [
                ("", "", f"<code>{escape(what)}</code>"),
                ("number", f"{step.sent}", sent),
                ("number", f"{step.seconds}", seconds),
                ("number", f"{step.exposed}", exposed),
                ("line", _source_key(step.source), _line(step.source)),
                ("", "", escape(beside)),
            ]
        )
    heads = ["launch of", "sent", "time", "exposed", "line", "beside"]
    return _table("launches, and what runs beside them", heads, rows, 3, "scroll low")


def _measured(measured: "MeasuredPlan") -> str:
    """Return a table of the kernels of a profile and their predictions, and the largest differences."""
    rows = []
    for row in measured.rows:
        ops, line, kernels, planned, predicted, seconds, difference = measured_cells(row)
        file, _, number = line.rpartition(":")
        rows.append(
            [
                ("", "", f"<code>{escape(ops)}</code>"),
                ("line", f"{file}:{number:>6}" if line else "", escape(line)),
                ("number", kernels, kernels),
                ("number", planned, planned),
                ("number", f"{row.predicted}", predicted),
                ("number", f"{row.measured}", seconds),
                ("number", f"{row.difference}", difference),
            ]
        )
    heads = ["measured", "line", "kernels", "planned", "predicted", "time", "difference"]
    differences = "".join(f"<li>{escape(difference_text(row))}</li>" for row in measured.differences)
    table = _table("measured and predicted times by op and line", heads, rows, 5, "scroll low")
    return f"<p>{escape(measured_text(measured))}. Largest differences:</p><ol>{differences}</ol>{table}"


def _memory(report: Plan) -> str:
    alive = report.timeline.alive
    rows = [
        [
            ("", "", _with_code(held.what) if "`" in held.what else escape(held.what)),
            ("", "", f"<code>{escape(held.type)}</code>"),
            ("number", f"{held.bytes}", human_bytes(held.bytes)),
            ("line", _source_key(held.source), _line(held.source)),
        ]
        for held in alive
    ]
    if not rows:
        return '<p class="note">No memory.</p>'
    table = _table("live values at the peak", ["computed by", "shard", "bytes", "line"], rows, 2, "scroll low")
    return f'{draw_memory(report.timeline)}<p class="note">Live values at the peak, largest first.</p>{table}'


def _ends(report: Plan) -> str:
    if len(report.inputs) + len(report.outputs) > MAX_SINGLE:
        groups = [
            (direction, group)
            for direction, rows in (("inputs", report.inputs), ("outputs", report.outputs))
            for group in group_by_layout(rows)
        ]
        cards = [_group_card(direction, group) for direction, group in groups]
    else:
        cards = [_card(row) for row in (*report.inputs, *report.outputs)]
    return f'<div class="cards">{"".join(cards)}</div>'


def _group_card(direction: str, group: EndGroup) -> str:
    """Return the card of the arrays with one layout, with a drawing of the largest."""
    largest = max(group.rows, key=lambda row: row.bytes)
    names = "".join(f"<li>{_with_code(row.name)} <code>{escape(row.type)}</code></li>" for row in group.rows)
    title = f"{len(group.rows)} {direction if len(group.rows) > 1 else direction.removesuffix('s')}"
    return (
        f'<div class="card"><h3>{title}</h3><p>{_with_code(group.names)}</p>'
        f"<p><code>{escape(str(group.layout))}</code></p>"
        f'<p class="note">{human_bytes(group.bytes)} per device; the picture shows {_with_code(largest.name)}</p>'
        f"{draw_layout(largest.shape, largest.layout, largest.mesh)}"
        f"<details><summary>all names</summary><ul>{names}</ul></details></div>"
    )


def _card(row: EndRow) -> str:
    return (
        f'<div class="card"><h3>{_with_code(row.name)}</h3><p><code>{escape(row.type)}</code></p>'
        f"<p><code>{escape(str(row.layout))}</code></p>"
        f'<p class="note">{escape(shape_text(row.shard_shape))} per device, {human_bytes(row.bytes)}</p>'
        f"{draw_layout(row.shape, row.layout, row.mesh)}</div>"
    )


def _program(values: Sequence[ValueRow]) -> str:
    rows = []
    for row in values:
        origin = {"input": "argument", "type": "its type", "free": "any: computed where needed"}.get(
            row.origin, row.origin
        )
        pins = f", from {', '.join(row.pins)}" if row.pins and row.origin == "chosen" else ""
        text = f"{row.op} {' '.join(row.operands)}" if row.op != "input" else "input"
        indent = f' style="padding-left:{12 + 18 * row.depth}px"' if row.depth else ""
        rows.append(
            f'<tr><td class="mono"{indent}>{escape(row.name.strip("`"))}</td>'
            f'<td class="mono">{escape(text.replace("`", ""))}</td>'
            f"<td><code>{escape(row.type)}</code></td><td><code>{escape(str(row.layout))}</code></td>"
            f'<td>{_with_code(origin + pins)}</td><td class="line">{_line(row.source)}</td></tr>'
        )
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("value", "op", "type", "layout", "layout comes from", "line")
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="program with layouts"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    is_open = " open" if len(values) <= _MAX_OPEN_VALUES else ""
    return f"<details{is_open}><summary>{len(values)} values, in program order</summary>{table}</details>"


def _table(
    label: str, heads: Sequence[str], rows: Sequence[Sequence[tuple[str, str, str]]], by: int, css: str = "scroll"
) -> str:
    """Return a sortable table that is initially sorted by column `by`.

    A cell is (CSS class, sort key, HTML); if the sort key is empty, the cell's contents are the key.
    """
    head = "".join(
        f'<th scope="col"{_class(rows[0][n][0] if rows[0][n][0] == "number" else "")}'
        f"{' aria-sort=descending' if n == by else ''}><button type=button>{name}</button></th>"
        for n, name in enumerate(heads)
    )
    lines = []
    for row in rows:
        cells = "".join(
            f"<td{_class(kind)}{f' data-value={chr(34)}{escape(value)}{chr(34)}' if value else ''}>{text}</td>"
            for kind, value, text in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="{css}" tabindex="0" role="region" aria-label="{escape(label)}"><table class="sortable">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _line(source: Source) -> str:
    return "" if source == NOWHERE else escape(str(source))


def _source_key(source: Source) -> str:
    """Return a sort key: by file, then by line number."""
    return "" if source == NOWHERE else f"{source.file}:{source.line:06}"

"""A report as one HTML page that needs nothing beside it: figures, collectives, time, memory, layouts, the program."""

from collections.abc import Sequence
from html import escape

from shardwise.compiler.ir.program import NOWHERE, Source
from shardwise.compiler.report.report import EndRow, Report, ValueRow
from shardwise.explain.drawing import draw_layout, draw_memory, draw_mesh, draw_timeline
from shardwise.explain.page_assets import SCRIPT, STYLE
from shardwise.explain.text import human_bytes, human_seconds, shape_text

_OPEN = 60  # a program of so many values is shown at once; a longer one can be opened


def format_page(report: Report, advice: str = "") -> str:
    """The whole document."""
    title = f"plan of {report.name}"
    sections = (
        _head(report, advice),
        _section("Collectives", _collectives(report)),
        _section("Time", _time(report)),
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


def _head(report: Report, advice: str) -> str:
    where = f"mesh {report.mesh}: {report.mesh.size} devices" if report.mesh.axis_names else "one device"
    share = 100 * report.peak_bytes / report.chip.memory
    filled = (
        f"{share:.0f}% of {human_bytes(report.chip.memory)}" if share >= 1 else f"of {human_bytes(report.chip.memory)}"
    )
    figures = (
        ("time of a call", human_seconds(report.seconds), "if nothing overlaps"),
        ("compute", human_seconds(report.compute_seconds), "of that"),
        ("communication", human_seconds(report.communication_seconds), "of that"),
        ("sent by each device", human_bytes(report.wire_bytes), f"in {_counted(len(report.collectives))}"),
        ("memory of each device", human_bytes(report.peak_bytes), f"at most, {filled}"),
    )
    boxes = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>" for name, value, note in figures)
    told = f'<p class="advice">{_coded(advice[0].upper() + advice[1:])}.</p>' if advice else ""
    return (
        f'<header>\n<div class="top"><div><h1>{escape(report.name)}</h1><p class="sub">{escape(where)}</p>'
        f'<p class="sub">estimated for {escape(report.chip.name)}</p></div>'
        f'<div class="mesh">{draw_mesh(report.mesh)}</div></div>\n'
        f'<dl class="figures">{boxes}</dl>\n{told}</header>\n'
    )


def _counted(count: int) -> str:
    return f"{count} collective{'' if count == 1 else 's'}"


def _coded(text: str) -> str:
    """Text with what stands between backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _collectives(report: Report) -> str:
    if not report.collectives:
        return '<p class="note">None: devices work on their own.</p>'
    rows = []
    for row in report.collectives:
        met = f'<div class="note pins">pinned: {" ".join(map(_pin, row.pins))}</div>' if row.pins else ""
        rows.append(
            [
                ("", "", f"<code>{escape(row.kind)}</code>"),
                ("", "", escape(", ".join(row.axes))),
                ("number", f"{row.sent}", human_bytes(row.sent)),
                ("number", f"{row.seconds}", human_seconds(row.seconds)),
                ("number", f"{row.times}", f"{row.times}"),
                ("", "", f"<code>{escape(row.type)}</code>"),
                ("line", _order(row.source), _line(row.source)),
                ("why", "", _coded(row.reason or "you wrote it") + met),
            ]
        )
    heads = ["collective", "axes", "sent", "time", "times", "piece", "line", "why"]
    return _table("collectives, costliest first", heads, rows, 3)


def _pin(text: str) -> str:
    """A pin by its name; its layout shows where the pointer rests on it."""
    name, _, layout = text.rpartition(" in P(")
    return f'<code title="P({escape(layout)}">{escape(name.strip("`"))}</code>'


def _time(report: Report) -> str:
    note = "By the cost model, one op after the other. An op in a loop stands once, as long as all its turns together."
    drawn = draw_timeline(report.timeline)
    return f'{drawn}<p class="note">{note}</p>' if drawn else '<p class="note">Nothing runs.</p>'


def _memory(report: Report) -> str:
    alive = report.timeline.alive
    rows = [
        [
            ("", "", _coded(held.what) if "`" in held.what else escape(held.what)),
            ("", "", f"<code>{escape(held.type)}</code>"),
            ("number", f"{held.bytes}", human_bytes(held.bytes)),
            ("line", _order(held.source), _line(held.source)),
        ]
        for held in alive
    ]
    if not rows:
        return '<p class="note">Nothing is held.</p>'
    table = _table("what is held at the peak", ["made by", "piece", "bytes", "line"], rows, 2, "scroll low")
    return f'{draw_memory(report.timeline)}<p class="note">What is held at the peak, the largest first.</p>{table}'


def _ends(report: Report) -> str:
    cards = [_card(row, report) for row in (*report.inputs, *report.outputs)]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(row: EndRow, report: Report) -> str:
    return (
        f'<div class="card"><h3>{_coded(row.name)}</h3><p><code>{escape(row.type)}</code></p>'
        f"<p><code>{escape(str(row.layout))}</code></p>"
        f'<p class="note">{escape(shape_text(row.piece))} a device, {human_bytes(row.bytes)}</p>'
        f"{draw_layout(row.shape, row.layout, report.mesh)}</div>"
    )


def _program(values: Sequence[ValueRow]) -> str:
    rows = []
    for row in values:
        told = {"input": "given", "free": "made where it is needed"}.get(row.origin, row.origin)
        follows = f", after {', '.join(row.pins)}" if row.pins and row.origin == "chosen" else ""
        text = f"{row.op} {' '.join(row.operands)}" if row.op != "input" else "input"
        indent = f' style="padding-left:{12 + 18 * row.depth}px"' if row.depth else ""
        rows.append(
            f'<tr><td class="mono"{indent}>{escape(row.name.strip("`"))}</td>'
            f'<td class="mono">{escape(text.replace("`", ""))}</td>'
            f"<td><code>{escape(row.type)}</code></td><td><code>{escape(str(row.layout))}</code></td>"
            f'<td>{_coded(told + follows)}</td><td class="line">{_line(row.source)}</td></tr>'
        )
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("value", "is", "type", "layout", "its layout is", "line")
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="program with layouts"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    opened = " open" if len(values) <= _OPEN else ""
    return f"<details{opened}><summary>{len(values)} values, in the order of the program</summary>{table}</details>"


def _table(
    label: str, heads: Sequence[str], rows: Sequence[Sequence[tuple[str, str, str]]], by: int, css: str = "scroll"
) -> str:
    """A table that sorts, sorted by column `by` at first. A cell is a class, what it sorts by (its text where that is
    empty), and HTML."""
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


def _order(source: Source) -> str:
    """By file, then by line number."""
    return "" if source == NOWHERE else f"{source.file}:{source.line:06}"

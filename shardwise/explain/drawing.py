"""SVG drawings of meshes, specs and layouts of arrays, and of the steps and the memory of a plan over time.

Colors come from the style sheet of the page or notebook: the classes `d0` to `d7` are the colors of devices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from shardwise.compiler.report.timeline import Step, Timeline
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.text import human_bytes, human_seconds

_COLORS = 8
_MAX_CELLS = 16  # along one side; a larger mesh is abbreviated, and a larger layout is not drawn
_FIRST_CELLS = 6  # of an abbreviated side; one more cell is the last
_MAX_LABELS = 64  # with more cells there is no room for labels
_ROW = 15.0  # the least height of a row of cells with labels, in SVG units
_CHARACTER = 6.0  # the width of a character of a label
_CELL = 28.0  # the least width and height of a cell of a grid
_LABEL = 160.0  # the most that a grid grows for the label of a side
_WIDTH = 1000.0  # of charts, in SVG units; the page stretches them


def draw_mesh(mesh: AbstractMesh, ids: Sequence[int] | None = None) -> str:
    """Draw the devices as a grid, the first axis down and the others across; "" for a mesh without axes.

    Args:
        mesh: the mesh.
        ids: the ids of its devices, in mesh order; by default, their positions.
    """
    if not mesh.axis_names:
        return ""
    rows = mesh.axis_sizes[0] if len(mesh.axis_sizes) > 1 else 1
    columns = mesh.device_count // rows
    *down, across = (mesh.axis_names[0], " × ".join(mesh.axis_names[1:])) if rows > 1 else mesh.axis_names[-1:]
    title = f"mesh of {mesh.device_count} devices: {mesh}"
    return _draw_grid(rows, columns, lambda i, j: [i * columns + j], "".join(down), across, ids, title)


def draw_shards(layout: Layout, mesh: AbstractMesh, ids: Sequence[int] | None = None) -> str:
    """Draw the devices that hold each shard of an array of unknown shape, along at most two dims.

    Args:
        layout: the layout of the array, with one entry per dim.
        mesh: the mesh.
        ids: the ids of its devices, in mesh order; by default, their positions.
    """
    sharded = [dim for dim, axes in enumerate(layout.dims) if axes]
    drawn = sorted((sharded + [dim for dim in range(len(layout.dims)) if dim not in sharded])[:2])
    *rest, across = drawn or (None,)
    down = rest[0] if rest else None
    rows, columns = (1 if dim is None else mesh.extent(layout.dims[dim]) for dim in (down, across))
    return _draw_grid(
        rows,
        columns,
        lambda i, j: _devices_with(layout, mesh, down, i, across, j),
        _dim_text(layout, down),
        _dim_text(layout, across),
        ids,
        f"{layout} on {mesh}",
    )


def _dim_text(layout: Layout, dim: int | None) -> str:
    return "" if dim is None else f"dim {dim}: {' × '.join(layout.dims[dim])}" if layout.dims[dim] else f"dim {dim}"


def draw_spec(entries: Sequence[Sequence[str] | None]) -> str:
    """Draw a box per dim with the mesh axes that shard it; "" without dims.

    Args:
        entries: the axes of each dim, or None for a dim that the planner shards.
    """
    parts, left, height = [], 2.0, 24.0
    colors = {axes: index for index, axes in enumerate(dict.fromkeys(tuple(axes) for axes in entries if axes))}
    for dim in _abbreviate(len(entries)):
        if dim is None:
            parts.append(_text(left + 10, 20 + height / 2, "…"))
            left += 20
            continue
        axes = entries[dim]
        text = "?" if axes is None else " × ".join(axes) or "–"
        kind = "chosen by the planner" if axes is None else f"sharded over {text}" if axes else "not sharded"
        width = max(44.0, _CHARACTER * len(text) + 12)
        color = f"d{colors[tuple(axes)] % _COLORS}" if axes else "plain"
        parts.append(_text(left + width / 2, 9, f"dim {dim}", "name"))
        parts.append(_box(left, 18, width, height, color, text, f"dim {dim}: {kind}"))
        left += width + 4
    return _svg(left, 20 + height, parts, "dims and the mesh axes that shard them") if parts else ""


def _draw_grid(
    rows: int,
    columns: int,
    devices_at: Callable[[int, int], list[int]],
    down: str,
    across: str,
    ids: Sequence[int] | None,
    title: str,
) -> str:
    """Draw a grid with the devices of every cell; a long side is abbreviated.

    Args:
        rows: the number of rows.
        columns: the number of columns.
        devices_at: a function that returns the positions in the mesh of the devices of a cell.
        down: the label of the rows.
        across: the label of the columns.
        ids: the ids of all devices, in mesh order; by default, their positions.
        title: the description for screen readers.
    """
    shown_rows, shown_columns = _abbreviate(rows), _abbreviate(columns)
    cells = {(i, j): devices_at(i, j) for i in shown_rows for j in shown_columns if i is not None and j is not None}
    names = {place: sorted(device if ids is None else ids[device] for device in cell) for place, cell in cells.items()}
    labels = {place: device_text(devices) for place, devices in names.items()}
    left, top = 22.0, 18.0
    height = max(_CELL, _label_width(down) / len(shown_rows))
    width = max(
        _CELL, _label_width(across) / len(shown_columns), _CHARACTER * max(len(label) for label in labels.values()) + 6
    )
    total_width, total_height = width * len(shown_columns), height * len(shown_rows)
    parts = [_text(left + total_width / 2, 8, _shorten(across, total_width), "name")]
    if down:
        middle, label = top + total_height / 2, _shorten(down, total_height)
        parts.append(f'<g transform="rotate(-90 8 {middle})">{_text(8, middle, label, "name")}</g>')
    for y, i in enumerate(shown_rows):
        for x, j in enumerate(shown_columns):
            x_start, y_start = left + x * width, top + y * height
            if i is None or j is None:
                parts.append(_text(x_start + width / 2, y_start + height / 2, "…"))
                continue
            devices = f"device{'s' if len(names[i, j]) > 1 else ''} {device_text(names[i, j], 24)}"
            parts.append(_cell(x_start, y_start, width - 3, height - 3, cells[i, j], labels[i, j], devices))
    return _svg(left + total_width, top + total_height, parts, title)


def _abbreviate(count: int) -> list[int | None]:
    """Return the indices of the cells to draw along a side, and None for those that are omitted."""
    return list(range(count)) if count <= _MAX_CELLS else [*range(_FIRST_CELLS), None, count - 1]


def _label_width(text: str) -> float:
    return min(_CHARACTER * len(text), _LABEL)


def _shorten(text: str, width: float) -> str:
    """Return the part of a label that fits in this width."""
    most = max(1, int(width / _CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def draw_layout(shape: tuple[int, ...], layout: Layout, mesh: AbstractMesh) -> str:
    """Draw the devices that hold each shard of an array, to scale along at most two sharded dims."""
    if not shape or 0 in shape:
        return ""
    sharded = [dim for dim, axes in enumerate(layout.dims) if axes]
    drawn = (sharded + [dim for dim in reversed(range(len(shape))) if dim not in sharded])[:2]
    down, across = sorted(drawn) if len(drawn) == 2 else (None, drawn[0])
    rows, columns = list(_spans(shape, layout, mesh, down)), list(_spans(shape, layout, mesh, across))
    if max(len(rows), len(columns)) > _MAX_CELLS:
        return ""
    width, height, left, top = 170.0, max(96.0, _ROW * len(rows)) if down is not None else 30.0, 4.0, 4.0
    size_down, size_across = (1 if down is None else shape[down]), shape[across]
    parts = []
    for i, (low, high) in enumerate(rows):
        for j, (start, stop) in enumerate(columns):
            devices = _devices_with(layout, mesh, down, i, across, j)
            spans = [f"{start}:{stop}"] if down is None else [f"{low}:{high}", f"{start}:{stop}"]
            title = f"[{', '.join(spans)}] on {device_text(devices, 24)}"
            label = device_text(devices) if len(rows) * len(columns) <= _MAX_LABELS else ""
            x, y = left + width * start / size_across, top + height * low / size_down
            cell_width, cell_height = width * (stop - start) / size_across, height * (high - low) / size_down
            fits = label if cell_width >= 6 * len(label) and cell_height >= 11 else ""
            parts.append(_cell(x, y, cell_width - 1.5, cell_height - 1.5, devices, fits, title))
    return _svg(width + 8, height + 8, parts, f"{layout} on {mesh}")


def _spans(shape: tuple[int, ...], layout: Layout, mesh: AbstractMesh, dim: int | None) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each shard of a dim, without padding and empty shards."""
    if dim is None:
        yield 0, 1
        return
    count, size = mesh.extent(layout.dims[dim]), shape[dim]
    shard_size = -(-size // count)
    for index in range(count):
        if index * shard_size < size:
            yield index * shard_size, min((index + 1) * shard_size, size)


def _devices_with(
    layout: Layout, mesh: AbstractMesh, down: int | None, i: int, across: int | None, j: int
) -> list[int]:
    """Return the devices that hold shard `i` of the dim `down` and shard `j` of the dim `across`."""
    if not mesh.axis_names:
        return [0]
    here = np.ones(mesh.device_count, bool)
    for dim, index in ((down, i), (across, j)):
        if dim is not None:
            here &= mesh.coordinates(layout.dims[dim]) == index
    return [int(device) for device in np.nonzero(here)[0]]


def device_text(devices: Sequence[int], most: int = 4) -> str:
    """Format device indices as `0,1`; if there are many, as `0–7` or `0,2,…`."""
    if len(devices) > 2 and list(devices) == list(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}–{devices[-1]}"
    return ",".join(map(str, devices[:most])) + (",…" if len(devices) > most else "")


def draw_timeline(timeline: Timeline) -> str:
    """Draw the steps over time in two lanes, compute and communication.

    Further lanes show copies from and to host memory, if there are any, and the idle part of each step, if devices are
    idle in a schedule.
    """
    total = timeline.seconds
    if not total:
        return ""
    lanes = []
    kernels = [step for step in timeline.steps if not step.sent and not step.copied]
    sent = [step for step in timeline.steps if step.sent]
    copied = [step for step in timeline.steps if step.copied]
    by_lane = [("compute", "compute", kernels), ("communication", "talk", sent)]
    if copied:
        by_lane.append(("copies from and to host memory", "talk", copied))
    for name, css, steps in by_lane:
        seconds = sum(step.seconds for step in steps)
        label = f"{name}: {human_seconds(seconds)}, {100 * seconds / total:.0f}% of the time"
        lanes.append(_lane(label, css, _bars(steps, total), total))
    if timeline.idle:
        idle = [replace(step, seconds=step.idle) for step in timeline.steps if step.idle]
        seconds = sum(step.seconds for step in idle)
        label = f"idle, on each device: {human_seconds(seconds)}, {100 * seconds / total:.0f}% of the time"
        lanes.append(_lane(label, "idle", _bars(idle, total), total))
    return f'<div class="chart">{"".join(lanes)}{_axis(total)}</div>'


def _lane(label: str, css: str, bars: Iterable[tuple[float, float, str]], total: float) -> str:
    """Draw one lane of a chart: bars with start, length and title, on a scale of `total` seconds."""
    rectangles = [
        f'<rect class="{css}" x="{_WIDTH * start / total:.2f}" y="0" height="26" '
        f'width="{max(0.8, _WIDTH * seconds / total):.2f}"><title>{escape(title)}</title></rect>'
        for start, seconds, title in bars
    ]
    return (
        f'<div class="lane">{label}</div><svg viewBox="0 0 {_WIDTH:.0f} 26" height="26" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}"><rect class="track" width="{_WIDTH:.0f}" height="26"/>'
        f"{''.join(rectangles)}</svg>"
    )


def _bars(steps: Sequence[Step], total: float) -> Iterator[tuple[float, float, str]]:
    """Yield the start, length and title of each bar. Steps too short to be visible are merged with neighbours."""
    merged: list[Step] = []

    def bar() -> tuple[float, float, str]:
        seconds = sum(step.seconds for step in merged)
        title = _title(merged[0]) if len(merged) == 1 else f"{len(merged)} short steps · {human_seconds(seconds)}"
        return merged[0].start, seconds, title

    for step in steps:
        is_adjacent = merged and abs(merged[-1].start + merged[-1].seconds - step.start) < 1e-6 * total
        if merged and (not is_adjacent or step.seconds > total / 500 or sum(s.seconds for s in merged) > total / 500):
            yield bar()
            merged = []
        merged.append(step)
    if merged:
        yield bar()


def _title(step: Step) -> str:
    where = f" at {step.source}" if step.source.file else ""
    often = f" · {step.times} times" if step.times > 1 else ""
    sent = f" · {human_bytes(step.sent)} sent" if step.sent else ""
    return f"{step.op}{where} · {human_seconds(step.seconds)}{often}{sent}"


def draw_memory(timeline: Timeline) -> str:
    """Draw the live bytes over time, with the peak marked."""
    steps = timeline.steps
    total = timeline.seconds
    if not total or not timeline.peak_bytes:
        return ""
    points = []
    for step in sorted(steps, key=lambda step: step.start):
        level = 100 - 96 * step.held / timeline.peak_bytes
        points += [f"{_WIDTH * step.start / total:.2f},{level:.2f}"]
        points += [f"{_WIDTH * (step.start + step.seconds) / total:.2f},{level:.2f}"]
    peak = steps[timeline.peak]
    at = (peak.start + peak.seconds / 2) / total
    label = f"peak: {human_bytes(timeline.peak_bytes)}, {100 * at:.0f}% into the call"
    where = f" ({peak.op} at {peak.source})" if peak.source.file else f" ({peak.op})"
    return (
        f'<div class="chart"><div class="lane">{escape(label + where)}</div>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} 100" height="120" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}"><rect class="track" width="{_WIDTH:.0f}" height="100"/>'
        f'<polygon class="held" points="0,100 {" ".join(points)} {_WIDTH:.0f},100"/>'
        f'<line class="peak" x1="{_WIDTH * at:.2f}" x2="{_WIDTH * at:.2f}" y1="0" y2="100" '
        f'vector-effect="non-scaling-stroke"/></svg>{_axis(total)}</div>'
    )


def _axis(total: float) -> str:
    ticks = "".join(f"<span>{human_seconds(total * part / 4)}</span>" for part in range(5))
    return f'<div class="axis" aria-hidden="true">{ticks}</div>'


def _cell(x: float, y: float, width: float, height: float, devices: Sequence[int], label: str, title: str) -> str:
    """Draw a box in the color of its first device."""
    return _box(x, y, width, height, f"d{devices[0] % _COLORS if devices else 0}", label, title)


def _box(x: float, y: float, width: float, height: float, css: str, label: str, title: str) -> str:
    box = (
        f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{max(height, 1):.1f}" '
        f'rx="2"><title>{escape(title)}</title></rect>'
    )
    return box + (_text(x + width / 2, y + height / 2, label) if label else "")


def _text(x: float, y: float, text: str, css: str = "") -> str:
    name = f' class="{css}"' if css else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="picture" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )

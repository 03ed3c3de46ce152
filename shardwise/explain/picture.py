"""Pictures of shardings: which device holds which part of an array, as a table in the terminal."""

from typing import Any

from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwise.runtime.array import Array
from shardwise.runtime.sharding import Sharding

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")


def visualize_sharding(shape: tuple[int, ...], sharding: Sharding, *, console: Console | None = None) -> None:
    """Print which devices hold which part of an array of this shape. Dims past the second are listed, not drawn."""
    (console or Console()).print(picture(tuple(shape), sharding))


def visualize_array_sharding(array: Array, *, console: Console | None = None) -> None:
    """Print which devices hold which part of an array."""
    if not isinstance(array, Array):
        raise TypeError(f"visualize_array_sharding needs an array that lies on devices, not {array!r}")
    visualize_sharding(array.shape, array.sharding, console=console)


def picture(shape: tuple[int, ...], sharding: Sharding) -> Any:
    """The parts in a grid: rows are parts of dim 0, columns parts of dim 1 (and of the dims after it)."""
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        parts.setdefault(tuple((part.start, part.stop) for part in index), []).append(device.id)
    if not shape:
        parts = {((0, 1),): parts[()]}
    rows = sorted({part[0] for part in parts}) if len(shape) != 1 else [(0, 1)]
    columns = sorted({part[1:] if len(shape) > 1 else part[:1] for part in parts})
    table = Table(box=SQUARE, show_header=True, show_lines=True, header_style="dim")
    table.add_column("×".join(map(str, shape)) or "scalar", style="dim")
    for column in columns:
        table.add_column(" ".join(_range(part) for part in column), justify="center")
    for row in rows:
        cells: list[Any] = [_range(row) if len(shape) > 1 else ""]
        for column in columns:
            held = parts.get((row, *column) if len(shape) > 1 else column, [])
            label = f"{'CPU' if held else ''} {','.join(map(str, sorted(held)))}".strip()
            cells.append(Text(label, style=_COLOURS[min(held) % len(_COLOURS)] if held else "dim"))
        table.add_row(*cells)
    return table


def _range(part: tuple[int, int]) -> str:
    return f"{part[0]}:{part[1]}"

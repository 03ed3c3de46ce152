"""Pictures of shardings: which device holds which part of an array, in the terminal.

Rank 1 and 2 are drawn, each part as long and as wide as it is; higher ranks are a list of blocks. Colours come where
the terminal has them.
"""

from collections.abc import Sequence
from typing import Any

from rich.box import SQUARE
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from shardwise.runtime.array import Array
from shardwise.runtime.array_repr import Span, device_label, devices_by_shard, span_text
from shardwise.runtime.sharding import Sharding

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_HEIGHT, _WIDTH = 3, 16  # of the longest part, in lines and characters


def visualize_sharding(
    shape: Sequence[int],
    sharding: Sharding,
    *,
    use_color: bool = True,
    min_width: int = 9,
    max_width: int = 80,
    console: Console | None = None,
) -> None:
    """Print which devices hold which part of an array of this shape.

    `min_width` and `max_width` are of one part and of the whole picture, in characters.

    >>> rows = jax.NamedSharding(jax.make_mesh((2,), ("rows",)), P("rows"))
    >>> jax.debug.visualize_sharding((4, 4), rows, use_color=False)
    ┌─────┬──────────────────┐
    │ 4×4 │       0:4        │
    ├─────┼──────────────────┤
    │     │                  │
    │ 0:2 │      CPU 0       │
    │     │                  │
    ├─────┼──────────────────┤
    │     │                  │
    │ 2:4 │      CPU 1       │
    │     │                  │
    └─────┴──────────────────┘
    """
    if not isinstance(sharding, Sharding):
        raise TypeError(f"visualize_sharding: needs a Sharding, such as NamedSharding(mesh, spec), not {sharding!r}")
    where = console or Console(no_color=not use_color)
    where.print(picture(tuple(shape), sharding, min_width, max_width))


def visualize_array_sharding(array: Any, **keywords: Any) -> None:
    """Print which devices hold which part of an array. Keywords are those of `visualize_sharding`.

    >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((2,), ("rows",)), P("rows")))
    >>> jax.debug.visualize_array_sharding(x, use_color=False)
    ┌───┬──────────────────┬──────────────────┐
    │ 8 │       0:4        │       4:8        │
    ├───┼──────────────────┼──────────────────┤
    │   │                  │                  │
    │   │      CPU 0       │      CPU 1       │
    │   │                  │                  │
    └───┴──────────────────┴──────────────────┘
    """
    if not isinstance(array, Array):
        raise TypeError(
            f"visualize_array_sharding needs an array that lies on devices, not {array!r}: inside a compiled function, "
            "use inspect_array_sharding"
        )
    visualize_sharding(array.shape, array.sharding, **keywords)


def picture(shape: tuple[int, ...], sharding: Sharding, min_width: int = 9, max_width: int = 80) -> Any:
    """The parts as something that rich prints."""
    parts = devices_by_shard(shape, sharding)
    empty = parts.pop(((0, 0),) * len(shape), None) if shape else None
    if len(shape) not in (1, 2):
        return _listed(shape, parts, empty)
    rows = sorted({spans[0] for spans in parts}) if len(shape) == 2 else [(0, 1)]
    columns = sorted({spans[-1] for spans in parts})
    room = (max_width - 16) // max(1, len(columns)) - 3  # beside the labels of rows, and without borders
    widths = _scaled(columns, min_width, max(min_width, min(_WIDTH, room)))
    heights = _scaled(rows, 1, _HEIGHT)
    table = Table(box=SQUARE, show_header=True, show_lines=True, header_style="dim")
    table.add_column("×".join(map(str, shape)), style="dim", vertical="middle")
    for span, width in zip(columns, widths, strict=True):
        table.add_column(_range(span), justify="center", min_width=width, vertical="middle")
    for row, height in zip(rows, heights, strict=True):
        cells = [_cell(parts[(row, column) if len(shape) == 2 else (column,)], height) for column in columns]
        table.add_row(_range(row) if len(shape) == 2 else "", *cells)
    return Group(table, Text(f"{device_label(empty)} hold nothing", style="dim")) if empty else table


def _listed(shape: tuple[int, ...], parts: dict[tuple[Span, ...], list[Any]], empty: list[Any] | None) -> Text:
    """One line a block."""
    text = Text("×".join(map(str, shape)) or "scalar", style="dim")
    for spans, held in parts.items():
        text.append(f"\n{span_text(spans)} " if shape else "\n", style="dim")
        text.append(device_label(held), style=_colour(held))
    if empty:
        text.append(f"\n{device_label(empty)} hold nothing", style="dim")
    return text


def _cell(held: list[Any], height: int) -> Text:
    above, below = (height - 1) // 2, height // 2
    return Text("\n" * above + device_label(held) + "\n" * below, style=_colour(held))


def _colour(held: list[Any]) -> str:
    return _COLOURS[min(device.id for device in held) % len(_COLOURS)]


def _scaled(spans: Sequence[Span], least: int, most: int) -> list[int]:
    """Lengths on the screen: the longest part gets `most`, others in proportion, but no less than `least`."""
    longest = max((high - low for low, high in spans), default=1)
    return [max(least, round(most * (high - low) / longest)) for low, high in spans]


def _range(part: Span) -> str:
    return f"{part[0]}:{part[1]}"

"""Pictures of shardings in the terminal: the devices that hold each shard of an array.

Arrays of rank 1 and 2 are drawn to scale, with the bounds of the shards if they are uneven. For higher ranks the shards
are listed. Shards are colored if the terminal supports colors.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rich.box import SQUARE
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from shardwise.api.meshes.inspect_sharding import inspect_array_sharding
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.array_repr import device_label, devices_by_shard
from shardwise.runtime.box import Box, Span, box_text
from shardwise.runtime.sharding import PositionalSharding

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_HEIGHT, _WIDTH = 3, 16  # of the largest uneven shard, in lines and characters
_LINES, _LINE_HEIGHT = 10, 2.5  # of an array with equal shards: its height in lines, and characters per line height


def visualize_sharding(
    shape: Any,
    sharding: Sharding | None = None,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: Callable[[float], Sequence[float]] | None = None,
    console: Console | None = None,
) -> None:
    """Print which devices hold which shard of an array of this shape.

    `visualize_sharding(x)` draws the sharding of an array. `visualize_sharding(sharding)` draws the smallest array that
    the sharding splits fully, with one row or column per shard.

    Args:
        shape: the shape of the array; or an array or a sharding, without a second argument.
        sharding: the sharding of the array.
        use_color: whether to color the shards.
        scale: the factor by which the shards are larger than by default.
        min_width: the least width of a shard, in characters.
        max_width: the most width of the picture, in characters.
        color_map: a function from a number in [0, 1] to red, green and blue in [0, 1], such as a colormap of
            matplotlib. Device `i` of `n` has the color of `i / n`.
        console: the `rich` console to print to; by default, standard output.

    Raises:
        TypeError: if `sharding` is not a Sharding, or if there is no second argument and the first is neither a
            concrete array nor a Sharding.
        ValueError: if `scale` is not positive.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((2,), ("rows",)), P("rows"))
        >>> jax.debug.visualize_sharding((4, 4), rows, use_color=False)
        ┌───────────────────────┐
        │                       │
        │         CPU 0         │
        │                       │
        │                       │
        ├───────────────────────┤
        │                       │
        │         CPU 1         │
        │                       │
        │                       │
        └───────────────────────┘
    """
    if sharding is None:
        shape, sharding = _shape_and_sharding(shape)
    if not isinstance(sharding, Sharding):
        raise TypeError(f"visualize_sharding: needs a Sharding such as NamedSharding(mesh, spec), not {sharding!r}")
    if not scale > 0:
        raise ValueError(f"visualize_sharding: scale must be positive, not {scale!r}")
    output = console or Console(no_color=not use_color)
    colors = _COLORS if color_map is None else _sample(color_map, sharding.num_devices)
    output.print(draw_sharding(tuple(shape), sharding, min_width, max_width, scale, colors))


def _shape_and_sharding(x: Any) -> tuple[tuple[int, ...], Sharding]:
    """Return the shape and the sharding of an array; for a sharding, the smallest shape that it splits fully."""
    if isinstance(x, ArrayImpl):
        return x.shape, x.sharding
    if not isinstance(x, Sharding):
        raise TypeError(
            "visualize_sharding: needs a shape and a Sharding; or one argument, a concrete array or a Sharding, not "
            f"{x!r}"
        )
    rank = len(x.spec) if isinstance(x, NamedSharding) else len(x.shape) if isinstance(x, PositionalSharding) else 0
    layout = x.pin((1,) * max(rank, 1)).layout
    return tuple(x.mesh_shape.extent(axes) for axes in layout.dims), x


def _sample(color_map: Callable[[float], Sequence[float]], count: int) -> tuple[str, ...]:
    """Return the colors of `count` devices, in the notation of `rich`."""
    samples = [color_map(index / count)[:3] for index in range(count)]
    return tuple("#" + "".join(f"{round(255 * part):02x}" for part in sample) for sample in samples)


def visualize_array_sharding(arr: Any, **kwargs: Any) -> None:
    """Print which devices hold which shard of an array.

    Inside a compiled function, the sharding is the planned one, and is printed once per compilation.

    Args:
        arr: the array, which can be traced.
        **kwargs: the keywords of `visualize_sharding`.

    Raises:
        TypeError: if `arr` is not an array.

    Example:
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((2,), ("rows",)), P("rows")))
        >>> jax.debug.visualize_array_sharding(x, use_color=False)
        ┌───────┬───────┐
        │ CPU 0 │ CPU 1 │
        └───────┴───────┘
    """
    if not isinstance(arr, Array):
        raise TypeError(f"visualize_array_sharding needs an array, not {arr!r}")
    inspect_array_sharding(arr, callback=lambda sharding: visualize_sharding(arr.shape, sharding, **kwargs))


def draw_sharding(
    shape: tuple[int, ...],
    sharding: Sharding,
    min_width: int = 9,
    max_width: int = 80,
    scale: float = 1.0,
    colors: Sequence[str] = _COLORS,
) -> Any:
    """Return a picture of a sharding that `rich` prints; the parameters are as in `visualize_sharding`."""
    picture = _draw_shards(shape, sharding, min_width, max_width, scale, colors)
    if not isinstance(sharding, NamedSharding) or not sharding.is_unreduced:
        return picture
    axes = " and ".join(repr(axis) for axis in sharding.mesh_shape.axis_names if axis in sharding.spec.unreduced)
    return Group(picture, Text(f"unreduced over {axes}: each device holds a term of the sum", style="dim"))


def _draw_shards(
    shape: tuple[int, ...],
    sharding: Sharding,
    min_width: int,
    max_width: int,
    scale: float,
    colors: Sequence[str],
) -> Any:
    """Return a picture of the shards and the devices that hold them."""
    shards = devices_by_shard(shape, sharding)
    empty = shards.pop(((0, 0),) * len(shape), None) if shape else None
    if len(shape) not in (1, 2):
        return _list_shards(shape, shards, empty, colors)
    rows = sorted({spans[0] for spans in shards}) if len(shape) == 2 else [(0, 1)]
    columns = sorted({spans[-1] for spans in shards})
    if shards and not empty and all(_are_equal(spans) for spans in (rows, columns)):
        return _equal_shards(shape, rows, columns, shards, (min_width, max_width), scale, colors)
    room = (max_width - 16) // max(1, len(columns)) - 3  # without row labels and borders
    widths = _scale(columns, min_width, max(min_width, min(round(_WIDTH * scale), room)))
    heights = _scale(rows, 1, max(1, round(_HEIGHT * scale)))
    table = Table(box=SQUARE, show_header=True, show_lines=True, header_style="dim")
    table.add_column("×".join(map(str, shape)), style="dim", vertical="middle")
    for span, width in zip(columns, widths, strict=True):
        table.add_column(_range(span), justify="center", min_width=width, vertical="middle")
    for row, height in zip(rows, heights, strict=True):
        cells = [_cell(shards[(row, column) if len(shape) == 2 else (column,)], height, colors) for column in columns]
        table.add_row(_range(row) if len(shape) == 2 else "", *cells)
    return Group(table, Text(f"{device_label(empty)} hold no elements", style="dim")) if empty else table


def _are_equal(spans: Sequence[Span]) -> bool:
    return len({high - low for low, high in spans}) == 1


def _equal_shards(
    shape: tuple[int, ...],
    rows: Sequence[Span],
    columns: Sequence[Span],
    shards: dict[Box, list[Any]],
    width_limits: tuple[int, int],
    scale: float,
    colors: Sequence[str],
) -> Table:
    """Return a grid of equal shards, in the proportions of the array: a row of it is 2.5 columns high.

    The sizes are the same as in JAX's pictures: an array with two dims is about ten lines high.
    """
    lines = int(_LINES * scale)
    total_width = int(lines * (shape[1] if len(shape) == 2 else 1) / shape[0]) * _LINE_HEIGHT
    least, most = width_limits
    width = min(max(int(total_width / len(columns)), least), most) - 2  # without the borders
    height = int(lines / len(rows)) if len(shape) == 2 else 1
    table = Table(box=SQUARE, show_header=False, show_lines=True, padding=0, pad_edge=False)
    for _ in columns:
        table.add_column(justify="center", min_width=width, vertical="middle")
    for row in rows:
        cells = [shards[(row, column) if len(shape) == 2 else (column,)] for column in columns]
        table.add_row(*[_cell(devices, max(height - 1, 1), colors) for devices in cells])
    return table


def _list_shards(
    shape: tuple[int, ...], shards: dict[Box, list[Any]], empty: list[Any] | None, colors: Sequence[str]
) -> Text:
    """Return one line per shard."""
    text = Text("×".join(map(str, shape)) or "scalar", style="dim")
    for spans, devices in shards.items():
        text.append(f"\n{box_text(spans)} " if shape else "\n", style="dim")
        text.append(device_label(devices), style=_color(devices, colors))
    if empty:
        text.append(f"\n{device_label(empty)} hold no elements", style="dim")
    return text


def _cell(devices: list[Any], height: int, colors: Sequence[str]) -> Text:
    above, below = (height - 1) // 2, height // 2
    return Text("\n" * above + device_label(devices) + "\n" * below, style=_color(devices, colors))


def _color(devices: list[Any], colors: Sequence[str]) -> str:
    first: int = min(device.id for device in devices)
    return colors[first % len(colors)]


def _scale(spans: Sequence[Span], least: int, most: int) -> list[int]:
    """Return lengths proportional to the spans: `most` for the longest, and never less than `least`."""
    longest = max((high - low for low, high in spans), default=1)
    return [max(least, round(most * (high - low) / longest)) for low, high in spans]


def _range(span: Span) -> str:
    return f"{span[0]}:{span[1]}"

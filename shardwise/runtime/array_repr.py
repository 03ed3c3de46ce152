"""How an array shows itself: as text, of which only the elements that are shown are read, and as HTML in a notebook.

numpy shows the first and last few elements along each dim of a large array. Those make a small array, with one element
in place of each gap: numpy never looks at it, and its text is the text of the large one.
"""

import html
import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shardwise._jaxlib import to_numpy
from shardwise.compiler.ir.types import ArrayType
from shardwise.runtime.sharding import Sharding

NumpyArray = np.ndarray[Any, Any]
Span = tuple[int, int]


class Readable(Protocol):
    """An array with parts on devices."""

    type: ArrayType

    @property
    def sharding(self) -> Sharding: ...
    def numpy(self) -> NumpyArray: ...
    def distinct_shards(self) -> "Sequence[Part]": ...


class Part(Protocol):
    """One device's piece of an array."""

    index: tuple[slice, ...]

    def block(self, spans: tuple[Span, ...]) -> Any:
        """Buffers with the elements in these spans of the whole array."""


def array_repr(array: Readable) -> str:
    """`Array([1., 2.], dtype=float32)`. Where there are no elements, the shape is said."""
    shape = "" if math.prod(array.type.shape) else f" shape={array.type.shape},"
    return f"Array({_text(array, ', ', 'Array(')},{shape} dtype={array.type.dtype})"


def array_str(array: Readable) -> str:
    """The elements alone."""
    return str(array.numpy()) if not array.type.ndim else _text(array, " ", "")


def array_html(array: Readable) -> str:
    """A small table: type, sharding, which device holds what, and the elements."""
    facts = {
        "shape": "×".join(map(str, array.type.shape)) or "scalar",
        "dtype": str(array.type.dtype),
        "sharding": repr(array.sharding),
    }
    rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in facts.items())
    readable = array.sharding.is_fully_addressable or array.sharding.is_fully_replicated
    values = array_str(array) if readable else "parts on other processes"
    layout = _html_layout(array.type.shape, array.sharding)
    return f"<table>{rows}<tr><th>layout</th><td>{layout}</td></tr></table><pre>{html.escape(values)}</pre>"


def devices_by_shard(shape: tuple[int, ...], sharding: Sharding) -> dict[tuple[Span, ...], list[Any]]:
    """The parts of an array of this shape, in order, and the devices that hold each. Empty parts come last, as one."""
    parts: dict[tuple[Span, ...], list[Any]] = {}
    empty: list[Any] = []
    for device, index in sharding.devices_indices_map(shape).items():
        spans = tuple((part.start, part.stop) for part in index)
        (empty if any(start == stop for start, stop in spans) else parts.setdefault(spans, [])).append(device)
    return {**dict(sorted(parts.items())), **({((0, 0),) * len(shape): empty} if empty else {})}


def device_label(devices: list[Any]) -> str:
    """`CPU 0,1`."""
    return f"{devices[0].platform.upper()} {','.join(str(device.id) for device in sorted(devices, key=_by_id))}"


def span_text(spans: tuple[Span, ...]) -> str:
    """`[0:4, 2:8]`."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in spans)}]"


def _by_id(device: Any) -> int:
    return int(device.id)


def _html_layout(shape: tuple[int, ...], sharding: Sharding) -> str:
    parts = devices_by_shard(shape, sharding)
    if len(shape) not in (1, 2):
        return "<br>".join(f"{span_text(spans)} {device_label(held)}" for spans, held in parts.items())
    rows: dict[Span, list[str]] = {}
    for spans, held in parts.items():
        title = span_text(spans)
        row = spans[0] if len(shape) == 2 else (0, 0)
        rows.setdefault(row, []).append(f'<td style="border:1px solid" title="{title}">{device_label(held)}</td>')
    lines = [f"<tr>{''.join(cells)}</tr>" for cells in rows.values()]
    return f"<table>{''.join(lines)}</table>"


def _text(array: Readable, separator: str, prefix: str) -> str:
    options = np.get_printoptions()
    edge = options["edgeitems"]
    if array.type.size <= options["threshold"]:
        return np.array2string(array.numpy(), separator=separator, prefix=prefix)
    small = _corners(array, edge)
    return np.array2string(small, separator=separator, prefix=prefix, threshold=0, edgeitems=edge)


def _corners(array: Readable, edge: int) -> NumpyArray:
    """The first and last `edge` elements along every long dim, with one in between that stands for the rest."""
    kept: list[list[tuple[Span, int]]] = []  # for each dim: stretches of it, and where each starts in the small array
    for size in array.type.shape:
        if size <= 2 * edge + 1:
            kept.append([((0, size), 0)])
        else:
            kept.append([((0, edge), 0), ((size - edge, size), edge + 1)])
    small = np.zeros([min(size, 2 * edge + 1) for size in array.type.shape], array.type.dtype)
    for part in array.distinct_shards():
        for stretches in itertools.product(*kept):
            spans = tuple(
                (max(low, here.start), min(high, here.stop))
                for ((low, high), _), here in zip(stretches, part.index, strict=True)
            )
            if all(low < high for low, high in spans):
                place = tuple(
                    slice(to + low - start, to + high - start)
                    for ((start, _), to), (low, high) in zip(stretches, spans, strict=True)
                )
                small[place] = to_numpy(part.block(spans))
    return small

"""String and HTML representations of arrays. Only the displayed elements are read.

numpy prints the first and last few elements along each dim of a large array. `_summary_array` reads just these into a
small array, with one unused element for each ellipsis, so that numpy prints both arrays alike.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shardwise.base._jaxlib import Device
from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.box import Box, Span, box_of, box_text

html = lazy_module("html")  # its import takes 2.5 ms, and only notebooks need it

MAX_SHARDS = 8  # the most shards to display of an array with shards in other processes

NumpyArray = np.ndarray[Any, Any]


class Readable(Protocol):
    """An array with shards on devices."""

    type: ArrayType

    @property
    def sharding(self) -> Sharding: ...
    @property
    def is_readable(self) -> bool: ...
    def numpy(self) -> NumpyArray: ...
    def distinct_shards(self) -> "Sequence[ReadableShard]": ...


class ReadableShard(Protocol):
    """One device's shard of an array; `spans` are its starts and ends in the global array."""

    spans: Box

    @property
    def data(self) -> Any:
        """The shard as an array on its device; None if the device belongs to another process."""

    def read_block(self, spans: Box) -> NumpyArray:
        """Read a block on the host. `spans` are relative to the global array."""


def array_repr(array: Readable) -> str:
    """Return the repr, such as `Array([1., 2.], dtype=float32)`.

    An empty array also shows its shape, and a weakly typed one `weak_type=True`.
    """
    shape = "" if math.prod(array.type.shape) else f" shape={array.type.shape},"
    weak = ", weak_type=True" if array.type.weak else ""
    return f"Array({_text(array, ', ', 'Array(')},{shape} dtype={array.type.dtype}{weak})"


def array_str(array: Readable) -> str:
    """Format the elements as a string."""
    return str(array.numpy()) if not array.type.ndim else _text(array, " ", "")


def local_part_str(array: Readable, process: int) -> str:
    """Format the shards of this process, and the locations of the others:

    Array(shape=(8,), dtype=int32) in NamedSharding(mesh(x=4), P('x')); process 0 has
      [0:2] on CPU 0: [0 1]
      [2:4] on CPU 1: [2 3]
    and elsewhere are [4:6] on process 1, [6:8] on process 1
    """
    distinct = sorted(array.distinct_shards(), key=lambda shard: shard.spans)
    shards = {shard.spans: shard.data for shard in distinct if all(start < stop for start, stop in shard.spans)}
    devices = devices_by_shard(array.type.shape, array.sharding)
    lines = []
    for spans, data in list(shards.items())[:MAX_SHARDS]:
        label = f"  {box_text(spans)} on "
        label += f"{device_label([device for device in devices[spans] if device.process_index == process])}: "
        lines.append(label + str(data).replace("\n", "\n" + " " * len(label)))
    if len(shards) > MAX_SHARDS:
        lines.append(f"  and {len(shards) - MAX_SHARDS} more shards")
    others = [
        f"{box_text(spans)} on process {', '.join(map(str, sorted({device.process_index for device in holders})))}"
        for spans, holders in devices.items()
        if spans not in shards and any(start < stop for start, stop in spans)
    ]
    more = f" and {len(others) - MAX_SHARDS} more shards" if len(others) > MAX_SHARDS else ""
    head = f"{array!r} in {array.sharding}; process {process} has {'' if lines else 'no shard of it'}".rstrip()
    elsewhere = f"and elsewhere are {', '.join(others[:MAX_SHARDS])}{more}"
    return "\n".join([head, *lines, elsewhere])


def array_html(array: Readable) -> str:
    """Return an HTML table with the shape, the dtype, the sharding, the shards of each device, and the elements."""
    properties = {
        "shape": "×".join(map(str, array.type.shape)) or "scalar",
        "dtype": str(array.type.dtype),
        "sharding": repr(array.sharding),
    }
    rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in properties.items())
    values = str(array)
    layout = _html_layout(array.type.shape, array.sharding)
    return f"<table>{rows}<tr><th>layout</th><td>{layout}</td></tr></table><pre>{html.escape(values)}</pre>"


def devices_by_shard(shape: tuple[int, ...], sharding: Sharding) -> dict[Box, list[Any]]:
    """Return the devices that hold each shard of an array of this shape. Empty shards come last, as one entry."""
    shards: dict[Box, list[Any]] = {}
    empty: list[Any] = []
    for device, index in zip(sharding.devices, sharding.shard_indices(shape), strict=True):
        spans = box_of(index)
        (empty if any(start == stop for start, stop in spans) else shards.setdefault(spans, [])).append(device)
    return {**dict(sorted(shards.items())), **({((0, 0),) * len(shape): empty} if empty else {})}


def device_label(devices: list[Device]) -> str:
    """Return a label such as `CPU 0,1`."""
    return f"{devices[0].platform.upper()} {','.join(str(device.id) for device in sorted(devices, key=_by_id))}"


def _by_id(device: Device) -> int:
    return int(device.id)


def _html_layout(shape: tuple[int, ...], sharding: Sharding) -> str:
    shards = devices_by_shard(shape, sharding)
    if len(shape) not in (1, 2):
        return "<br>".join(f"{box_text(spans)} {device_label(devices)}" for spans, devices in shards.items())
    rows: dict[Span, list[str]] = {}
    for spans, devices in shards.items():
        title = box_text(spans)
        row = spans[0] if len(shape) == 2 else (0, 0)
        rows.setdefault(row, []).append(f'<td style="border:1px solid" title="{title}">{device_label(devices)}</td>')
    lines = [f"<tr>{''.join(cells)}</tr>" for cells in rows.values()]
    return f"<table>{''.join(lines)}</table>"


def _text(array: Readable, separator: str, prefix: str) -> str:
    options = np.get_printoptions()
    edge = options["edgeitems"]
    if array.type.size <= options["threshold"]:
        return np.array2string(array.numpy(), separator=separator, prefix=prefix)
    summary = _summary_array(array, edge)
    return np.array2string(summary, separator=separator, prefix=prefix, threshold=0, edgeitems=edge)


def _summary_array(array: Readable, edge: int) -> NumpyArray:
    """Read the first and last `edge` elements along every long dim, with one unused element between them."""
    edges: list[list[tuple[Span, int]]] = []  # per dim: the spans to read, and their starts in the summary
    for size in array.type.shape:
        if size <= 2 * edge + 1:
            edges.append([((0, size), 0)])
        else:
            edges.append([((0, edge), 0), ((size - edge, size), edge + 1)])
    summary = np.zeros([min(size, 2 * edge + 1) for size in array.type.shape], array.type.dtype)
    for shard in array.distinct_shards():
        for corner in itertools.product(*edges):
            spans = tuple(
                (max(low, start), min(high, stop))
                for ((low, high), _), (start, stop) in zip(corner, shard.spans, strict=True)
            )
            if all(low < high for low, high in spans):
                index = tuple(
                    slice(offset + low - start, offset + high - start)
                    for ((start, _), offset), (low, high) in zip(corner, spans, strict=True)
                )
                summary[index] = shard.read_block(spans)
    return summary

"""Write XLA profiles with known times: the messages of `xplane.proto`, in the wire format of protocol buffers."""

from collections.abc import Mapping, Sequence

from jaxlib import _hlo


def gpu_profile(
    text: str, runs: Mapping[int, Sequence[Sequence[tuple[str, str, float, float]]]], has_hlo: bool = True
) -> bytes:
    """Return a profile of GPUs.

    Args:
        text: the optimized HLO of the program that ran.
        runs: for each device, the runs: events with the name of the kernel, the name of the instruction, and start and
            duration in seconds. Those of a `command_buffer_1` are nodes of a CUDA graph.
        has_hlo: whether the profile contains the HLO.
    """
    name = text.split()[1].rstrip(",")
    planes = [metadata_plane({f"{name}(7)": text} if has_hlo else {})]
    for device, events in runs.items():
        rows = [
            (kernel, start, seconds, {"hlo_op": op, "hlo_module": name, "program_id": 7, **_node(op, index)})
            for run in events
            for index, (kernel, op, start, seconds) in enumerate(run, 1)
        ]
        planes.append(plane(f"/device:GPU:{device}", {"Stream #1": rows}, {"gpu_device_name": "NVIDIA H200"}))
    return profile(*planes)


def _node(op: str, index: int) -> dict[str, int]:
    return {"cuda_graph_node_id": index} if op.startswith("command_buffer") else {}


def profile(*planes: bytes) -> bytes:
    """Return an XSpace."""
    return b"".join(field(1, each) for each in planes)


def metadata_plane(modules: Mapping[str, str]) -> bytes:
    """Return the plane with the HLO of programs, by name and id."""
    entries = []
    for number, (name, text) in enumerate(modules.items(), 1):
        proto = field(1, _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
        entry = field(1, number) + field(2, name.encode()) + field(5, field(1, 1) + field(6, proto))
        entries.append(field(4, field(1, number) + field(2, entry)))
    stat_name = field(5, field(1, 1) + field(2, field(1, 1) + field(2, b"Hlo Proto")))
    return field(2, b"/host:metadata") + b"".join(entries) + stat_name


def plane(name: str, lines: Mapping[str, Sequence[tuple[str, float, float, Mapping[str, object]]]], stats=()) -> bytes:
    """Return an XPlane. Each line has events with a name, start and duration in seconds, and stats."""
    names: dict[str, int] = {}
    stat_names: dict[str, int] = {}

    def stat(key: str, value: object) -> bytes:
        number = field(1, stat_names.setdefault(key, len(stat_names) + 1))
        return number + (field(4, value) if isinstance(value, int) else field(5, str(value).encode()))

    body = field(2, name.encode())
    for line, events in lines.items():
        rows = b"".join(
            field(
                4,
                field(1, names.setdefault(event, len(names) + 1))
                + field(2, round(start * 1e12))
                + field(3, round(seconds * 1e12))
                + b"".join(field(4, stat(key, value)) for key, value in each.items()),
            )
            for event, start, seconds, each in events
        )
        body += field(3, field(2, line.encode()) + rows)
    body += b"".join(field(6, stat(key, value)) for key, value in dict(stats).items())
    for number, table in ((4, names), (5, stat_names)):
        for key, index in table.items():
            body += field(number, field(1, index) + field(2, field(1, index) + field(2, key.encode())))
    return body


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of an integer, or of bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return an integer in groups of 7 bits, the lowest first."""
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])

"""Read the optimized HLO modules that an XLA profile (`*.xplane.pb`) contains.

XLA's profiler writes the modules as metadata of events that do not occur, which `ProfileData` does not show. So the
messages are read here, from the wire format of protocol buffers:

    XSpace.planes = 1                XPlane.name = 2, .event_metadata = 4 (a map: key = 1, value = 2)
    XEventMetadata.name = 2, .stats = 5      XStat.bytes_value = 6      HloProto.hlo_module = 1
"""

from collections.abc import Iterator

_METADATA_PLANE = b"/host:metadata"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PLANES = _HLO_MODULE = 1
_NAME = _MAP_VALUE = 2
_EVENT_METADATA, _STATS, _BYTES_VALUE = 4, 5, 6


def module_protos(profile: bytes) -> dict[str, bytes]:
    """Return the serialized `HloModuleProto` of each program of a profile, by name and id: `step(3977)`.

    Args:
        profile: a serialized `XSpace`, which `ProfileData` has accepted.

    Raises:
        ValueError: if a message is truncated or malformed.
    """
    protos: dict[str, bytes] = {}
    for plane in _messages(profile, _PLANES):
        if _METADATA_PLANE not in _messages(plane, _NAME):
            continue
        for entry in _messages(plane, _EVENT_METADATA):
            for metadata in _messages(entry, _MAP_VALUE):
                name = b"".join(_messages(metadata, _NAME)).decode(errors="replace")
                for stat in _messages(metadata, _STATS):
                    for proto in _messages(stat, _BYTES_VALUE):
                        protos[name] = b"".join(_messages(proto, _HLO_MODULE))
    return protos


def _messages(message: bytes, number: int) -> list[bytes]:
    """Return the values of a field of strings, bytes or messages."""
    return [value for field, value in _fields(message) if field == number]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each field of strings, bytes or messages."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, position = _varint(message, position)
            continue
        if wire_type == _BYTES:
            size, position = _varint(message, position)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"a field of wire type {wire_type}")
        if position + size > len(message):
            raise ValueError(f"a field of {size} bytes, of which {len(message) - position} exist")
        if wire_type == _BYTES:
            yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return an integer, and the position after it."""
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
    raise ValueError("an integer without an end")

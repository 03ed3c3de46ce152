"""Bound the decoded size of zstd data without decoding it, because TensorStore decodes without a bound.

A frame (RFC 8878) is a sequence of blocks, each with a header of 3 bytes. A block holds at most 128 KiB.
"""

_LARGEST_BLOCK = 1 << 17
_MAGIC = b"\x28\xb5\x2f\xfd"
_RAW, _REPEATED, _COMPRESSED = 0, 1, 2


def largest_decoded_size(data: bytes) -> int:
    """Return an upper bound of the decoded size of zstd frames.

    Raises:
        ValueError: if the data is not a sequence of frames.
    """
    size, position = 0, 0
    while position < len(data):
        if data[position + 1 : position + 4] == b"\x2a\x4d\x18" and data[position] >> 4 == 5:  # a skippable frame
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if data[position : position + 4] != _MAGIC or position + 5 > len(data):
            raise ValueError(f"there is no zstd frame at byte {position}")
        descriptor = data[position + 4]
        is_single = descriptor >> 5 & 1
        position += 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]  # window descriptor and dictionary id
        position += (is_single, 2, 4, 8)[descriptor >> 6]  # content size
        is_last = False
        while not is_last:
            if position + 3 > len(data):
                raise ValueError("a zstd frame is truncated")
            header = int.from_bytes(data[position : position + 3], "little")
            is_last, kind, block = bool(header & 1), header >> 1 & 3, header >> 3
            if block > _LARGEST_BLOCK or kind > _COMPRESSED:
                raise ValueError(f"there is no zstd block at byte {position}")
            size += _LARGEST_BLOCK if kind == _COMPRESSED else block
            position += 3 + (1 if kind == _REPEATED else block)
        position += 4 * (descriptor >> 2 & 1)  # a checksum
        if position > len(data):
            raise ValueError("a zstd frame is truncated")
    return size

"""Read the devices of a collective in HLO: the groups in which it communicates.

    replica_groups={{0,1},{2,3}}
    replica_groups=[2,4]<=[8]              the devices in order, as 2 groups of 4
    replica_groups=[4,2]<=[2,4]T(1,0)      those of the transposed 2 × 4 grid
    replica_groups=mesh['x'=4,'y'=2] {'x'}
    replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}

Devices are named by their positions in the device assignment.
"""

import math
import re
from typing import Any

import numpy as np

from shardwise.runtime.hlo_text import HloInstruction, bracketed, closing

_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_AXIS_USED = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_GRID = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_GROUPS = re.compile(r"\[(\d+),(\d+)\]<=")
_DEVICE_IDS = re.compile(r"device_ids=\(")
_PAIR = re.compile(r"\{(\d+),\s*(\d+)\}")


def device_groups(instruction: HloInstruction) -> list[tuple[int, ...]]:
    """Return the groups of a collective; none if all devices are one group.

    Raises:
        ValueError: if they have another form.
    """
    text = instruction.value("replica_groups")
    if text is None or text.startswith("{}"):
        return []
    if text.startswith("{"):
        groups = re.findall(r"\{([\d,\s]+)\}", bracketed(text))
        return [tuple(map(int, group.split(","))) for group in groups]
    if shape := _GROUPS.match(text):
        return _rows(_grid(text[shape.end() :]).reshape(int(shape[1]), int(shape[2])))
    if text.startswith("mesh["):
        return _mesh_groups(text)
    raise ValueError(f"replica groups in an unknown form: {instruction.line.strip()}")


def device_pairs(instruction: HloInstruction) -> list[tuple[int, int]]:
    """Return the pairs of devices of a permute that send to each other; a device that sends to itself is no pair."""
    pairs = _PAIR.findall(bracketed(instruction.value("source_target_pairs") or "{}"))
    return [(int(source), int(target)) for source, target in pairs if source != target]


def _mesh_groups(text: str) -> list[tuple[int, ...]]:
    """Return the groups along axes of a mesh; `'x':(2)4` is the part of size 4 of axis x, after parts of size 2."""
    end = closing(text, len("mesh"))
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(text[:end])}
    used = _AXIS_USED.findall(bracketed(text[text.index("{", end) :]))
    shape: list[int] = []
    communicating: list[int] = []
    for name, size in sizes.items():
        parts = sorted((int(before), int(part)) for axis, before, part in used if axis == name and part)
        if not parts:
            communicating += [len(shape)] if (name, "", "") in used else []
            shape.append(size)
            continue
        done = 1
        for before, part in parts:
            communicating.append(len(shape) + 1)
            shape += [before // done, part]
            done = before * part
        shape.append(size // done)
    ids = _DEVICE_IDS.search(text)
    devices = (_grid(text[ids.end() :]) if ids else np.arange(math.prod(shape))).reshape(shape)
    others = [dim for dim in range(len(shape)) if dim not in communicating]
    return _rows(devices.transpose(*others, *communicating).reshape(-1, math.prod(shape[dim] for dim in communicating)))


def _grid(text: str) -> np.ndarray[Any, np.dtype[np.int_]]:
    """Return the devices in the order of `[2,4]T(1,0)`: those of a 2 × 4 grid, transposed."""
    match = _GRID.match(text)
    assert match is not None, text
    devices = np.arange(math.prod(_numbers(match[1]))).reshape(_numbers(match[1]))
    return devices.transpose(_numbers(match[2])) if match[2] else devices


def _rows(devices: np.ndarray[Any, np.dtype[np.int_]]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in devices.tolist()]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]

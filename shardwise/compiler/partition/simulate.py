"""simulate: a local program on all devices at once, in numpy. The oracle between `evaluate` and a real run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.partition.local_program import LocalProgram, Placement
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


def simulate(local: LocalProgram, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """The whole outputs for whole `args`. Padding starts as junk, so that an op that looks at it shows."""
    pieces = [
        split_into_shards(placement, np.asarray(arg, placement.type.dtype), local.mesh)
        for placement, arg in zip(local.inputs, args, strict=True)
    ]
    outputs = _run(local.program, local.mesh, pieces)
    return tuple(
        assemble_shards(placement, found, local.mesh) for placement, found in zip(local.outputs, outputs, strict=True)
    )


def _run(program: Program, mesh: AbstractMesh, args: Sequence[list[NumpyArray]]) -> list[list[NumpyArray]]:
    """The outputs of a program on all devices: a value is the list of its pieces."""
    env: dict[Value, list[NumpyArray]] = dict(zip(program.inputs, args, strict=True))
    devices = range(mesh.size)
    for equation in program.equations:
        op = equation.op
        operands = [env[value] for value in equation.inputs]
        if isinstance(op, Collective):
            found = op.exchange(mesh, *(operands or [[]]))
            results: list[Any] = [found] if op.single else found
        elif isinstance(op, Control):
            results = op.interpret(lambda n, given, op=op: _run(op.programs[n], mesh, given), operands, mesh.size)  # type: ignore[misc]
        else:
            each = [op.reference(*(pieces[device] for pieces in operands)) for device in devices]
            results = [each] if op.single else list(map(list, zip(*each, strict=True)))
        for value, pieces in zip(equation.outputs, results, strict=True):
            env[value] = [np.asarray(piece, value.type.dtype) for piece in pieces]
    return [env[value] for value in program.outputs]


def split_into_shards(placement: Placement, array: NumpyArray, mesh: AbstractMesh) -> list[NumpyArray]:
    """The pieces of a whole array, one a device, padded with junk."""
    dtype = placement.type.dtype
    junk = np.nan if is_inexact(dtype) else np.True_ if dtype == np.bool_ else 77
    pieces = []
    for index in placement.layout.shard_indices(placement.type.shape, mesh):
        piece = np.full(placement.shard_shape(mesh), junk, dtype)
        inside = array[index]
        piece[tuple(slice(0, size) for size in inside.shape)] = inside
        pieces.append(piece)
    return pieces


def assemble_shards(placement: Placement, pieces: Sequence[NumpyArray], mesh: AbstractMesh) -> NumpyArray:
    """The whole array; devices that hold the same part must agree to the bit."""
    whole = np.zeros(placement.type.shape, placement.type.dtype)
    seen: dict[tuple[Any, ...], NumpyArray] = {}
    for piece, index in zip(pieces, placement.layout.shard_indices(placement.type.shape, mesh), strict=True):
        inside = piece[tuple(slice(0, part.stop - part.start) for part in index)]
        key = tuple((part.start, part.stop) for part in index)
        if seen.setdefault(key, inside).tobytes() != inside.tobytes():
            raise ProgramError(f"devices disagree on part {key} of {placement.type} in {placement.layout}")
        whole[index] = inside
    return whole

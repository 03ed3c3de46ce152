"""evaluate_shards: run a local program on all devices in numpy, as the test oracle between `evaluate` and real runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ops.collective.collectives import zero_term
from shardwise.compiler.partition.local_program import LocalProgram, Placement
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


def evaluate_shards(local: LocalProgram, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """Return the global outputs for global `args`. Padding starts as garbage, so reading it changes the results."""
    shards = [
        split_into_shards(placement, np.asarray(arg, placement.type.dtype), local.mesh)
        for placement, arg in zip(local.inputs, args, strict=True)
    ]
    outputs = _run(local.program, local.mesh, shards)
    return tuple(
        assemble_shards(placement, output, local.mesh) for placement, output in zip(local.outputs, outputs, strict=True)
    )


def _run(program: Program, mesh: AbstractMesh, args: Sequence[list[NumpyArray]]) -> list[list[NumpyArray]]:
    """Return the outputs of a program on all devices. Each value is a list of shards, one per device."""
    env: dict[Value, list[NumpyArray]] = dict(zip(program.inputs, args, strict=True))
    for equation in program.equations:
        op = equation.op
        operands = [env[value] for value in equation.inputs]
        results = op.run_on_shards(mesh, operands, lambda n, args, op=op: _run(op.programs[n], mesh, args))  # type: ignore[misc]
        for value, shards in zip(equation.outputs, results, strict=True):
            env[value] = [np.asarray(shard, value.type.dtype) for shard in shards]
    return [env[value] for value in program.outputs]


def split_into_shards(placement: Placement, array: NumpyArray, mesh: AbstractMesh) -> list[NumpyArray]:
    """Return the shards of a global array, or of its partial terms, one per device, padded with garbage."""
    dtype = placement.type.dtype
    garbage = np.nan if is_inexact(dtype) else np.True_ if dtype == np.bool_ else 77
    terms = _terms(array, mesh.extent([axis for axis, _ in placement.layout.partial]))
    shards = []
    indices = placement.layout.shard_indices(placement.type.shape, mesh)
    for index, number in zip(indices, _term_numbers(placement.layout, mesh), strict=True):
        shard = np.full(placement.shard_shape(mesh), garbage, dtype)
        inside = terms[number][index]
        shard[tuple(slice(0, size) for size in inside.shape)] = inside
        shards.append(shard)
    return shards


def _term_numbers(layout: Layout, mesh: AbstractMesh) -> list[int]:
    """Return the index of the partial term that each device holds, if the layout is partial."""
    return mesh.coordinates([axis for axis, _ in layout.partial]).tolist()  # type: ignore[no-any-return]


def _terms(array: NumpyArray, count: int) -> list[NumpyArray]:
    """Return terms whose exact sum is `array`: two nonzero terms and zeros, so that no term equals the sum."""
    zero = np.full_like(array, zero_term(array.dtype))
    if count == 1:
        return [array]
    if array.dtype == np.bool_:
        return [array, *[zero] * (count - 1)]
    with np.errstate(all="ignore"):
        double = (array + array).astype(array.dtype)
        exact = np.isfinite(double) if is_inexact(array.dtype) else np.ones_like(array, np.bool_)
        first, last = np.where(exact, double, array), np.where(exact, np.negative(array), zero)
    return [first.astype(array.dtype), *[zero] * (count - 2), last.astype(array.dtype)]


def assemble_shards(placement: Placement, shards: Sequence[NumpyArray], mesh: AbstractMesh) -> NumpyArray:
    """Return the global array; if the layout is partial, the sum of the terms.

    Raises:
        ProgramError: if replicas of the same part of the array, or of a term, are not bitwise equal.
    """
    array = np.full(placement.type.shape, zero_term(placement.type.dtype), placement.type.dtype)
    seen: dict[tuple[Any, ...], NumpyArray] = {}
    indices = placement.layout.shard_indices(placement.type.shape, mesh)
    for shard, index, term in zip(shards, indices, _term_numbers(placement.layout, mesh), strict=True):
        inside = shard[tuple(slice(0, part.stop - part.start) for part in index)]
        key = tuple((part.start, part.stop) for part in index)
        first = seen.setdefault((term, key), inside)
        if first.tobytes() != inside.tobytes():
            raise ProgramError(f"devices disagree on part {key} of {placement.type} in {placement.layout}")
        if first is inside:
            array[index] = SUM.ufunc(array[index], inside) if placement.layout.partial else inside
    return array

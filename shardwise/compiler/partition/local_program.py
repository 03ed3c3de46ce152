"""LocalProgram: the program that every device runs on its pieces, and how the pieces make up whole arrays."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.compiler.ir.format import format_stage
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


@final
@dataclass(frozen=True)
class Placement:
    """A whole array of `type` that lies in `layout`, padded at the end of uneven dims to an even size."""

    type: ArrayType
    layout: Layout

    def shard_shape(self, mesh: AbstractMesh) -> tuple[int, ...]:
        return self.layout.shard_shape(self.layout.padded_shape(self.type.shape, mesh), mesh)


@final
@dataclass(frozen=True, eq=False)
class LocalProgram:
    """`program` is over pieces; `inputs` and `outputs` say what they are pieces of."""

    program: Program
    mesh: AbstractMesh
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]

    def __str__(self) -> str:
        ins, outs = ([f"{p.type} {p.layout}" for p in placements] for placements in (self.inputs, self.outputs))
        return format_stage("local", self.program, self.mesh, ins, outs)

    def collectives(self) -> list[Equation]:
        """The equations that move bytes between devices, those of programs that ops hold too."""
        return [equation for equation in self.program.walk() if self.bytes_sent(equation) > 0]

    @cached_property
    def times(self) -> dict[Equation, int]:
        """How often each equation runs; of a loop whose length is not known, one turn counts."""
        return dict(_often(self.program, 1))

    def bytes_sent(self, equation: Equation) -> float:
        """The bytes that one device sends for this equation each time it runs."""
        if not isinstance(equation.op, Collective):
            return 0
        return equation.op.bytes_sent(equation.inputs[0].type, self.mesh) if equation.inputs else 0

    @cached_property
    def sent(self) -> float:
        """The bytes that one device sends in one call."""
        return sum(times * self.bytes_sent(equation) for equation, times in self.times.items())

    def counts(self) -> dict[str, float]:
        """Of one device, in one call: flops of products, bytes that ops read and write, bytes that it sends."""
        flops = touched = 0.0
        for equation, times in self.times.items():
            touched += times * sum(value.type.nbytes for value in (*equation.inputs, *equation.outputs))
            if equation.op.is_contraction:
                sizes = factor_rule(equation.op, tuple(value.type for value in equation.inputs)).sizes
                flops += times * 2.0 * math.prod(sizes)
        return {"flops": flops, "bytes accessed": touched, "wire bytes": self.sent}


def _often(program: Program, times: int) -> Iterator[tuple[Equation, int]]:
    """Every equation, those of programs that ops hold too, and how often it runs."""
    for equation in program.equations:
        yield equation, times
        if isinstance(equation.op, Control):
            for inner in equation.op.programs:
                yield from _often(inner, times * (1 if equation.op.trip_count is None else equation.op.trip_count))


def verify_local(local: LocalProgram) -> LocalProgram:
    """`local`, if its program keeps the rules and its pieces have the shapes that their placements give."""
    verify(local.program)
    for what, values, placements in (
        ("input", local.program.inputs, local.inputs),
        ("output", local.program.outputs, local.outputs),
    ):
        for number, (value, placement) in enumerate(zip(values, placements, strict=True)):
            if len(placement.layout.dims) != placement.type.ndim:
                raise ProgramError(
                    f"{local.program.name}: {what} {number}: {placement.layout} is not for {placement.type}"
                )
            for axis in placement.layout.axes:
                if axis not in local.mesh.shape:
                    raise ProgramError(
                        f"{local.program.name}: {what} {number}: {local.mesh.unknown_axis_message(axis)}"
                    )
            if value.type.shape != placement.shard_shape(local.mesh) or value.type.dtype != placement.type.dtype:
                raise ProgramError(
                    f"{local.program.name}: {what} {number} is {value.type}, but a piece of {placement.type} in "
                    f"{placement.layout} has shape {placement.shard_shape(local.mesh)}"
                )
            if placement.layout.partial:
                raise ProgramError(f"{local.program.name}: {what} {number} is partial: {placement.layout}")
    return local

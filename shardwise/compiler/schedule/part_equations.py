"""part_equations: an equation applied to one part of its operands, by the `localize` rule of its op.

A part is to an equation what a shard is: a range of indices along a dim. Only its position is known while compiling.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.schedule.split_region import SplitDims
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.tracer import Frame

_AXIS = "part"


def part_type(whole: ArrayType, dim: int, parts: int) -> ArrayType:
    """Return the type of one of several parts of an array along a dim."""
    return whole.with_shape((*whole.shape[:dim], whole.shape[dim] // parts, *whole.shape[dim + 1 :]))


def part_equations(
    equation: Equation, operands: Sequence[Value], dims: SplitDims, parts: int, part: int
) -> tuple[list[Equation], Value]:
    """Return the equations that compute one part of an equation's result, and this part.

    Args:
        equation: the equation, with one result.
        operands: the parts of its operands; all of an operand that is not split.
        dims: the dims along which it is split.
        parts: the number of parts.
        part: the index of the part.
    """
    if type(equation.op).localize is Op.localize:
        result = Value(part_type(equation.outputs[0].type, dims.result, parts))
        return [equation.replace(inputs=operands, outputs=[result])], result
    frame = Frame("part", stages_all=True)
    with frame.open(over=()):
        tracers = [frame.input(value.type) for value in operands]
        result = frame.lift(equation.op.localize(_PartView(equation, dims, parts, part), *tracers))
    program = frame.program([result])
    values = dict(zip(program.inputs, operands, strict=True))
    equations = []
    for each in program.equations:
        results = [Value(value.type) for value in each.outputs]
        equations.append(equation.replace(op=each.op, inputs=[values[v] for v in each.inputs], outputs=results))
        values.update(zip(each.outputs, results, strict=True))
    return equations, values[program.outputs[0]]


@final
class _PartView:
    """One part of an equation: the `LocalContext` of its op. Parts are the shards along an axis of their own."""

    def __init__(self, equation: Equation, dims: SplitDims, parts: int, part: int):
        whole = equation.outputs[0].type
        self.out_shapes: tuple[tuple[int, ...], ...] = (part_type(whole, dims.result, parts).shape,)
        self.auto_axes: tuple[str, ...] = (_AXIS,)
        self.global_types = tuple(value.type for value in equation.inputs)
        self.mesh = AbstractMesh((parts,), (_AXIS,))
        self.layouts: Sequence[Layout] = (Layout.replicated(whole.ndim).with_dim(dims.result, (_AXIS,)),)
        self._dims = dims
        self._part = part

    def mesh_axes_of(self, name: str) -> tuple[str, ...]:
        raise KeyError(name)  # manual regions are inlined before

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        split_dim = self._dims.result if operand is None else self._dims.operands[operand]
        axes = (_AXIS,) if dim == split_dim else ()
        return axes, self.mesh.extent(axes)

    def offset(self, dim: int, dtype: DTypeLike, operand: int | None = None) -> Any:
        _, parts = self.sharding_of(dim, operand)
        if parts == 1:
            return None
        size = self.out_shapes[0][dim] if operand is None else self.global_types[operand].shape[dim] // parts
        return full((), self._part * size, dtype)

"""part_equations: an equation applied to one part of its operands, by the `localize` rule of its op.

A part is to an equation what a shard is: a range of indices along a dim. Only its position is known while compiling.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.schedule.split_region import SplitDims
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.tracer import Frame

_AXIS = "part"


@registered_cache(maxsize=4096)
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
    op, source, reason = equation.op, equation.source, equation.reason
    if type(op).localize is Op.localize:
        result = Value(part_type(equation.outputs[0].type, dims.result, parts))
        return [Equation(op, operands, (result,), source, reason)], result
    types, whole_types = tuple([x.type for x in operands]), tuple([x.type for x in equation.inputs])
    program = _localized(op, types, whole_types, equation.outputs[0].type, dims, parts, part)
    values = dict(zip(program.inputs, operands, strict=True))
    equations = []
    for each in program.equations:
        results = [Value(value.type) for value in each.outputs]
        equations.append(Equation(each.op, [values[v] for v in each.inputs], results, source, reason))
        values.update(zip(each.outputs, results, strict=True))
    return equations, values[program.outputs[0]]


@registered_cache(maxsize=4096)  # equal layers are localized once
def _localized(
    op: Op,
    types: tuple[ArrayType, ...],
    whole_types: tuple[ArrayType, ...],
    whole: ArrayType,
    dims: SplitDims,
    parts: int,
    part: int,
) -> Program:
    """Return the program that applies an op to operands of `types`: one part of operands of `whole_types`."""
    frame = Frame("part", stages_all=True)
    with frame.open(over=()):
        tracers = [frame.input(type) for type in types]
        result = frame.lift(op.localize(_PartView(whole_types, whole, dims, parts, part), *tracers))
    return frame.program([result])


@final
class _PartView:
    """One part of an equation: the `LocalContext` of its op. Parts are the shards along an axis of their own."""

    def __init__(self, whole_types: tuple[ArrayType, ...], whole: ArrayType, dims: SplitDims, parts: int, part: int):
        self.out_shapes: tuple[tuple[int, ...], ...] = (part_type(whole, dims.result, parts).shape,)
        self.auto_axes: tuple[str, ...] = (_AXIS,)
        self.global_types = whole_types
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

"""emit_parts: rewrite a program so that the equations of a region are computed in parts.

The equations between two collectives of the region are a stage. All parts of a stage run one after the other, and then
the parts of the next stage: while a part of a collective is in flight, the other parts of its stage, or the first ones
of the next stage, are computed. Control dependencies enforce this order, because XLA does not know how long collectives
and products take.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import final

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.shape.slicing import Concatenate, Slice
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from shardwise.compiler.schedule.kernel_graph import ancestor_bits
from shardwise.compiler.schedule.part_equations import part_equations, part_type
from shardwise.compiler.schedule.split_region import SplitRegion
from shardwise.compiler.schedule.topological_sort import topological_sort


def emit_parts(
    program: Program, region: SplitRegion, collectives: Mapping[Equation, int], launch_ids: Iterator[int]
) -> Program:
    """Return the program with the equations of a region in parts.

    Args:
        program: the program.
        region: the region.
        collectives: the equations that communicate.
        launch_ids: the ids of barriers.
    """
    emitter = _Emitter(program, region, collectives)
    blocks = emitter.emit()
    split = topological_sort(program.with_equations(emitter.equations()), (), launch_ids)
    return order_by_dependencies(split, list(_dependencies(split, blocks)), launch_ids)


def split_stages(program: Program, region: SplitRegion, collectives: Mapping[Equation, int]) -> dict[Equation, int]:
    """Return for each equation of the region the largest number of collectives of the region on a path to it."""
    after: dict[Value, int] = {}
    stages = {}
    for equation in program.equations:
        stage = max((after.get(value, 0) for value in equation.inputs), default=0)
        if equation in region.dims:
            stages[equation] = stage
            stage += equation in collectives
        after.update(dict.fromkeys(equation.outputs, stage))
    return stages


@final
@dataclass(frozen=True, eq=False)
class _Block:
    """One part of a stage.

    Attributes:
        received: the parts of the collectives at the end of the preceding stage.
        equations: its equations.
    """

    received: list[Equation]
    equations: list[Equation] = field(default_factory=list)

    @cached_property
    def products(self) -> list[Equation]:
        """The products among the equations, once all are emitted."""
        return [equation for equation in self.equations if equation.op.is_contraction]


@final
class _Emitter:
    """Emits the equations of a program, those of a region in parts.

    Attributes:
        program: the program.
        region: the region.
        collectives: the equations that communicate.
        parts: the parts of each split value, along a dim.
        slices: parts of other values, along a dim.
        order: lists of equations in the order of the program.
    """

    def __init__(self, program: Program, region: SplitRegion, collectives: Mapping[Equation, int]):
        self.program = program
        self.region = region
        self.collectives = collectives
        self.parts: dict[tuple[Value, int], list[Value]] = {}
        self.slices: dict[tuple[Value, int, int], Value] = {}
        self.order: list[list[Equation]] = []

    def emit(self) -> list[_Block]:
        """Emit all equations. Return the blocks of the region in the order in which they should run."""
        region = self.region
        joined = set(region.joined_values(self.program))
        stages = split_stages(self.program, region, self.collectives)
        sent: dict[tuple[int, int], list[Equation]] = {}  # the parts of collectives, by the stage after them
        blocks: dict[int, list[_Block]] = {}
        for equation in self.program.equations:
            dims = region.dims.get(equation)
            if dims is None or not equation.inputs:
                self.order.append([equation])
            if dims is None:
                continue
            stage = stages[equation]
            if stage not in blocks:
                blocks[stage] = [_Block(sent.setdefault((stage, part), [])) for part in range(region.parts)]
                self.order += [block.equations for block in blocks[stage]]
            (result,) = equation.outputs
            results = []
            for part, block in enumerate(blocks[stage]):
                operands = [
                    value if dim is None else self._part(value, dim, part, block.equations)
                    for value, dim in zip(equation.inputs, dims.operands, strict=True)
                ]
                emitted, value = part_equations(equation, operands, dims, region.parts, part)
                block.equations.extend(emitted)
                results.append(value)
                if equation in self.collectives:
                    sent.setdefault((stage + 1, part), []).extend(emitted)
            self.parts[result, dims.result] = results
            if result in joined:
                self.order.append([Equation(Concatenate(dims.result), results, [result], equation.source)])
        return [block for stage in sorted(blocks) for block in blocks[stage]]

    def _part(self, value: Value, dim: int, part: int, block: list[Equation]) -> Value:
        """Return a part of a value. If it is not computed in parts along this dim, it is sliced."""
        if (value, dim) in self.parts:
            return self.parts[value, dim][part]
        key = value, dim, part
        if key not in self.slices:
            self.slices[key] = Value(part_type(value.type, dim, self.region.parts))
            size = self.slices[key].type.shape[dim]
            start, limit = [0] * value.type.ndim, list(value.type.shape)
            start[dim], limit[dim] = part * size, (part + 1) * size
            op = Slice(tuple(start), tuple(limit), (1,) * value.type.ndim)
            block.append(Equation(op, [value], [self.slices[key]]))
        return self.slices[key]

    def equations(self) -> list[Equation]:
        """Return the emitted equations, without constants that are only read in parts."""
        equations = [equation for block in self.order for equation in block]
        used = {value for equation in equations for value in equation.inputs}.union(self.program.outputs)
        return [equation for equation in equations if equation.inputs or not used.isdisjoint(equation.outputs)]


def _dependencies(program: Program, blocks: Sequence["_Block"]) -> Iterator[ControlDependency]:
    """Yield dependencies that let blocks run one after the other.

    What reads a part of a collective waits for the last product of the block that runs before. Without it, XLA would
    also fuse kernels of two parts, which would wait for both parts of the collective. The first blocks read no
    collective of the region: their first products wait.
    """
    filled = [block for block in blocks if block.products]
    numbered = [equation for block in filled for equation in (*block.received, *block.products)]
    bits = {equation: 1 << index for index, equation in enumerate(dict.fromkeys(numbered))}
    ancestors = ancestor_bits(program, bits)

    def depends(equation: Equation, others: Sequence[Equation]) -> bool:
        return any(ancestors[value] & bits[other] for value in equation.inputs for other in others)

    for before, block in pairwise(filled):
        last = before.products[-1]
        if block.received:
            received = [each for each in block.received if not depends(each, [last]) and not depends(last, [each])]
            if received:
                yield ControlDependency((), (*received, last))
        else:
            first = [
                each
                for each in block.products
                if not depends(each, [*block.products, last]) and not depends(last, [each])
            ]
            if first:
                yield ControlDependency(first, (last,))

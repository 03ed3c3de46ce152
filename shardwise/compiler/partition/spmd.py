"""partition: every equation of a sharded program on one device's pieces, with the steps that bring operands there.

For each equation: bring its operands into the layouts that the plan chose (`_Copies` remembers every copy, so equal
gathers are shared), clear the padding where the op could see it, and emit the op on the pieces.

Uneven dims: inside the program all dims of one padding class share one padded size (30 rows on 4 devices: 32), so that
pieces line up in every layout. At inputs and outputs an array has the padded size of its own layout; changing from one
to the other is a step like any other.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective, DeviceIndex, LocalSlice, PadOrTrim, ToPartial
from shardwise.compiler.ops.collective.named import Named
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.control.control import Control, DataDependentControl
from shardwise.compiler.ops.control.manual import Manual
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.partition.collective_cse import merge_equal_collectives
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.partition.reason import ByHand, Cause
from shardwise.compiler.partition.reshard import reshard_steps, step_cost
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.plan.verify import verify_plan
from shardwise.compiler.propagate.dim_groups import DimGroups, padding_classes
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.propagate.unfold import BoundarySlot
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.trace.tracer import Frame
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.replay import restore_source
from shardwise.config import config


def partition(sharded: ShardedProgram, plan: LayoutPlan) -> LocalProgram:
    """The program of one device."""
    program, mesh = sharded.program, sharded.mesh
    if not mesh.axis_names:
        inputs, outputs = (
            tuple(Placement(value.type, Layout.replicated(value.type.ndim)) for value in values)
            for values in (program.inputs, program.outputs)
        )
        whole = LocalProgram(program, mesh, inputs, outputs)
        return verify_local(whole) if config.verify_programs else whole
    verify_plan(sharded, plan)
    frame = Frame(program.name, stages_all=True)
    with frame.open(over=()), restore_source():
        run = _Partitioner(sharded, plan, frame)
        pieces = run.run()
    inputs = tuple(Placement(v.type, pin.layout) for v, pin in zip(program.inputs, sharded.in_pins, strict=True))
    placed = tuple(Placement(v.type, layout) for v, layout in zip(program.outputs, plan.outputs, strict=True))
    local = dce(merge_equal_collectives(frame.program([frame.lift(piece) for piece in pieces])))
    return verify_local(LocalProgram(local, mesh, inputs, placed))


@final
@dataclass(frozen=True)
class _Piece:
    """One copy of a value: the tracer of its pieces, their layout, the padded whole, and what the padding holds.

    `fills[d]` is what lies past the end of dim d, whatever the other indices; None where unknown.
    """

    tracer: Any
    layout: Layout
    padded: tuple[int, ...]
    fills: tuple[Any, ...]


@final
class _LocalContext:
    """What an op's `localize` sees of its results, and of how its operands lie."""

    def __init__(
        self,
        layouts: Sequence[Layout],
        padded: Sequence[tuple[int, ...]],
        mesh: AbstractMesh,
        types: tuple[ArrayType, ...] = (),
        operands: Sequence[_Piece] = (),
        regions: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ):
        self.layouts = layouts
        self.mesh = mesh
        self.global_types = types
        self.operands = operands
        self.out_shapes = tuple(layout.shard_shape(sizes, mesh) for layout, sizes in zip(layouts, padded, strict=True))
        self.regions = regions
        held = {part for parts in regions.values() for part in parts}
        self.auto_axes = tuple([axis for axis in mesh.axis_names if axis not in held])

    def mesh_axes_of(self, name: Any) -> tuple[str, ...]:
        return self.regions[name]

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        axes = (self.layouts[0] if operand is None else self.operands[operand].layout).dims[dim]
        return axes, self.mesh.extent(axes)

    def offset(self, dim: int, dtype: Any, operand: int | None = None) -> Any:
        axes, _ = self.sharding_of(dim, operand)
        if not axes:
            return None
        index = DeviceIndex(axes)()
        piece = self.out_shapes[0] if operand is None else self.operands[operand].tracer.type.shape
        start = Mul()(index, full((), piece[dim], np.int32))
        return start if np.dtype(dtype) == np.int32 else Convert(np.dtype(dtype))(start)


class _Partitioner:
    def __init__(self, sharded: ShardedProgram, plan: LayoutPlan, frame: Frame):
        self.sharded = sharded
        self.program = sharded.program
        self.mesh = sharded.mesh
        self.plan = plan
        self.frame = frame
        self.classes = padding_classes(sharded.unfolded.equations)
        self.sizes = _padded_sizes(self.program, plan, self.mesh, self.classes)
        self.copies: dict[Value, list[_Piece]] = defaultdict(list)
        self.producer = {value: e for e in sharded.unfolded.equations for value in e.outputs}
        self.origin: dict[Value, str] = {}
        self.made: dict[tuple[Value, Layout, tuple[int, ...]], _Piece] = {}
        self.regions: Mapping[str, tuple[str, ...]] = {}  # the axes of the manual regions around

    def run(self) -> list[Any]:
        for number, (value, pin) in enumerate(zip(self.program.inputs, self.sharded.in_pins, strict=True)):
            padded = pin.layout.padded_shape(value.type.shape, self.mesh)
            tracer = self.frame.input(value.type.with_shape(pin.layout.shard_shape(padded, self.mesh)))
            self.copies[value].append(_Piece(tracer, pin.layout, padded, (None,) * value.type.ndim))
            self.origin[value] = pin.reason or f"input {number}"
        self._equations(self.program)
        outputs = []
        for number, (value, layout) in enumerate(zip(self.program.outputs, self.plan.outputs, strict=True)):
            made = self.producer.get(value)
            provenance.source = made.source if made else None
            asked = self.sharded.out_pins[number]
            user = (asked.reason if asked else "") or f"output {number}"
            piece = self._copy(value, layout, layout.padded_shape(value.type.shape, self.mesh), user)
            outputs.append(piece.tracer)
        provenance.reason = ""
        return outputs

    def _equations(self, program: Program) -> None:
        """Emit what is planned; a free value is made when it is needed."""
        for equation in program.equations:
            provenance.source, provenance.reason = equation.source, ""
            if equation in self.plan.choices:
                pieces = self._emit(equation, self.plan.choices[equation])
            elif isinstance(equation.op, Manual):
                pieces = self._manual(equation, equation.op)
            elif isinstance(equation.op, Control):
                pieces = self._control(equation, equation.op)
            else:
                continue
            for value, piece in zip(equation.outputs, pieces, strict=True):
                self.copies[value].append(piece)
                self.origin[value] = f"{equation.op.name} at {equation.source}"

    def _control(self, equation: Equation, op: Control) -> list[_Piece]:
        """A control op whose programs are partitioned too; values cross in the layouts of its boundary ops."""
        border = self.sharded.unfolded.boundaries[equation]
        crossed: dict[BoundarySlot, _Piece] = {}

        def cross(value: Value, place: BoundarySlot, user: str) -> Any:
            rule = _rule(place.equation)
            layout = self.plan.choices[place.equation].operands[place.number]
            padded = self._padded(value, rule, rule.operands[place.number], layout)
            crossed[place] = self._copy(value, layout, padded, user)
            return crossed[place].tracer

        def arrive(value: Value, place: BoundarySlot, tracer: Any) -> _Piece:
            """What a boundary op returns: a piece in the layout that the plan has for it."""
            rule = _rule(place.equation)
            layout = self.plan.choices[place.equation].results[place.number]
            padded = self._padded(value, rule, rule.results[place.number], layout)
            came = [crossed.get(BoundarySlot(place.equation, number)) for number in range(len(place.equation.inputs))]
            fills: tuple[Any, ...] = (None,) * value.type.ndim
            if all(piece is not None for piece in came):
                fills = self._fills(place.equation, rule, place.number, [piece for piece in came if piece], padded)
            self.origin[value] = f"{op.name} at {equation.source}"
            if tracer is None:
                tracer = self.frame.input(value.type.with_shape(layout.shard_shape(padded, self.mesh)))
            return _Piece(tracer, layout, padded, fills)

        user = f"{op.name} at {equation.source}"
        operands = [cross(value, place, user) for value, place in zip(equation.inputs, border.operands, strict=True)]
        programs = []
        for program, entries, exits in zip(op.programs, border.entries, border.exits, strict=True):
            outside, self.frame = self.frame, Frame(program.name, stages_all=True)
            with self.frame.open(over=()):
                for value, place in zip(program.inputs, entries, strict=True):
                    self.copies[value].append(arrive(value, place, None))
                self._equations(program)
                provenance.source = equation.source
                leaving = [
                    cross(value, place, f"what {op.name} at {equation.source} gives on")
                    for value, place in zip(program.outputs, exits, strict=True)
                ]
                programs.append(self.frame.program([self.frame.lift(x) for x in leaving]))
            self.frame = outside
        local = op.with_programs(programs)
        if self.regions and isinstance(local, DataDependentControl):
            local = local.allowing_divergence()
        results = local(*operands)
        provenance.source = equation.source
        return [
            arrive(value, place, tracer)
            for value, place, tracer in zip(equation.outputs, border.results, results, strict=True)
        ]

    def _manual(self, equation: Equation, op: Manual) -> list[_Piece]:
        """A manual region: what its devices do with their pieces stands in its place."""
        border = self.sharded.unfolded.boundaries[equation]
        user = f"{op.name} at {equation.source}"

        def crossed(outer: Value, inner: Value, place: BoundarySlot, user: str) -> _Piece:
            """A copy on one side of the border, seen from the other."""
            rule, choice = _rule(place.equation), self.plan.choices[place.equation]
            layout, after = choice.operands[0], choice.results[0]
            piece = self._copy(outer, layout, self._padded(outer, rule, rule.operands[0], layout), user)
            padded = self._padded(inner, rule, rule.results[0], after)
            return _Piece(piece.tracer, after, padded, self._fills(place.equation, rule, 0, [piece], padded))

        for outer, inner, place in zip(equation.inputs, op.program.inputs, border.operands, strict=True):
            self.copies[inner].append(crossed(outer, inner, place, user))
            self.origin[inner] = self.origin.get(outer, "a value")
        outside, self.regions = self.regions, {**self.regions, **op.mesh_axes}
        self._equations(op.program)
        self.regions = outside
        provenance.source = equation.source
        leaving = f"what {op.name} at {equation.source} gives"
        return [
            crossed(inner, outer, place, leaving)
            for inner, outer, place in zip(op.program.outputs, equation.outputs, border.results, strict=True)
        ]

    def _emit(self, equation: Equation, choice: Choice) -> list[_Piece]:
        """The equation on pieces of its operands."""
        op = equation.op
        rule = _rule(equation)
        operands = []
        user = f"{op.name} at {equation.source}"
        units = self._units(equation, rule, choice)
        for value, layout, dims in zip(equation.inputs, choice.operands, rule.operands, strict=True):
            piece = self._copy(value, layout, self._padded(value, rule, dims, layout, units), user)
            for dim, factors in enumerate(dims):
                if factors and factors[0] in rule.reduce and piece.padded[dim] != value.type.shape[dim]:
                    piece = self._masked(value, piece, dim, rule.reduce[factors[0]].neutral_scalar(value.type.dtype))
            operands.append(piece)
        if isinstance(op, Constrain):
            return operands
        padded = [
            self._padded(value, rule, dims, layout, units)
            for value, dims, layout in zip(equation.outputs, rule.results, choice.results, strict=True)
        ]
        return self._localized(equation, rule, operands, choice.results, padded)

    def _localized(
        self,
        equation: Equation,
        rule: FactorRule,
        operands: Sequence[_Piece],
        layouts: Sequence[Layout],
        padded: Sequence[tuple[int, ...]],
    ) -> list[_Piece]:
        """The results of an op on pieces, and what their padding holds."""
        types = tuple(value.type for value in equation.inputs)
        shard = _LocalContext(layouts, padded, self.mesh, types, operands, self.regions)
        lie = [*zip([piece.layout for piece in operands], rule.operands, strict=True)]
        lie += zip(layouts, rule.results, strict=True)
        cuts = [(axes, mine) for layout, dims in lie for axes, mine in zip(layout.dims, dims, strict=True)]
        across = sorted({axis for axes, mine in cuts if mine and mine[0] in rule.exchange for axis in axes})
        provenance.reason = f"{equation.op.name} reaches across the cuts over {', '.join(across)}" if across else ""
        if isinstance(equation.op, Named):
            provenance.reason = ByHand(f"written by hand, along {', '.join(sorted(map(repr, equation.op.axis_names)))}")
        found = equation.op.localize(shard, *(piece.tracer for piece in operands))
        provenance.reason = ""
        return [
            _Piece(tracer, layout, sizes, self._fills(equation, rule, number, operands, sizes))
            for number, (tracer, layout, sizes) in enumerate(
                zip((found,) if equation.op.single else found, layouts, padded, strict=True)
            )
        ]

    def _fills(
        self,
        equation: Equation,
        rule: FactorRule,
        number: int,
        operands: Sequence[_Piece],
        padded: tuple[int, ...],
    ) -> tuple[Any, ...]:
        """What the padding of result `number` holds, given the operands'."""
        fills: list[Any] = []
        for factors, size in zip(rule.results[number], padded, strict=True):
            if not factors or factors[0] in rule.exchange or size == math.prod(rule.sizes[f] for f in factors):
                fills.append(None)
                continue
            along = [
                piece.fills[dim]
                for piece, table in zip(operands, rule.operands, strict=True)
                for dim, mine in enumerate(table)
                if mine[:1] == factors[:1]
            ]
            with np.errstate(all="ignore"):  # padding may overflow: nobody reads it
                fills.append(equation.op.padding(along))
        return tuple(fills)

    def _padded(
        self,
        value: Value,
        rule: FactorRule,
        dims: tuple[tuple[int, ...], ...],
        layout: Layout,
        units: Mapping[int, int] = MappingProxyType({}),
    ) -> tuple[int, ...]:
        """The padded size of each dim inside an op; its exact size where the op cannot have padding.

        An op that reaches across cuts can have it only where there are cuts. `units` has the padded size of each
        factor that is cut unevenly and leads a dim of several.
        """
        if not self.sizes:
            return value.type.shape
        return tuple(
            self._class_size(value, dim)
            if rule.is_paddable(factors) and (layout.dims[dim] or factors[0] not in rule.exchange)
            else size * units[factors[0]] // rule.sizes[factors[0]]
            if factors and factors[0] in units
            else size
            for dim, (factors, size) in enumerate(zip(dims, value.type.shape, strict=True))
        )

    def _units(self, equation: Equation, rule: FactorRule, choice: Choice) -> dict[int, int]:
        """The padded sizes of factors that are cut unevenly and lead a dim of several: as the dims have it that they
        lead, if these agree."""
        if not rule.compound_dims:
            return {}
        values = (*equation.inputs, *equation.outputs)
        units = {}
        for factor, places in _uneven(rule, choice, self.mesh).items():
            size, count = rule.sizes[factor], places[0][2]
            wanted = {
                Fraction(self._class_size(values[number], dim) * size, values[number].type.shape[dim])
                for number, dim, _ in places
            }
            unit = wanted.pop()
            agreed = not wanted and unit.denominator == 1 and unit % count == 0
            units[factor] = int(unit) if agreed else -(-size // count) * count
        return units

    def _class_size(self, value: Value, dim: int) -> int:
        return self.sizes.get(self.classes.find(value, dim), value.type.shape[dim])

    def _copy(self, value: Value, layout: Layout, padded: tuple[int, ...], user: str) -> _Piece:
        """A copy of `value` in this layout and padding, made from the cheapest copy there is."""
        if value in self.sharded.free:
            return self._made(value, layout, padded)
        for piece in self.copies[value]:
            if piece.layout == layout and piece.padded == padded:
                return piece
        whole = value.type
        found = min(
            ((self._route(whole, piece, layout, padded), number) for number, piece in enumerate(self.copies[value])),
            key=lambda item: (item[0][1], item[1]),
        )
        (steps, _), number = found
        piece = self.copies[value][number]
        for step, reached in steps:
            provenance.reason = Cause.of(self._reason(value, piece, layout, step, user), value, piece.layout, layout)
            piece = _stepped(piece, step, reached, whole.shape, self.mesh)
            if reached is not None:
                self.copies[value].append(piece)
        provenance.reason = ""
        return piece

    def _route(
        self, whole: ArrayType, piece: _Piece, layout: Layout, padded: tuple[int, ...]
    ) -> tuple[list[Any], float]:
        """The cheapest steps from a copy to a layout and padding.

        A dim that changes its padded size changes it in the layout that it has, in the one that it gets, or whole.
        """
        if piece.padded == padded:
            steps, cost = self._steps(whole, padded, piece.layout, layout)
            return list(steps), cost
        changed = [dim for dim in range(whole.ndim) if piece.padded[dim] != padded[dim]]
        dims = tuple(() if dim in changed else axes for dim, axes in enumerate(piece.layout.dims))
        found = []
        for middle in dict.fromkeys([piece.layout, layout, Layout(dims, piece.layout.partial)]):
            if not all(self._fits(middle, sizes) for sizes in (piece.padded, padded)):
                continue
            first, cost = self._steps(whole, piece.padded, piece.layout, middle)
            resizes, between = self._resized(whole, piece.padded, padded, middle)
            second, more = self._steps(whole, padded, middle, layout)
            found.append((_cut_at_once([*first, *resizes, *second]), cost + between + more))
        return min(found, key=lambda route: route[1])

    def _steps(
        self, whole: ArrayType, padded: tuple[int, ...], before: Layout, after: Layout
    ) -> tuple[tuple[Any, ...], float]:
        return reshard_steps(whole.with_shape(padded), self.mesh, before, after, self.plan.chip)

    def _fits(self, layout: Layout, sizes: tuple[int, ...]) -> bool:
        return layout.padded_shape(sizes, self.mesh) == sizes

    def _resized(
        self, whole: ArrayType, before: tuple[int, ...], after: tuple[int, ...], layout: Layout
    ) -> tuple[list[Any], float]:
        """Steps that change padded sizes in a layout: along a dim that is cut, pieces begin at other places."""
        steps: list[Any] = []
        cost, sizes, costs = 0.0, list(before), Costs(self.plan.chip, self.mesh)
        for dim, axes in enumerate(layout.dims):
            if before[dim] == after[dim]:
                continue
            count = self.mesh.extent(axes)
            size = after[dim] // count
            step = TakeWindow(dim, axes, count, 0, size, size) if axes else PadOrTrim(dim, size)
            cost += step_cost(step, whole.with_shape(layout.shard_shape(sizes, self.mesh)), costs)
            sizes[dim] = after[dim]
            steps.append((step, layout))
        return steps, cost

    def _reason(self, value: Value, piece: _Piece, layout: Layout, step: Any, user: str) -> str:
        origin = self.origin.get(value, "a value")
        if isinstance(step, TakeWindow):
            before, after = (f"{size} along dim {step.dim}" for size in (piece.tracer.type.shape[step.dim], step.width))
            return f"{origin} does not divide evenly: it lies in pieces of {before}; {user} needs pieces of {after}"
        if piece.layout.partial and not layout.partial:
            terms = ", ".join(f"{axis!r}" for axis, _ in piece.layout.partial)
            return f"{origin} leaves terms of a sum along {terms}; {user} needs the sum"
        return f"{origin} lies as {piece.layout}; {user} needs {layout}"

    def _made(self, value: Value, layout: Layout, padded: tuple[int, ...]) -> _Piece:
        """A free value, made in the layout that is wanted, once for each."""
        key = (value, layout, padded)
        if key not in self.made:
            self.made[key] = self._make(value, layout, padded)
        return self.made[key]

    def _make(self, value: Value, layout: Layout, padded: tuple[int, ...]) -> _Piece:
        if layout.partial:
            piece = self._made(value, Layout(layout.dims), padded)
            term = ToPartial(tuple(axis for axis, _ in layout.partial))(piece.tracer)
            return replace(piece, tracer=term, layout=layout)
        equation = self.producer[value]
        rule = _rule(equation)
        (dims,) = rule.results
        if all(rule.is_paddable(factors) and factors[0] not in rule.exchange for factors in dims):
            cut = {factors[0]: (layout.dims[dim], padded[dim]) for dim, factors in enumerate(dims)}
            operands = []
            for v, table in zip(equation.inputs, rule.operands, strict=True):
                wanted = [cut[factors[0]] if factors else ((), 1) for factors in table]  # a dim of 1 has no factor
                operands.append(self._made(v, Layout(tuple(axes for axes, _ in wanted)), tuple(n for _, n in wanted)))
            return self._localized(equation, rule, operands, [layout], [padded])[0]
        # A reshape of constants: made whole, then cut.
        operands = [self._made(v, Layout.replicated(v.type.ndim), v.type.shape) for v in equation.inputs]
        whole = Layout.replicated(value.type.ndim)
        (piece,) = self._localized(equation, rule, operands, [whole], [value.type.shape])
        for step, reached in self._route(value.type, piece, layout, padded)[0]:
            piece = _stepped(piece, step, reached, value.type.shape, self.mesh)
        return piece

    def _masked(self, value: Value, piece: _Piece, dim: int, wanted: Any) -> _Piece:
        """A copy whose padding along `dim` holds `wanted`; made once for each layout."""
        if piece.fills[dim] is not None and piece.fills[dim] == wanted:
            return piece
        shape = piece.tracer.type.shape
        index = Iota(shape, dim, np.dtype(np.int32)).localize(_LocalContext([piece.layout], [piece.padded], self.mesh))
        inside = Compare("LT")(index, full(shape, value.type.shape[dim], np.int32))
        cleared = Select()(inside, piece.tracer, full(shape, wanted, value.type.dtype, piece.tracer.type.weak))
        masked = replace(piece, tracer=cleared, fills=_filled(piece.fills, dim, wanted))
        if value in self.copies:
            self.copies[value] = [masked if copy is piece else copy for copy in self.copies[value]]
        return masked


def _rule(equation: Equation) -> FactorRule:
    return factor_rule(equation.op, tuple(value.type for value in equation.inputs))


def _stepped(
    piece: _Piece, step: Collective, reached: Layout | None, shape: tuple[int, ...], mesh: AbstractMesh
) -> _Piece:
    """The piece of an array of `shape` after one step; on the way to a layout (None), it has the one it comes from."""
    moved = replace(piece, tracer=step(piece.tracer), layout=reached or piece.layout)
    if reached is None or not isinstance(step, (PadOrTrim, TakeWindow, LocalSlice)):
        return moved
    dim, before = step.dim, piece.padded[step.dim]
    after = moved.tracer.type.shape[dim] * mesh.extent(reached.dims[dim])
    if after == before:
        return moved
    padded = tuple(after if d == dim else size for d, size in enumerate(piece.padded))
    fill, zero = piece.fills[dim], SUM.neutral_scalar(moved.tracer.type.dtype)
    if after > before:  # what is new is zero; from its own size on, that is all of the padding
        fill = zero if before == shape[dim] or (fill is not None and fill == zero) else None
    return replace(moved, padded=padded, fills=_filled(piece.fills, dim, fill))


def _cut_at_once(steps: list[Any]) -> list[Any]:
    """Steps in which no dim is padded whole just to be cut: each device makes its own block."""
    found: list[Any] = []
    for step, reached in steps:
        before = found[-1][0] if found else None
        if isinstance(step, LocalSlice) and isinstance(before, PadOrTrim) and before.dim == step.dim:
            found[-1] = (replace(step, of=before.size), reached)
        else:
            found.append((step, reached))
    return found


def _filled(fills: tuple[Any, ...], dim: int, fill: Any) -> tuple[Any, ...]:
    """What padding holds once that of `dim` holds `fill`: at the corners, this is past the end of other dims too."""
    return tuple(
        fill if d == dim else other if other is not None and fill is not None and other == fill else None
        for d, other in enumerate(fills)
    )


def _uneven(rule: FactorRule, choice: Choice, mesh: AbstractMesh) -> dict[int, list[tuple[int, int, int]]]:
    """The factors that are cut unevenly and lead a dim of several; of each, the dims that it leads, and how many pieces
    these are in: (number of the operand or result, dim, pieces)."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for factor in rule.compound & rule.leading:
        places = [
            (number, dim, mesh.extent(layout.dims[dim]))
            for number, (dims, layout) in enumerate(
                zip((*rule.operands, *rule.results), (*choice.operands, *choice.results), strict=True)
            )
            for dim, factors in enumerate(dims)
            if factors[:1] == (factor,)
        ]
        # Where factors after it are cut too, it is in single elements: evenly.
        if all(count <= rule.sizes[factor] and rule.sizes[factor] % count for _, _, count in places):
            found[factor] = places
    return found


def _padded_sizes(program: Program, plan: LayoutPlan, mesh: AbstractMesh, classes: DimGroups) -> dict[Any, int]:
    """For each padding class that some layout cuts unevenly: the smallest size that all of its layouts divide.

    Where a reshape is cut unevenly, a row on one side is several on the other: their classes are padded in step.
    """
    extents: dict[Any, int] = {}
    size: dict[Any, int] = {}

    def note(values: Sequence[Value], layouts: Sequence[Layout]) -> None:
        for value, layout in zip(values, layouts, strict=True):
            for dim, axes in enumerate(layout.dims):
                if not axes:
                    continue
                found = classes.find(value, dim)
                extents[found] = math.lcm(extents.get(found, 1), mesh.extent(axes))
                size[found] = value.type.shape[dim]

    for equation, choice in plan.choices.items():
        note(equation.inputs, choice.operands)
        note(equation.outputs, choice.results)
    note(program.outputs, plan.outputs)
    steps = _in_step(plan, mesh, classes, size)
    padded = {}
    for found, extent in extents.items():
        together = steps.get(found, {found: 1})
        pieces = math.lcm(*(extents.get(other, 1) for other in together)) if len(together) > 1 else extent
        rows = together[found]  # that are one row of the smallest
        padded[found] = -(-size[found] // (rows * pieces)) * pieces * rows
    return {found: whole for found, whole in padded.items() if whole != size[found]}


def _in_step(
    plan: LayoutPlan, mesh: AbstractMesh, classes: DimGroups, size: dict[Any, int]
) -> dict[Any, dict[Any, int]]:
    """Padding classes that unevenly cut reshapes tie: for each its group, and how many rows of each class are one."""
    groups: dict[Any, dict[Any, int]] = {}
    for equation, choice in plan.choices.items():
        rule = _rule(equation)
        if not rule.compound_dims:
            continue
        values = (*equation.inputs, *equation.outputs)
        for places in _uneven(rule, choice, mesh).values():
            (one, *others) = [classes.find(values[number], dim) for number, dim, _ in places]
            for other in others:
                together = {**groups.get(one, {one: 1}), **groups.get(other, {other: 1})}
                units = math.gcd(*(size[found] // groups.get(found, {found: 1})[found] for found in (one, other)))
                scaled = {found: size[found] // units for found in together}
                if all(size[found] % units == 0 for found in together):
                    for found in scaled:
                        groups[found] = scaled
    return groups

"""Plan: a report on a compiled program and its mesh, as plain data. This is the type of `Compiled.plan`.

The report is made after the layouts are chosen; the choice itself is a `LayoutPlan`. It lists every collective with its
bytes, time, source line and reason, every value with its layout and the layout's origin, and the steps of one device in
order, with its live memory. `explain` renders it.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.base.render_hooks import HtmlReport, renderers
from shardwise.compiler.candidates.explicit_axes import TypedAxis, typed_axes
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.dtypes import is_float8
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.kernels.grouped_dot import Grouped
from shardwise.compiler.kernels.kernel import KernelOp, differentiated_kernel
from shardwise.compiler.ops.elementwise.identities import InterpretedKernel
from shardwise.compiler.partition.local_program import LocalProgram, Placement
from shardwise.compiler.partition.reason import is_inserted
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.report.origins import CHOSEN, FREE, INPUT, LayoutOrigins, layout_origins
from shardwise.compiler.report.timeline import Timeline, timeline
from shardwise.compiler.report.typed_reason import explicit_type, format_typed_reason
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_layout

_SAME_TIME = 1e-3  # the relative difference of times that are shown as the same


@final
@dataclass(frozen=True)
class CollectiveRow:
    """One collective.

    Attributes:
        kind: the name of the collective, such as `all_reduce`.
        axes: the mesh axes along which devices communicate.
        sent: the bytes that each device sends, summed over all runs.
        type: the type of the shard that is its operand.
        source: the user's line.
        reason: why it is there, as a sentence.
        times: how many times it runs in one call.
        seconds: the estimated time, summed over all runs.
        inserted: whether the partitioner inserted it. Otherwise the user wrote it.
        pins: the user's pins that conflict here, such as `` `x` in P('data') ``.
        launch: the index of its launch, in program order. Collectives with the same index are sent in one launch.
    """

    kind: str
    axes: tuple[str, ...]
    sent: float
    type: str
    source: Source
    reason: str
    times: int = 1
    seconds: float = 0.0
    inserted: bool = True
    pins: tuple[str, ...] = ()
    launch: int = 0

    @property
    def scope(self) -> tuple[str, ...]:
        """The `named_scope` names around it, outermost first."""
        return self.source.scope


@final
@dataclass(frozen=True)
class CollectiveTotal:
    """All collectives of one kind along the same mesh axes.

    Attributes:
        kind: the name of the collective, such as `all_reduce`.
        axes: the mesh axes along which devices communicate.
        count: the number of collectives. A collective in a loop counts once.
        sent: the bytes that each device sends, summed over all runs.
        seconds: the estimated time, summed over all runs.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    sent: float
    seconds: float


@final
@dataclass(frozen=True)
class EndRow:
    """An input or output of the program.

    Attributes:
        name: the name of the argument, or the path of the output, such as `` `output['loss']` ``.
        type: the type of the global array.
        shape: the shape of the global array.
        layout: its layout, in the axes of one of the user's meshes if that is possible.
        shard_shape: the shape of one device's shard, with padding.
        bytes: the bytes of one device's shard.
        mesh: the mesh that has the axes of the layout.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    layout: Layout
    shard_shape: tuple[int, ...]
    bytes: int
    mesh: AbstractMesh

    @property
    def piece(self) -> tuple[int, ...]:
        """The old name of `shard_shape`."""
        warnings.warn("`piece` is called `shard_shape`; version 0.3 removes the old name", DeprecationWarning, 2)
        return self.shard_shape


@final
@dataclass(frozen=True)
class ValueRow:
    """A value of the unpartitioned program.

    Attributes:
        name: the name of the argument, or `%7`.
        op: the op that computes it.
        operands: the names of the op's operands.
        type: its type.
        layout: its layout.
        origin: where the layout comes from: `input`, `constraint`, `type` (along Explicit axes alone), `chosen`, or
            `free` (computed from constants, in every layout in which it is needed).
        pins: the pins that the layout comes from.
        source: the user's line.
        depth: the number of loops and branches around it.
    """

    name: str
    op: str
    operands: tuple[str, ...]
    type: str
    layout: Layout
    origin: str
    pins: tuple[str, ...]
    source: Source
    depth: int = 0


@final
@dataclass(frozen=True)
class KernelRow:
    """An op that has a kernel of our own on GPUs.

    Attributes:
        op: the name of the op.
        source: the user's line.
        plain_reason: why it is computed by other ops instead; empty if it is one kernel.
    """

    op: str
    source: Source
    plain_reason: str


@final
@dataclass(frozen=True)
class Plan(HtmlReport):
    """The plan of a compiled program on its mesh. It prints as text; a notebook shows it as a page.

    Args:
        name: the name of the program.
        mesh: the mesh.
        chip: the hardware for which times are estimated.
        inputs: the inputs, one row per array.
        outputs: the outputs, one row per array.
        collectives: the collectives, costliest first.
        values: the values of the unpartitioned program, in program order.
        timeline: the steps of one device, in program order, with its live memory.
        unscheduled: the timeline without the schedule of communication; None if it takes the same time.
        kernels: the ops that have a kernel of our own on GPUs; none for other hardware.
        products: the number of matrix products in the program; one in a loop counts once.
        float8_products: how many of them have float8 operands.

    Raises:
        Nothing.

    Example:
        >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> plan = jax.jit(lambda x: x.sum()).lower(x).compile().plan
        >>> isinstance(plan, jax.Plan), plan.counts(), plan.wire_bytes
        (True, {'all_reduce': 1}, 6.0)
    """

    name: str
    mesh: AbstractMesh
    chip: Chip
    inputs: tuple[EndRow, ...]
    outputs: tuple[EndRow, ...]
    collectives: tuple[CollectiveRow, ...]
    values: tuple[ValueRow, ...]
    timeline: Timeline
    unscheduled: Timeline | None = None
    kernels: tuple[KernelRow, ...] = ()
    products: int = 0
    float8_products: int = 0

    @property
    def wire_bytes(self) -> float:
        """The bytes that each device sends in one call."""
        return sum(row.sent for row in self.collectives)

    @property
    def communication_seconds(self) -> float:
        """The estimated time of all collectives in one call."""
        return sum(step.seconds for step in self.timeline.steps if step.sent)

    @property
    def compute_seconds(self) -> float:
        """The estimated time of all kernels in one call, without collectives and copies from and to host memory."""
        return sum(step.seconds for step in self.timeline.steps if not step.sent and not step.copied)

    @property
    def host_copy_seconds(self) -> float:
        """The estimated time of all copies from and to host memory in one call."""
        return sum(step.seconds for step in self.timeline.steps if step.copied)

    @property
    def seconds(self) -> float:
        """The estimated time of one call. Communication overlaps with compute where the hardware does that."""
        return self.timeline.seconds

    @property
    def exposed_seconds(self) -> float:
        """The time of one call in which a device communicates, or copies from or to the host, and does not compute."""
        return max(0.0, self.seconds - self.compute_seconds)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that each device holds at once."""
        return self.timeline.peak_bytes

    @property
    def launches(self) -> tuple[tuple[CollectiveRow, ...], ...]:
        """The launches of collectives, in program order: the collectives of each. A launch in a loop is listed once."""
        launches: dict[int, list[CollectiveRow]] = {}
        for row in sorted(self.collectives, key=lambda row: row.launch):
            launches.setdefault(row.launch, []).append(row)
        return tuple(map(tuple, launches.values()))

    @property
    def launch_count(self) -> int:
        """The number of launches of collectives in one call. A launch in a loop counts in every iteration."""
        return sum(launch[0].times for launch in self.launches)

    def counts(self) -> dict[str, int]:
        """Return the number of collectives of each kind. A collective in a loop counts once."""
        counts: dict[str, int] = {}
        for row in self.collectives:
            counts[row.kind] = counts.get(row.kind, 0) + 1
        return counts

    def totals(self) -> tuple[CollectiveTotal, ...]:
        """Return the collectives of each kind and mesh axes together, costliest first."""
        rows: dict[tuple[str, tuple[str, ...]], list[CollectiveRow]] = {}
        for row in self.collectives:
            rows.setdefault((row.kind, row.axes), []).append(row)
        totals = [
            CollectiveTotal(kind, axes, len(group), sum(row.sent for row in group), sum(row.seconds for row in group))
            for (kind, axes), group in rows.items()
        ]
        return tuple(sorted(totals, key=lambda total: (-total.seconds, -total.sent)))

    def constraints(self) -> Any:
        """Return the layouts of the plan as `with_sharding_constraint` lines to paste, with their file and line.

        They give these layouts to another partitioner. There is one for each assignment to a name in the user's
        functions; `print` shows them.
        """
        return renderers.constraints(self)

    def to_html(self) -> str:
        """Return the plan as one self-contained HTML page."""
        return renderers.page(self)

    def __str__(self) -> str:
        return renderers.text(self)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts().items()) or "no collectives"
        where = f"mesh {self.mesh}" if self.mesh.axis_names else "one device"
        return (
            f"<plan of {self.name} on {where}: {counts}, {self.wire_bytes:.0f} bytes sent and {self.peak_bytes} held "
            "per device; print() shows all>"
        )


def report(
    problem: LayoutProblem,
    plan: LayoutPlan,
    local: LocalProgram,
    chip: Chip,
    names: Sequence[str] = (),
    donated: Mapping[int, int] | None = None,
    partitioned: LocalProgram | None = None,
) -> Plan:
    """Return the report of a partitioned program.

    Args:
        problem: the program before it is partitioned.
        plan: the chosen layouts.
        local: the program of one device.
        chip: the hardware for which times are estimated.
        names: the names of the inputs; further inputs are captured arrays.
        donated: for each donated input, the output that reuses its buffer.
        partitioned: the program before its communication was scheduled.
    """
    origins = layout_origins(problem, plan, names)
    input_names = [names[n] if n < len(names) else f"captured array {n - len(names)}" for n in range(len(local.inputs))]
    typed = typed_axes(problem.mesh, problem.shardings)
    launches: dict[Equation, int] = {}  # by the first collective of the launch
    collectives = []
    for equation in local.collectives():
        launch = launches.setdefault(local.launches.get(equation, (equation,))[0], len(launches))
        collectives.append(_collective_row(equation, local, chip, origins, problem, typed, launch))
    scheduled = timeline(local, chip, input_names, donated)
    unscheduled = None
    if partitioned is not None and partitioned is not local:
        before = timeline(partitioned, chip, input_names, donated, lists_alive=False)
        unscheduled = None if math.isclose(before.seconds, scheduled.seconds, rel_tol=_SAME_TIME) else before
    products = [
        equation for equation in local.program.walk() if equation.op.is_product or isinstance(equation.op, Grouped)
    ]
    return Plan(
        local.program.name,
        local.mesh,
        chip,
        _end_rows(input_names, local.inputs, problem.program.inputs, problem),
        _end_rows(problem.out_names, local.outputs, problem.program.outputs, problem),
        tuple(sorted(collectives, key=lambda row: (-row.seconds, -row.sent))),
        tuple(_value_rows(problem, origins, input_names)),
        scheduled,
        unscheduled,
        tuple(_kernel_rows(local)) if chip.platform == "gpu" else (),
        len(products),
        sum(is_float8(equation.inputs[0].type.dtype) for equation in products),
    )


def _kernel_rows(local: LocalProgram) -> Iterator[KernelRow]:
    """Yield a row for each kernel, and for each line with second derivatives of a kernel, which plain ops compute."""
    second_derivatives = set()
    for equation in local.program.walk():
        if isinstance(equation.op, KernelOp):
            reason = equation.op.reason_for_plain_ops(*(value.type for value in equation.inputs))
            yield KernelRow(equation.op.label, equation.source, reason)
        elif isinstance(equation.op, InterpretedKernel):
            yield KernelRow(equation.op.label, equation.source, equation.op.reason)
        elif (label := differentiated_kernel(equation.source)) and (
            label,
            equation.source.place,
        ) not in second_derivatives:
            second_derivatives.add((label, equation.source.place))
            source = equation.source._replace(scope=equation.source.scope[1:])
            yield KernelRow(
                f"the second derivative of {label}", source, "kernels have rules for first derivatives only"
            )


def _end_rows(
    names: Sequence[str], placements: Sequence[Placement], values: Sequence[Value], problem: LayoutProblem
) -> tuple[EndRow, ...]:
    rows = []
    for name, placement, value in zip(names, placements, values, strict=True):
        shape = placement.shard_shape(problem.mesh)
        nbytes = placement.type.with_shape(shape).nbytes
        user_layouts = [(mesh, coarsen_layout(placement.layout, mesh, problem.mesh)) for mesh in problem.user_meshes]
        mesh, layout = next(
            ((mesh, layout) for mesh, layout in user_layouts if layout is not None), (problem.mesh, placement.layout)
        )
        type = explicit_type(value, problem)
        rows.append(EndRow(name, str(type), type.shape, layout, shape, nbytes, mesh))
    return tuple(rows)


def _collective_row(
    equation: Equation,
    local: LocalProgram,
    chip: Chip,
    origins: LayoutOrigins,
    problem: LayoutProblem,
    typed: Mapping[str, TypedAxis],
    launch: int,
) -> CollectiveRow:
    times, sent, axes = local.times[equation], local.bytes_sent(equation), equation.op.communicates_along
    typed_reason = format_typed_reason(equation, axes, typed, problem)
    pins = () if typed_reason else origins.conflicting_pins(equation, axes)
    return CollectiveRow(
        equation.op.name,
        axes,
        sent * times,
        str(equation.inputs[0].type),
        equation.source,
        typed_reason or ("" if equation.reason is None else str(equation.reason)),
        times,
        local.collective_seconds(equation, chip) * times,
        is_inserted(equation.reason),
        tuple(f"{pin} in {origins.pins[pin]}" for pin in pins),
        launch,
    )


def _value_rows(problem: LayoutProblem, origins: LayoutOrigins, input_names: Sequence[str]) -> list[ValueRow]:
    names = dict(zip(problem.program.inputs, input_names, strict=True))
    rows = [
        ValueRow(name, "input", (), str(explicit_type(value, problem)), _layout(origins, value), INPUT, (), NOWHERE)
        for value, name in names.items()
    ]

    def row(value: Value, op: str, operands: tuple[str, ...], source: Source, depth: int) -> ValueRow:
        origin = FREE if value in problem.free else origins.kinds.get(value, CHOSEN)
        pins = origins.pins_of(value) if value in origins.layouts else ()
        name = names.setdefault(value, f"%{len(names)}")
        type = str(explicit_type(value, problem))
        return ValueRow(name, op, operands, type, _layout(origins, value), origin, pins, source, depth)

    def add_rows(program: Program, depth: int) -> None:
        for equation in program.equations:
            op, source = equation.op, equation.source
            operands = tuple(names[value] for value in equation.inputs)
            op_name = op.requested_by if op.is_reshard else op.name
            rows.extend(row(value, op_name, operands, source, depth) for value in equation.outputs)
            for inner in op.programs:
                rows.extend(row(value, f"body input of {op.name}", (), source, depth + 1) for value in inner.inputs)
                add_rows(inner, depth + 1)

    add_rows(problem.program, 0)
    return rows


def _layout(origins: LayoutOrigins, value: Value) -> Layout:
    return origins.layouts.get(value, Layout.replicated(value.type.ndim))

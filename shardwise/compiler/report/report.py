"""Report: all that a compiled program will do on its mesh, as plain data: what `Compiled.plan` is.

ShardedProgram, Plan and LocalProgram → every collective with its bytes, time, line and reason; every value with its
layout and where that came from; the steps of one device in order, with the memory that it holds. `explain` renders it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.partition.local_program import LocalProgram, Placement
from shardwise.compiler.partition.reason import Cause, is_inserted
from shardwise.compiler.partition.reshard import collective_axes
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.report.origins import CHOSEN, FREE, INPUT, LayoutOrigins, layout_origins
from shardwise.compiler.report.render_hooks import HtmlReport, renderers
from shardwise.compiler.report.timeline import Timeline, timeline
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
@dataclass(frozen=True)
class CollectiveRow:
    """One collective. `sent` is what one device sends, in bytes, and `seconds` an estimate, of all `times` it runs.

    `type` is that of the piece it takes. `inserted`: by the planner; else the user wrote it. `pins` are the layouts
    that the user pinned and that met there.
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

    @property
    def scope(self) -> tuple[str, ...]:
        """The names that the user gave to this part of the program."""
        return self.source.scope


@final
@dataclass(frozen=True)
class EndRow:
    """An input or an output: the whole array's type, its layout, and the shape of one device's piece."""

    name: str
    type: str
    shape: tuple[int, ...]
    layout: Layout
    piece: tuple[int, ...]
    bytes: int  # of the piece


@final
@dataclass(frozen=True)
class ValueRow:
    """A value of the whole program, which `op` makes of `operands` inside `depth` loops and branches.

    `origin` says where its layout came from: an input, a constraint, or it was chosen (free: it is made of constants,
    wherever it is needed); `pins`, which pins it follows.
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
class Report(HtmlReport):
    """What each device will do. Printed, it is text; in a notebook, a page.

    Collectives come costliest first, values and the timeline's steps in the order of the program.

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

    @property
    def wire_bytes(self) -> float:
        """What one device sends in one call."""
        return sum(row.sent for row in self.collectives)

    @property
    def communication_seconds(self) -> float:
        return sum(step.seconds for step in self.timeline.steps if step.sent)

    @property
    def compute_seconds(self) -> float:
        return sum(step.seconds for step in self.timeline.steps if not step.sent)

    @property
    def seconds(self) -> float:
        """An estimate of one call, in which nothing overlaps."""
        return self.communication_seconds + self.compute_seconds

    @property
    def peak_bytes(self) -> int:
        """The most that one device holds."""
        return self.timeline.peak_bytes

    def counts(self) -> dict[str, int]:
        """How many collectives there are of each kind; one in a loop counts once."""
        found: dict[str, int] = {}
        for row in self.collectives:
            found[row.kind] = found.get(row.kind, 0) + 1
        return found

    def to_html(self) -> str:
        return renderers.page(self)

    def __str__(self) -> str:
        return renderers.text(self)

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {kind}" for kind, count in self.counts().items()) or "no collectives"
        where = f"mesh {self.mesh}" if self.mesh.axis_names else "one device"
        return (
            f"<plan of {self.name} on {where}: {counted}, {self.wire_bytes:.0f} bytes sent and {self.peak_bytes} held "
            "by each device; print shows it>"
        )


def report(
    sharded: ShardedProgram,
    plan: LayoutPlan,
    local: LocalProgram,
    chip: Chip,
    names: Sequence[str] = (),
    donated: Mapping[int, int] | None = None,
) -> Report:
    """The report of a partitioned program on such chips. `names` are its inputs'; `donated` those that give an output
    their memory."""
    known = layout_origins(sharded, plan, names)
    listed = [names[n] if n < len(names) else f"captured array {n - len(names)}" for n in range(len(local.inputs))]
    return Report(
        local.program.name,
        local.mesh,
        chip,
        tuple(_end(name, placement, local.mesh) for name, placement in zip(listed, local.inputs, strict=True)),
        tuple(_end(f"output {n}", placement, local.mesh) for n, placement in enumerate(local.outputs)),
        tuple(
            sorted(
                (_row(e, local, chip, known) for e in local.collectives()), key=lambda row: (-row.seconds, -row.sent)
            )
        ),
        tuple(_values(sharded, known, listed)),
        timeline(local, chip, listed, donated),
    )


def _end(name: str, placement: Placement, mesh: AbstractMesh) -> EndRow:
    piece = placement.shard_shape(mesh)
    nbytes = placement.type.with_shape(piece).nbytes
    return EndRow(name, str(placement.type), placement.type.shape, placement.layout, piece, nbytes)


def _row(equation: Equation, local: LocalProgram, chip: Chip, known: LayoutOrigins) -> CollectiveRow:
    assert isinstance(equation.op, Collective)
    times, sent, axes = local.times[equation], local.bytes_sent(equation), collective_axes(equation.op)
    return CollectiveRow(
        equation.op.name,
        axes,
        sent * times,
        str(equation.inputs[0].type),
        equation.source,
        str(equation.reason),
        times,
        chip.collective_time(equation.op.name, sent, local.mesh, axes) * times,
        is_inserted(equation.reason),
        _met(equation, known, axes) if isinstance(equation.reason, Cause) else (),
    )


def _met(equation: Equation, known: LayoutOrigins, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The pins that gave the value its layout, and those that gave it to what takes it: `` `x` in P('data') ``."""
    cause = equation.reason
    assert isinstance(cause, Cause)
    pins = list(known.of(cause.value, axes)) if cause.value in known.made else []
    for taker, _ in known.takers.get(cause.value, ()):
        if taker.source == equation.source:
            others = (value for value in (*taker.inputs, *taker.outputs) if value is not cause.value)
            pins += [pin for value in others if value in known.made for pin in known.of(value)]
    return tuple(f"{pin} in {known.pins[pin]}" for pin in dict.fromkeys(pins))


def _values(sharded: ShardedProgram, known: LayoutOrigins, names: Sequence[str]) -> list[ValueRow]:
    called = {value: name for value, name in zip(sharded.program.inputs, names, strict=True)}
    rows = [
        ValueRow(name, "input", (), str(value.type), _layout(known, value), INPUT, (), NOWHERE)
        for value, name in called.items()
    ]

    def row(value: Value, op: str, operands: tuple[str, ...], source: Source, depth: int) -> ValueRow:
        origin = FREE if value in sharded.free else known.kind.get(value, CHOSEN)
        pins = known.of(value) if value in known.made else ()
        name = called.setdefault(value, f"%{len(called)}")
        return ValueRow(name, op, operands, str(value.type), _layout(known, value), origin, pins, source, depth)

    def walk(program: Program, depth: int) -> None:
        for equation in program.equations:
            op, source = equation.op, equation.source
            operands = tuple(called[value] for value in equation.inputs)
            rows.extend(row(value, op.name, operands, source, depth) for value in equation.outputs)
            for inner in op.programs:
                rows.extend(row(value, f"given by {op.name}", (), source, depth + 1) for value in inner.inputs)
                walk(inner, depth + 1)

    walk(sharded.program, 0)
    return rows


def _layout(known: LayoutOrigins, value: Value) -> Layout:
    return known.made.get(value, Layout.replicated(value.type.ndim))

"""explain: the plan of a function for certain arguments, as text: every collective, its bytes, its line, its reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shardwise.api.jit import Jitted, jit
from shardwise.api.request import stages
from shardwise.compiler.ir.program import Source
from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
@dataclass(frozen=True)
class CollectiveRow:
    """One collective of a plan. `sent` is what one device sends, in bytes, all `times` that it runs."""

    kind: str
    axes: tuple[str, ...]
    sent: float
    type: str
    source: Source
    reason: str
    times: int = 1


@final
class Explanation:
    """What a compiled function will do on its mesh; printing it shows the plan, costliest collective first."""

    def __init__(self, name: str, stages: Partitioned, argument_names: list[str]):
        self.name = name
        self.stages = stages
        self.argument_names = argument_names
        self.mesh: AbstractMesh = stages.local.mesh
        self.collectives = sorted(
            (
                CollectiveRow(
                    equation.op.name,
                    tuple(getattr(equation.op, "axes", ()) or equation.op.after),  # type: ignore[attr-defined]
                    stages.local.wire(equation) * stages.local.times[equation],
                    str(equation.inputs[0].type),
                    equation.source,
                    equation.reason,
                    stages.local.times[equation],
                )
                for equation in stages.local.collectives()
            ),
            key=lambda row: -row.sent,
        )

    @property
    def wire_bytes(self) -> float:
        """What one device sends in one call."""
        return sum(row.sent for row in self.collectives)

    def counts(self) -> dict[str, int]:
        """How many collectives there are of each kind."""
        found: dict[str, int] = {}
        for row in self.collectives:
            found[row.kind] = found.get(row.kind, 0) + 1
        return found

    def __str__(self) -> str:
        where = f"mesh {self.mesh}" if self.mesh.axis_names else "one device"
        total = f"{len(self.collectives)} collective{'' if len(self.collectives) == 1 else 's'}"
        lines = [f"{self.name} on {where}: {total}, {human_bytes(self.wire_bytes)} sent by each device", ""]
        for what, names, placements in (
            ("in", self.argument_names, self.stages.local.inputs),
            ("out", [f"output {i}" for i in range(len(self.stages.local.outputs))], self.stages.local.outputs),
        ):
            for name, placement in zip(names, placements, strict=False):
                piece = "×".join(map(str, placement.piece_shape(self.mesh))) or "scalar"
                lines.append(f"  {what:3} {name:24} {placement.type!s:16} {placement.layout!s:28} {piece} a device")
        if self.collectives:
            lines += ["", f"  {'collective':14} {'axes':16} {'sent':>10}  {'piece':14} {'line':18} why"]
        for row in self.collectives:
            axes = ",".join(row.axes)
            sent = human_bytes(row.sent)
            why = f"{row.reason} ({row.times} times)" if row.times > 1 else row.reason
            lines.append(f"  {row.kind:14} {axes:16} {sent:>10}  {row.type:14} {row.source!s:18} {why}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(function: Callable[..., Any]) -> Callable[..., Explanation]:
    """`explain(f)(*args)` plans `f` (jitted or not) for these arguments, prints the plan, returns it, runs nothing."""
    jitted = function if isinstance(function, Jitted) else jit(function)

    def call(*args: Any, **keywords: Any) -> Explanation:
        request, traced = jitted.request(args, keywords)
        planned, _ = stages(request, request.target())
        explanation = Explanation(traced.program.name, planned, list(request.names))
        print(explanation)
        return explanation

    return call


def human_bytes(count: float) -> str:
    """1536 → 1.5 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError

"""explain: the plan of a function for certain arguments: every collective with its bytes, line, reason and time."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, final

from shardwise.api.aot import Compiled, Lowered
from shardwise.api.execute import Prepared
from shardwise.api.jit import Jitted, jit
from shardwise.api.planned import planned
from shardwise.compiler.partition.report import CollectiveRow, Report
from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.advise import Advice, advise
from shardwise.explain.text import format_report


@final
class Explanation:
    """What a compiled function will do on its mesh. Printed, it is text; in a notebook, a page.

    `plan` is all of it as plain data, `stages` the program at every stage.
    """

    def __init__(self, prepared: Prepared, hardware: str | None = None, advised: bool = True):
        self.plan: Report = planned(prepared.request, prepared.target, prepared.stages, hardware)
        self.stages: Partitioned = prepared.stages
        self.collectives: list[CollectiveRow] = list(self.plan.collectives)
        self._prepared = prepared
        self._advised = advised

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def mesh(self) -> AbstractMesh:
        return self.plan.mesh

    @property
    def wire_bytes(self) -> float:
        """What one device sends in one call."""
        return self.plan.wire_bytes

    def counts(self) -> dict[str, int]:
        """How many collectives there are of each kind."""
        return self.plan.counts()

    @cached_property
    def advice(self) -> Advice:
        """Which single constraint would spare the costliest collective; each that is tried is a plan of its own."""
        if not self._advised:
            return Advice(0)
        target = self._prepared.target
        meshes = [mesh.abstract for mesh in (*target.meshes, target.mesh) if mesh is not None]
        return advise(self.stages, self.plan.chip, meshes)

    def __str__(self) -> str:
        return format_report(self.plan, str(self.advice))

    __repr__ = __str__


def explain(
    function: Callable[..., Any] | Lowered, *, hardware: str | None = None, advise: bool = True
) -> Callable[..., Explanation]:
    """`explain(f)(*args)` plans `f` (jitted or not) for these arguments, prints the plan, returns it, runs nothing.

    What is lowered or compiled already needs no arguments: `explain(compiled)()`. `hardware` names the chips that times
    are estimated for ("h100", "v5e", …) where these are not the devices at hand. With `advise`, plans with one more
    constraint are tried around the costliest collective.
    """

    def call(*args: Any, **keywords: Any) -> Explanation:
        if isinstance(function, (Lowered, Compiled)):
            lowered = function
        else:
            jitted = function if isinstance(function, Jitted) else jit(function)
            lowered = jitted.lower(*args, **keywords)
        explanation = Explanation(lowered._prepared, hardware, advise)
        print(explanation)
        return explanation

    return call

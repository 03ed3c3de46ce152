"""explain: the plan of a function for certain arguments: every collective with its bytes, line, reason and time."""

from collections.abc import Callable
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, final

from shardwise.api.aot import Compiled, Lowered
from shardwise.api.execute import Prepared, as_array, looked_at
from shardwise.api.jit import Jitted, jit
from shardwise.api.planned import planned
from shardwise.compiler.partition.report import CollectiveRow, Report
from shardwise.compiler.pipeline import Partitioned
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.advise import Advice, advise
from shardwise.explain.page import format_page
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
        return advise(self.stages, self.plan.chip, [mesh.abstract for mesh in self._prepared.target.meshes])

    def __str__(self) -> str:
        return format_report(self.plan, str(self.advice))

    __repr__ = __str__

    def to_html(self) -> str:
        """One page with all of it, which needs nothing beside it."""
        return format_page(self.plan, str(self.advice))

    def write_html(self, path: str | PathLike[str]) -> Path:
        """Write that page to a file."""
        file = Path(path)
        file.write_text(self.to_html(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        """The page in a frame of its own: its style must not reach the notebook around it."""
        frame = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        return (
            f'<iframe title="plan of {escape(self.name)}" style="{frame}" srcdoc="{escape(self.to_html())}"></iframe>'
        )


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
            prepared = function._prepared
        else:
            jitted = function if isinstance(function, Jitted) else jit(function)
            request, traced = jitted.request(args, keywords)
            prepared = looked_at(request, [as_array(x) for x in traced.captured])
        explanation = Explanation(prepared, hardware, advise)
        print(explanation)
        return explanation

    return call

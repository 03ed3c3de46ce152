"""explain: the plan of a function for certain arguments: every collective with its bytes, line, reason and time."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from shardwise.api.aot import Compiled, Lowered
from shardwise.api.jit import Jitted, jit
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.hardware import Chip, chip
from shardwise.compiler.report.render_hooks import HtmlReport, renderers
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.execute.executor import LoweredRequest, as_array, lower_request
from shardwise.lazy import lazy_module

if TYPE_CHECKING:
    from shardwise.compiler.report.report import CollectiveRow, Report
    from shardwise.execute import plan_report as planning
    from shardwise.explain import advise as advising
    from shardwise.explain import page, text
else:  # `explain` is a name of the package, so that it is loaded at once; what it needs is not
    planning = lazy_module("shardwise.execute.plan_report")
    advising = lazy_module("shardwise.explain.advise")
    page, text = lazy_module("shardwise.explain.page"), lazy_module("shardwise.explain.text")

renderers.text = lambda plan: text.format_report(plan, "")
renderers.page = lambda plan: page.format_page(plan, "")


@final
class Explanation(HtmlReport):
    """What a compiled function will do on its mesh, and what would help. Printed, it is text; in a notebook, a page.

    `plan` is all of it but the advice, as plain data; `stages`, the program at every stage.
    """

    def __init__(self, prepared: LoweredRequest, chip: Chip | None = None, advised: bool = True):
        self.plan: Report = planning.request_report(prepared.request, prepared.stages, chip)
        self.name = self.plan.name
        self.stages: Stages = prepared.stages
        self.collectives: list[CollectiveRow] = list(self.plan.collectives)
        self._prepared = prepared
        self._advised = advised

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
    def advice(self) -> "advising.Advice":
        """Which single constraint would spare the costliest collective; each that is tried is a plan of its own."""
        if not self._advised:
            return advising.Advice(0)
        return advising.advise(self.stages, self.plan.chip, [mesh.abstract for mesh in self._prepared.target.meshes])

    def __str__(self) -> str:
        return text.format_report(self.plan, str(self.advice))

    __repr__ = __str__

    def to_html(self) -> str:
        return page.format_page(self.plan, str(self.advice))


def explain(
    function: Callable[..., Any] | Lowered, *, hardware: str | None = None, advise: bool = True
) -> Callable[..., Explanation]:
    """`explain(f)(*args)` plans `f` (jitted or not) for these arguments, prints the plan, returns it, runs nothing.

    What is lowered or compiled already needs no arguments: `explain(compiled)()`. `hardware` names the chips that it is
    planned for ("h100", "v5e", …) where these are not the devices at hand; of what is lowered already, only the times
    are theirs. With `advise`, plans with one more constraint are tried around the costliest collective.

    >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
    >>> plan = jax.explain(lambda x: x.sum())(x)
    <lambda> on mesh rows=4: 1 collective, 6 B sent by each device
    ...
    >>> plan.counts()
    {'all_reduce': 1}
    """

    asked = None if hardware is None else chip(hardware)

    def call(*args: Any, **keywords: Any) -> Explanation:
        if isinstance(function, (Lowered, Compiled)):
            prepared = function._prepared
        else:
            jitted = function if isinstance(function, Jitted) else jit(function)
            request, traced = jitted.request(args, keywords)
            prepared = lower_request(request, [as_array(x) for x in traced.captured], asked)
        explanation = Explanation(prepared, asked, advise)
        print(explanation)
        return explanation

    return call

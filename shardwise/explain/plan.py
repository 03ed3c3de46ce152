"""explain: show the plan of a function: every collective with its bytes, time, source line and reason."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, final

from shardwise.api.ahead_of_time.aot import Compiled, Lowered
from shardwise.api.jit import Jitted, jit
from shardwise.base import notebook
from shardwise.base.config import config
from shardwise.base.lazy import lazy_module
from shardwise.base.render_hooks import HtmlReport, renderers
from shardwise.compiler.control.call import Call
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import built_in_chip_of, chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.stage_dump import StageDump
from shardwise.errors import HardwareError
from shardwise.execute.executor import LoweredRequest, as_array, lower_request
from shardwise.execute.request import Request

if TYPE_CHECKING:
    from shardwise.compiler.report.report import CollectiveRow, Plan
    from shardwise.execute import plan_report as planning
    from shardwise.explain import advise as advising
    from shardwise.explain import constraints, device_trace, fused_parts, measured_plan, notebook_picture, page, text
else:  # their imports take 40 to 60 ms each, and `import shardwise` imports this module
    planning = lazy_module("shardwise.execute.plan_report")
    advising = lazy_module("shardwise.explain.advise")
    fused_parts = lazy_module("shardwise.explain.fused_parts")
    constraints = lazy_module("shardwise.explain.constraints")
    device_trace = lazy_module("shardwise.explain.device_trace")
    measured_plan = lazy_module("shardwise.explain.measured_plan")
    page, text = lazy_module("shardwise.explain.page"), lazy_module("shardwise.explain.text")
    notebook_picture = lazy_module("shardwise.explain.notebook_picture")

renderers.text = lambda plan: text.format_report(plan, ())
renderers.page = lambda plan: page.format_page(plan, ())
renderers.pictures = notebook_picture
renderers.constraints = lambda plan: constraints.constraints_of(plan)  # noqa: PLW0108 - loaded on first use


@final
class Explanation(HtmlReport):
    """The plan of a function, with advice. It prints as text; a notebook shows it as a page, once per cell.

    Attributes:
        plan: the plan as data, without the advice.
        name: the name of the function.
        stages: the program at every compiler stage.
        collectives: the collectives of the plan, costliest first.
        measured: the plan beside a profile of it; None without a profile.
    """

    def __init__(
        self,
        prepared: LoweredRequest,
        chip: Chip | None = None,
        with_advice: bool = True,
        trace: "device_trace.DeviceTrace | None" = None,
    ):
        self.plan: Plan = planning.request_report(prepared.request, prepared.stages, chip)
        self.name = self.plan.name
        self.stages: Stages = prepared.stages
        self.collectives: list[CollectiveRow] = list(self.plan.collectives)
        self.measured = None if trace is None else measured_plan.measure_plan(self.plan, trace)
        self._prepared = prepared
        self._with_advice = with_advice
        self._displayed_in: int | None = None  # the cell that has displayed it

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh that the function is planned for."""
        return self.plan.mesh

    @property
    def wire_bytes(self) -> float:
        """The bytes that each device sends in one call."""
        return self.plan.wire_bytes

    def counts(self) -> dict[str, int]:
        """Return the number of collectives of each kind."""
        return self.plan.counts()

    @cached_property
    def advice(self) -> "advising.Advice":
        """The single constraint that would make the plan cheapest. The program is replanned for each candidate."""
        if not self._with_advice:
            return advising.Advice(0)
        return advising.advise(self.stages, self.plan.chip, [mesh.abstract for mesh in self._prepared.target.meshes])

    @cached_property
    def argument_advice(self) -> "advising.Advice":
        """The argument layout that would make the plan cheapest, found in the same way."""
        if not self._with_advice:
            return advising.Advice(0)
        meshes = [mesh.abstract for mesh in self._prepared.target.meshes]
        return advising.advise_arguments(self.stages, self.plan.chip, meshes)

    @cached_property
    def fused_parts(self) -> "list[fused_parts.FusedParts]":
        """The arguments that are fused projections, and whose parts are separated by communication."""
        return fused_parts.find_fused_parts(self.stages) if self._with_advice else []

    def _advice_lines(self) -> list[str]:
        lines = [str(self.advice)] if self.advice.tried else []
        lines += [str(self.argument_advice)] if self.argument_advice.layout is not None else []
        return lines + [str(fused) for fused in self.fused_parts]

    def __str__(self) -> str:
        return text.format_report(self.plan, self._advice_lines(), self.measured)

    def __repr__(self) -> str:
        return repr(self.plan)

    def to_html(self) -> str:
        """Return the plan and the advice as one self-contained HTML page."""
        return page.format_page(self.plan, self._advice_lines(), self.measured)

    def show(self) -> None:
        """Print the plan and the advice. In IPython, display them below the running cell, unless it shows them."""
        cell = notebook.running_cell()
        if cell is None:
            print(self)
        elif cell != self._displayed_in:
            self._displayed_in = cell
            notebook.display({"text/plain": str(self), "text/html": self._repr_html_()})

    # IPython also calls it for the last expression of a cell. `explain(f)(x)` has shown its result then.
    _ipython_display_ = show


def explain(
    function: Callable[..., Any] | Lowered,
    *,
    hardware: str | Chip | None = None,
    advise: bool = True,
    measured: str | PathLike[str] | None = None,
) -> Callable[..., Explanation]:
    """Return a function that prints and returns the plan of `function` for given arguments, without running it.

    A notebook shows the plan as a page instead.

    Args:
        function: the function, jitted or not; or a lowered or compiled function, which needs no arguments:
            `explain(compiled)()`.
        hardware: the hardware to plan for ("h100", "v5e", …, or the path of a table of chips); by default, the devices
            of the arguments. The function is traced for its platform. A lowered or compiled function is not planned
            again; only its times are estimated for that hardware.
        advise: whether to replan with constraints around the costliest collective, and with other argument layouts, to
            recommend the best.
        measured: a profile in which the function ran, as a file `*.xplane.pb` or the folder that `profiler.trace` wrote
            to. The kernels and collectives of it are shown beside their predictions. The hardware is by default that of
            the profile.

    Returns:
        A function of the same arguments as `function`, which returns an Explanation.

    Raises:
        HardwareError: if the hardware is unknown, or has no units for float8, of which an FP8Policy needs products.
        ProfileError: if the profile cannot be read, or by the result, if the function did not run in it.

    Example:
        >>> x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows")))
        >>> plan = jax.explain(lambda x: x.sum())(x)
        <lambda> on mesh rows=4: 1 collective, 6 B sent per device
        ...
        >>> plan.counts()
        {'all_reduce': 1}
    """

    trace = None if measured is None else device_trace.read_trace(measured)
    planned_chip = target_chip(hardware, trace)

    def call(*args: Any, **keywords: Any) -> Explanation:
        explanation = Explanation(prepare(function, args, keywords, planned_chip), planned_chip, advise, trace)
        explanation.show()
        return explanation

    return call


def target_chip(hardware: str | Chip | None, trace: "device_trace.DeviceTrace | None") -> Chip | None:
    """Return the hardware to plan for: as requested, or that of a profile; None for the devices of the arguments."""
    if hardware is not None:
        return chip(hardware)
    return None if trace is None else built_in_chip_of(trace.programs[0].device_kind)


def prepare(
    function: Callable[..., Any] | Lowered | Compiled,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    chip: Chip | None,
    dump: StageDump | None = None,
) -> LoweredRequest:
    """Plan a function for given arguments. It is traced for the chip's platform.

    Args:
        function: the function. A lowered or compiled function is already planned, and needs no arguments.
        args: its positional arguments.
        keywords: its keyword arguments.
        chip: the hardware to plan for; by default, the devices of the arguments.
        dump: keeps the result of every pass, unless the function is already planned.
    """
    if isinstance(function, (Lowered, Compiled)):
        _check_float8(function._prepared, chip)
        return function._prepared
    jitted = function if isinstance(function, Jitted) else jit(function)
    with nullcontext() if chip is None else config.override("target_platform", chip.platform):
        request, traced = jitted.request(args, keywords)
    if jitted is not function:
        request = _with_all_results(request)
    prepared = lower_request(request, [as_array(x) for x in traced.captured], chip, dump)
    _check_float8(prepared, chip)
    return prepared


def _check_float8(prepared: LoweredRequest, chip: Chip | None) -> None:
    """Raise HardwareError if a program has products of an FP8Policy, and the named hardware has no units for them."""
    if chip is None or chip.f8_flops or chip.platform == "cpu":
        return
    for equation in prepared.stages.local.program.walk():
        if equation.op.needs_float8_units:
            raise HardwareError(
                f"{chip.name} has no units for products of float8 numbers, which `{prepared.request.program.name}` has "
                f"at {equation.source.place}, by an FP8Policy. Choose hardware with such units, such as 'h100', or use "
                "a PrecisionPolicy in place of the FP8Policy."
            )


def _with_all_results(request: Request) -> Request:
    """Return the request of a function that only calls a jitted function, with all results of the jitted function.

    The wrapper may use results that it does not return: `nnx.jit` writes them into a model.
    """
    if len(request.program.equations) != 1 or not isinstance(request.program.equations[0].op, Call):
        return request
    (call,) = request.program.equations
    more = [value for value in call.outputs if value not in request.program.outputs]
    program = replace(request.program, outputs=(*request.program.outputs, *more), name=call.op.programs[0].name)
    return replace(
        request,
        program=program,
        out_shardings=(*request.out_shardings, *[None] * len(more)),
        out_names=(*request.out_names, *[f"update {index}" for index in range(len(more))]),
    )

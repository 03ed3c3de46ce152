"""AutoSharding: the result of `autoshard`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, final

from shardwise import tree_util
from shardwise.api.ahead_of_time.aot import Lowered
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.arguments import function_name
from shardwise.api.jit import Jitted
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.report import Plan
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.trace.provenance import user_source
from shardwise.execute.executor import LoweredRequest, as_array, lower_request
from shardwise.execute.plan_report import request_report
from shardwise.explain.simulate import Simulation
from shardwise.explain.text import align, human_bytes, human_seconds
from shardwise.layout_search.activations import Activations, activations
from shardwise.layout_search.comparison import RECOMPUTED, changes_text, difference_text, runner_up, tied
from shardwise.layout_search.evaluate import Alternative
from shardwise.layout_search.source import overridden

_ROWS = 12  # the number of alternatives to print


class _Column(NamedTuple):
    """A column of the table of alternatives. `is_shown` is whether an alternative needs it; None for all."""

    head: str
    width: int
    text: Callable[[Alternative], str]
    is_shown: Callable[[Alternative], bool] | None = None


def _has_pipeline(alternative: Alternative) -> bool:
    return alternative.variant.microbatches is not None


def _schedule(alternative: Alternative) -> str:
    chunks = alternative.variant.chunks
    return f"{alternative.schedule} × {chunks}" if chunks > 1 else alternative.schedule


def _bubble(alternative: Alternative) -> str:
    return f"{100 * alternative.bubble:.0f}%" if _has_pipeline(alternative) else ""


_COLUMNS = (
    _Column("plan", 24, lambda plan: plan.strategy),
    _Column("mesh", 20, lambda plan: str(plan.mesh)),
    _Column("attention", 9, lambda plan: plan.variant.attention, lambda plan: bool(plan.variant.attention)),
    _Column("schedule", 8, _schedule, _has_pipeline),
    _Column("stages", -6, lambda plan: str(plan.variant.stages), _has_pipeline),
    _Column("microbatches", -12, lambda plan: str(plan.variant.microbatches or ""), _has_pipeline),
    _Column("bubble", -6, _bubble, _has_pipeline),
    _Column("recomputed", 10, lambda plan: plan.variant.remat, lambda plan: plan.variant.remat != "none"),
    _Column("time", -9, lambda plan: f"{'~' if plan.is_estimated else ''}{human_seconds(plan.seconds)}"),
    _Column("sent", -10, lambda plan: human_bytes(plan.wire_bytes)),
    _Column("memory", -10, lambda plan: human_bytes(plan.peak_bytes)),
)


@final
class AutoSharding:
    """The mesh and the shardings that `autoshard` chose for a step. It prints as a table of alternatives.

    Attributes:
        mesh: the mesh; an AbstractMesh if the devices are not present.
        in_shardings: the sharding of each argument, as a tuple of trees like the arguments.
        out_shardings: the shardings of the results, as a tree like the results.
        alternatives: the compared plans, best first: name, mesh, seconds, wire bytes and peak bytes.
        memory_limit: the bytes that each device may hold, if the user set a limit.
    """

    def __init__(
        self,
        jitted: Jitted[..., Any],
        args: tuple[Any, ...],
        mesh: Mesh | AbstractMesh,
        shardings: tuple[Any, Any],
        state: Collection[str],
        alternatives: Sequence[Alternative],
        chip: Chip,
        settings: Mapping[str, Any],
        platform: Mapping[str, Any],
        expert_imbalance: float = 1.0,
    ):
        self.mesh = mesh
        self.in_shardings, self.out_shardings = shardings
        self.alternatives = tuple(alternatives)
        self.memory_limit: int | None = settings.get("memory_limit")
        self._jitted = jitted
        self._types = tree_util.tree_map(ShapeDtypeStruct.like, args)
        self._chip = chip
        self._settings = settings
        self._platform = platform
        self._expert_imbalance = expert_imbalance
        self._state = frozenset(state)
        self._source = user_source()

    @property
    def best(self) -> Alternative:
        """The chosen alternative."""
        return self.alternatives[0]

    @property
    def seconds(self) -> float:
        """The predicted time of a call."""
        return self.best.seconds

    @property
    def wire_bytes(self) -> float:
        """The bytes that each device sends in a call."""
        return self.best.wire_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a device is predicted to hold at once."""
        return self.best.peak_bytes

    @property
    def ties(self) -> tuple[Alternative, ...]:
        """The other alternatives that fit, and are slower by less than the error of predictions for the chip."""
        return tied(self.best, self.alternatives[1:], self._chip.prediction_error)

    @property
    def runner_up(self) -> Alternative | None:
        """The best alternative that fits and has another mesh, family or recomputation; None if there is none."""
        return runner_up(self.alternatives)

    @property
    def remat(self) -> str:
        """The values that scan derivatives rematerialize: `none`, `products` (all but products with weights), `all`."""
        return self.best.variant.remat

    @property
    def attention(self) -> str:
        """How attention runs over sharded sequences: `ring`, `balanced ring`, or empty if the planner places it."""
        return self.best.variant.attention

    @property
    def stages(self) -> int:
        """The number of pipeline stages; with chunks, each consists of several non-adjacent stages."""
        return self.best.variant.stages

    @property
    def chunks(self) -> int:
        """The number of stages on each device of a pipelined step. With several, the schedule is interleaved."""
        return self.best.variant.chunks

    @property
    def microbatches(self) -> int | None:
        """The number of microbatches of a pipelined step; None for other steps."""
        return self.best.variant.microbatches

    @cached_property
    def comparison(self) -> str:
        """Why other alternatives are not the best one: the runner-up, and a faster one that does not fit, if any."""
        best, error = self.best, self._chip.prediction_error
        lines = []
        if self.runner_up is not None:
            lines.append(f"runner-up: {difference_text(best, self.runner_up, self._chip.name, error)}")
        others = len(self.ties) - (self.runner_up in self.ties)
        if others:
            lines.append(f"{others} more within the error of {100 * error:.0f}% of predictions for {self._chip.name}")
        faster = [other for other in self.alternatives if not other.fits and other.seconds < best.seconds]
        if faster:
            fastest = min(faster, key=lambda alternative: alternative.seconds)
            lines.append(f"faster, but too large: {difference_text(best, fastest, self._chip.name, error)}")
        return "\n".join(lines)

    @cached_property
    def simulation(self) -> Simulation:
        """The predicted run of the chosen plan: time with its interval, utilization and memory."""
        return Simulation(self._lowered.request, self._stages, self._chip)

    @cached_property
    def plan(self) -> Plan:
        """The plan of the step with these shardings: every collective with its bytes, time, source line and reason."""
        return request_report(self._lowered.request, self._stages, self._chip)

    @cached_property
    def activations(self) -> Activations:
        """The values that the step computes for the rows of its batch, with their layouts. It prints as a table."""
        stages, names = self._lowered.stages, self._lowered.request.names  # unused arguments are omitted
        state = [index for index, name in enumerate(names) if name in self._state]
        batch = [index for index, name in enumerate(names) if name not in self._state]
        return activations(stages.problem, stages.plan, state, batch)

    @property
    def _stages(self) -> Stages:
        """The stages of the chosen plan, with the times of the imbalance of experts."""
        return self._lowered.stages.with_expert_imbalance(self._expert_imbalance)

    @cached_property
    def _lowered(self) -> LoweredRequest:
        args = tree_util.tree_map(lambda leaf, sharding: leaf.update(sharding=sharding), self._types, self.in_shardings)
        with overridden({**self._settings, **self._platform}):
            request, traced = self._sharded.request(args, {})
            return lower_request(request, [as_array(x) for x in traced.captured], self._chip)

    def jit(self) -> "ShardedStep":
        """Return the step, to be compiled with these shardings and within the memory limit.

        Returns:
            A function like the step.

        Raises:
            DeviceMismatchError: when called, if the mesh has no devices.

        Example:
            >>> step = lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
            >>> w, x = jnp.ones((64, 64)), jnp.ones((128, 64))
            >>> jax.autoshard(step)(w, x).jit()(w, x).shape
            (64, 64)
        """
        return ShardedStep(self._sharded, self._settings)

    @cached_property
    def _sharded(self) -> Jitted[..., Any]:
        options = replace(
            self._jitted.options,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            source=self._source,
        )
        return Jitted(self._jitted.function, options)

    def __str__(self) -> str:
        best, name = self.best, function_name(self._jitted.function)
        limit = "" if self.memory_limit is None else f" of {human_bytes(self.memory_limit)}"
        remat = "" if self.remat == "none" else f", {RECOMPUTED[self.remat]}"
        attention = f", {self.attention} attention" if self.attention else ""
        pipeline = "" if self.microbatches is None else f", stages={self.stages}, microbatches={self.microbatches}"
        pipeline += f", chunks={self.chunks}" if self.chunks > 1 else ""
        shown = self.alternatives[:_ROWS]
        columns = [column for column in _COLUMNS if column.is_shown is None or any(map(column.is_shown, shown))]
        columns.append(_Column("", 0, self._remark))
        rows = [[column.text(alternative) for column in columns] for alternative in shown]
        more = len(self.alternatives) - _ROWS
        return "\n".join(
            [
                f"{name} on {self._chip.name}, mesh {best.mesh}: {best.strategy}{attention}{pipeline}{remat}",
                f"  {human_seconds(best.seconds)} per call, {human_bytes(best.wire_bytes)} sent, "
                f"{human_bytes(best.peak_bytes)}{limit} per device",
                "",
                *align([[column.head for column in columns], *rows], tuple(column.width for column in columns)),
                *([f"  and {more} more"] if more > 0 else []),
                *(["", *(f"  {line}" for line in self.comparison.splitlines())] if self.comparison else []),
            ]
        )

    def _remark(self, alternative: Alternative) -> str:
        """Return what the table says about an alternative: whether it fits, ties, and what was refined."""
        status = ("tie" if alternative in self.ties else "") if alternative.fits else "does not fit"
        return "; ".join(filter(None, [status, changes_text(alternative)]))

    __repr__ = __str__


@final
class ShardedStep:
    """A step that is compiled with the shardings of `autoshard`. It is called like the step."""

    def __init__(self, jitted: Jitted[..., Any], settings: Mapping[str, Any]):
        self._jitted = jitted
        self._settings = settings

    def __call__(self, *args: Any) -> Any:
        with overridden(self._settings):
            return self._jitted(*args)

    def lower(self, *args: Any) -> Lowered:
        """Trace, plan, partition and lower the step to StableHLO, without running it."""
        with overridden(self._settings):
            return self._jitted.lower(*args)

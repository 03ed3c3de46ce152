"""Variants of a step: which values are recomputed, and for a pipelined step the stages and microbatches.

A variant is traced on its own. The layouts of each are searched by `Search`, and all alternatives are ranked together.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, final

from shardwise.api.jit import Jitted
from shardwise.compiler.ops.control.scan import Scan
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.config import config
from shardwise.layout_search.evaluate import PLAIN, Alternative, Evaluator, Variant
from shardwise.layout_search.meshes import STAGE, mesh_shapes, stage_mesh_shapes
from shardwise.layout_search.search import MAX_EQUATIONS, Search
from shardwise.layout_search.step import BATCH, PARAMETER, STATE, Step, trace_step

REMAT = ("products", "all")  # the values of `checkpoint_scans` that are tried if memory is short, in this order
PIPELINE_PARAMETERS = ("mesh", "microbatches")
_ROUNDS_PER_STAGE = 4  # microbatches per stage that are tried first: devices are idle in about a fifth of the ticks
_ALL_STAGES = 4  # if there are no more numbers of stages than this, all are tried
_SHARE = 1.5  # of the effort for one variant, after which no further variants of a pipeline are tried


@final
@dataclass(frozen=True, eq=False)
class StepSource:
    """A step and its arguments, of which variants can be traced.

    Attributes:
        jitted: the step.
        args: its arguments.
        settings: the settings of all variants.
        is_pipelined: whether the step has the keyword parameters `mesh` and `microbatches`, which are filled in.
    """

    jitted: Jitted[..., Any]
    args: tuple[Any, ...]
    settings: Mapping[str, Any]
    is_pipelined: bool
    _traced: dict[Variant, Step] = field(default_factory=dict)

    def bind(self, variant: Variant, mesh: Mesh | AbstractMesh | None = None) -> Jitted[..., Any]:
        """Return the step of a variant; `mesh` has devices, or is that of the variant."""
        if variant.microbatches is None:
            return self.jitted
        function = self.jitted.function
        bound = partial(function, mesh=mesh or variant.mesh, microbatches=variant.microbatches)
        return Jitted(update_wrapper(bound, function, updated=()), self.jitted.options)

    def trace(self, variant: Variant) -> Step:
        """Trace a variant; each is traced once."""
        if variant not in self._traced:
            with overridden({**self.settings, **variant.settings}):
                self._traced[variant] = trace_step(self.bind(variant), self.args)
        return self._traced[variant]


def is_pipelined(step: Callable[..., Any]) -> bool:
    """Return whether a step has the keyword parameters `mesh` and `microbatches`.

    Raises:
        ValueError: if it has one of them only, or others that have no default.
    """
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # the callable has no signature
        return False
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not required:
        return False
    if sorted(required) != sorted(PIPELINE_PARAMETERS):
        raise ValueError(
            f"autoshard: the step has the keyword parameters {required}. A pipelined step has `mesh` and "
            "`microbatches`, which autoshard fills in; bind others with functools.partial."
        )
    return True


@final
class VariantSearch:
    """A search over the variants of a step.

    Attributes:
        source: the step.
        chip: the chip.
        memory_limit: the bytes that each device may hold, or None.
        stages: the numbers of pipeline stages to try; by default those that divide the devices and the layers.
        microbatches: the numbers of microbatches to try; by default multiples of the stages.
    """

    def __init__(
        self,
        source: StepSource,
        chip: Chip,
        memory_limit: int | None,
        stages: Sequence[int] | None = None,
        microbatches: Sequence[int] | None = None,
    ):
        self.source = source
        self.chip = chip
        self.memory_limit = memory_limit
        self.stages = stages
        self.microbatches = microbatches
        self._tables = IdentityCache()

    def run(self, count: int, mesh: AbstractMesh | None, effort: float = MAX_EQUATIONS) -> list[Alternative]:
        """Return all alternatives, the best first; none if no number of microbatches divides the batch evenly.

        Args:
            count: the number of devices.
            mesh: the mesh; None if its shape is chosen.
            effort: the number of equations that may be planned for each variant.
        """
        if self.source.is_pipelined:
            evaluators = self._pipelines(count, mesh, effort)
        else:
            meshes = [mesh] if mesh is not None else mesh_shapes(count, self.chip)
            evaluators = [self._searched(PLAIN, meshes, effort)]
        if not evaluators:
            return []
        best = min(evaluators, key=lambda evaluator: evaluator.best.order)
        for remat in REMAT:
            alternatives = _ranked(evaluators)
            has_scan = any(isinstance(equation.op, Scan) for equation in best.step.program.walk())
            if not has_scan or config.checkpoint_scans != "none" or not _memory_is_short(alternatives):
                break
            variant = best.variant.with_remat(remat)
            step = self.source.trace(variant)
            if step.program == best.step.program:  # the bodies of all scans call `checkpoint` themselves
                break
            meshes = list(dict.fromkeys(alternative.mesh for alternative in best.known.values()))
            evaluator = self._evaluator(variant)
            Search(evaluator, meshes, effort / 2).run()
            evaluators.append(evaluator)
        return _ranked(evaluators)

    def _evaluator(self, variant: Variant) -> Evaluator:
        step = self.source.trace(variant)
        donated = [number for number, is_donated in enumerate(step.request.donated) if is_donated]
        return Evaluator(step, self.chip, self.memory_limit, donated, variant, self._tables)

    def _searched(self, variant: Variant, meshes: Sequence[AbstractMesh], effort: float) -> Evaluator:
        evaluator = self._evaluator(variant)
        Search(evaluator, meshes, effort).run()
        return evaluator

    def _pipelines(self, count: int, mesh: AbstractMesh | None, effort: float) -> list[Evaluator]:
        """Return the evaluators of pipelines.

        Fully sharded layouts are compared. The number of stages grows or shrinks as long as that is better, then the
        inner axis, then the number of microbatches. All layouts are searched for the result.
        """
        traced = self.source.trace(Variant("none", 1, mesh or AbstractMesh((1, count), (STAGE, "data"))))
        rows = math.gcd(*_leading_sizes(traced, (BATCH,))) or 1
        searches: dict[Variant, Search] = {}

        def attempt(mesh: AbstractMesh, microbatches: int) -> Alternative:
            variant = Variant("none", microbatches, mesh)
            if variant not in searches:
                known = next((other.tensor_layouts for other in searches.values() if other.tensor_layouts), None)
                searches[variant] = Search(self._evaluator(variant), [mesh], effort, known)
                searches[variant].try_fully_sharded()
            return searches[variant].evaluator.best

        def best() -> Alternative:
            return min((search.evaluator.best for search in searches.values()), key=lambda found: found.order)

        def descend(choices: Sequence[Any], now: Any, attempt: Callable[[Any], Alternative]) -> None:
            """Replace `now` by its neighbours in `choices` as long as that is better."""
            for direction in (1, -1):
                place = choices.index(now) + direction
                while 0 <= place < len(choices):
                    spent = sum(search.evaluator.planned_equations for search in searches.values())
                    before = best()
                    if spent > _SHARE * effort or attempt(choices[place]).order >= before.order:
                        break
                    place += direction

        def numbers(mesh: AbstractMesh) -> list[int]:
            return self._microbatch_counts(mesh, rows)

        def first_number(mesh: AbstractMesh) -> int:
            ideal = _ROUNDS_PER_STAGE * mesh.shape[STAGE]
            return min(numbers(mesh), key=lambda number: (abs(math.log(number / ideal)), number))

        shapes = {
            stages: [shape for shape in self._stage_meshes(count, stages, mesh) if numbers(shape)]
            for stages in self._stage_counts(count, mesh, traced)
        }
        starts = [_inner_axis_in_node(meshes, self.chip) for meshes in shapes.values() if meshes]
        if not starts:
            return []
        middle = starts[len(starts) // 2]
        for shape in starts if len(starts) <= _ALL_STAGES else [middle]:
            attempt(shape, first_number(shape))
        descend(starts, middle, lambda shape: attempt(shape, first_number(shape)))
        descend(shapes[best().variant.stages], best().mesh, lambda shape: attempt(shape, first_number(shape)))
        chosen = best().mesh
        descend(numbers(chosen), best().variant.microbatches, lambda number: attempt(chosen, number))
        searches[best().variant].run()
        return [search.evaluator for search in searches.values()]

    def _stage_meshes(self, count: int, stages: int, mesh: AbstractMesh | None) -> list[AbstractMesh]:
        return [mesh] if mesh is not None else stage_mesh_shapes(count, stages, self.chip)

    def _stage_counts(self, count: int, mesh: AbstractMesh | None, step: Step) -> list[int]:
        """Return the numbers of stages to try: divisors of the devices and of the size that most state has along dim 0.

        This size is the number of layers.
        """
        if mesh is not None:
            return [mesh.shape[STAGE]]
        if self.stages is not None:
            return [number for number in self.stages if count % number == 0]
        bytes_of: dict[int, int] = {}
        for type, role in zip(step.types, step.roles, strict=True):
            if role in (PARAMETER, STATE):
                bytes_of[type.shape[0]] = bytes_of.get(type.shape[0], 0) + type.nbytes
        layers = max(bytes_of, key=lambda size: (bytes_of[size], size), default=1)
        return [number for number in range(1, count + 1) if count % number == 0 and layers % number == 0]

    def _microbatch_counts(self, mesh: AbstractMesh, rows: int) -> list[int]:
        """Return the numbers of microbatches to try on a mesh, whose rows are sharded evenly; in ascending order."""
        stages, data = mesh.shape[STAGE], mesh.shape.get("data", 1)
        numbers = self.microbatches
        if numbers is None:
            numbers = [stages * factor for factor in (1, 2, 4, 8, 16)]
        return sorted({number for number in numbers if rows % number == 0 and rows // number % data == 0})


def _inner_axis_in_node(meshes: Sequence[AbstractMesh], chip: Chip) -> AbstractMesh:
    """Return the mesh with the largest inner axis that is within a node; if there is none, the first mesh."""
    return next((mesh for mesh in reversed(meshes) if mesh.axis_sizes[-1] <= chip.fast_domain_size), meshes[0])


def _leading_sizes(step: Step, roles: Sequence[str]) -> list[int]:
    return [type.shape[0] for type, role in zip(step.types, step.roles, strict=True) if role in roles]


def _ranked(evaluators: Sequence[Evaluator]) -> list[Alternative]:
    alternatives = [alternative for evaluator in evaluators for alternative in evaluator.known.values()]
    return sorted(alternatives, key=lambda alternative: alternative.order)


def _memory_is_short(alternatives: Sequence[Alternative]) -> bool:
    """Return whether a plan that does not fit would be faster than all plans that fit."""
    best = alternatives[0]
    return not best.fits or any(not other.fits and other.seconds < best.seconds for other in alternatives)


@contextmanager
def overridden(settings: Mapping[str, Any]) -> Iterator[None]:
    """Return a context in which settings have these values."""
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(config.override(name, value))
        yield

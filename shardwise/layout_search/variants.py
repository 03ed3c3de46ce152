"""Variants of a step: the rematerialized values; the mesh, microbatches and chunks of a pipeline; ring attention.

Each variant is traced separately. `LayoutSearch` searches the layouts of one variant, `PipelineSearch` the variants of
a pipelined step, and `ContextSearch` those whose sequences are sharded. All alternatives are ranked together.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import final

from shardwise.base.config import config
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.contexts import ContextSearch
from shardwise.layout_search.evaluate import PLAIN, Alternative, Evaluator, SearchState, Variant
from shardwise.layout_search.meshes import CONTEXT, STAGE, mesh_shapes
from shardwise.layout_search.pipelines import PipelineOptions, PipelineSearch
from shardwise.layout_search.search import MAX_EQUATIONS, LayoutSearch
from shardwise.layout_search.source import StepSource

_PIPELINES = 0.5  # the effort for the pipelines of an ordinary step, relative to that for its other layouts
REMAT = ("products", "all")  # values of `checkpoint_scans` to try in this order if memory is short


@final
class VariantSearch:
    """A search over the variants of a step.

    Attributes:
        source: the step.
        chip: the chip.
        memory_limit: the bytes that each device may hold, or None.
        options: the numbers of stages, microbatches and chunks to try for a pipelined step.
        expert_imbalance: how many times the mean number of tokens the device with the busiest experts has.
    """

    def __init__(
        self,
        source: StepSource,
        chip: Chip,
        memory_limit: int | None,
        options: PipelineOptions,
        expert_imbalance: float = 1.0,
    ):
        self.source = source
        self.chip = chip
        self.memory_limit = memory_limit
        self.options = options
        self.expert_imbalance = expert_imbalance
        self._state = SearchState()
        self._evaluators: dict[Variant, Evaluator] = {}

    def run(self, count: int, mesh: AbstractMesh | None, effort: float = MAX_EQUATIONS) -> list[Alternative]:
        """Return all alternatives, best first; none if no number of microbatches divides the batch evenly.

        Args:
            count: the number of devices.
            mesh: the mesh; None if its shape is chosen.
            effort: the number of equations that may be planned for each variant.
        """
        self._state = SearchState(self._state.tables, plans=self._state.plans)
        self._evaluators = {}
        meshes = [mesh] if mesh is not None else mesh_shapes(count, self.chip)
        last: LayoutSearch | None = None  # a search that was cut short, because its variant cannot fit
        tensor_dims = None
        if self.source.is_pipelined:
            self._try_pipelines(count, mesh, effort)
        elif self.options.stages is None or 1 in self.options.stages:
            last, tensor_dims = self._search_layouts(PLAIN, meshes, effort)
        elif self.source.layer_scan is not None:
            self._try_pipelines(count, mesh, effort)
        if not self._evaluators:
            return []
        best = self._best
        has_scan = any(isinstance(equation.op, Scan) for equation in best.step.program.walk())
        may_remat = has_scan and config.checkpoint_scans == "none"
        for remat in REMAT:
            if not may_remat or not _memory_is_short(self._ranked()):
                break
            variant = best.variant.with_remat(remat)
            step = self.source.trace(variant)
            if step.program == best.step.program:  # scans save no more than this, or call `checkpoint` themselves
                continue
            if last is not None:  # the first variant that may fit
                last, tensor_dims = self._search_layouts(variant, meshes, effort)
            else:
                known = {alternative.mesh for alternative in best.known.values()}
                self._search_layouts(variant, meshes_to_try(known, meshes, best.best.fits), effort / 2)
        if last is not None and self.may_fit(meshes[0].device_count):  # nothing fits: find the smallest plan
            last.run()
        if best.variant == PLAIN and self.may_fit(meshes[0].device_count):
            remat = self._best.variant.remat
            if self._may_be_context_parallel(count, mesh, best.step.rows):
                contexts = ContextSearch(self.source, self.chip, self._evaluator, tensor_dims)
                contexts.run(count, mesh, best.step.rows, remat, may_remat)
            if self._may_be_pipelined(count, mesh) and not self._state.is_exhausted:
                self._try_pipelines(count, mesh, _PIPELINES * effort, remat)
        return self._ranked()

    def find_fitting(self, count: int, effort: float) -> Alternative | None:
        """Return a plan that fits on another number of devices than that of `run`, or None if none is found.

        It need not be the fastest: only the variant that needs the least memory is planned.
        """
        if self.source.is_pipelined or (self.options.stages is not None and 1 not in self.options.stages):
            alternatives = self.run(count, None, effort)
            return alternatives[0] if alternatives and alternatives[0].fits else None
        plain = [variant for variant in self._evaluators if variant.mesh is None]
        variant = min(plain, key=lambda variant: self._evaluators[variant].least_bytes(count))
        self._state = SearchState(self._state.tables, plans=self._state.plans)
        self._evaluators = {}
        evaluator = self._evaluator(variant)
        search = LayoutSearch(evaluator, mesh_shapes(count, self.chip), effort)
        if found := search.find_fitting():
            return found
        rows = evaluator.step.rows
        if not self._may_be_context_parallel(count, None, rows):
            return None
        contexts = ContextSearch(self.source, self.chip, self._evaluator, search.tensor_dims)
        return contexts.find_fitting(count, rows, variant.remat)

    def may_fit(self, count: int) -> bool:
        """Return whether any plan of the variants so far may fit in the memory of this number of devices."""
        return self.memory_limit is None or self.least_bytes(count) <= self.memory_limit

    def least_bytes(self, count: int) -> float:
        """Return a bound of the bytes per device that all plans of the variants so far need."""
        return min(evaluator.least_bytes(count) for evaluator in self._evaluators.values())

    def _search_layouts(
        self, variant: Variant, meshes: Sequence[AbstractMesh], effort: float
    ) -> tuple[LayoutSearch | None, Mapping[int, int | None] | None]:
        """Search the layouts of a variant, or only sample them if the variant cannot fit in memory.

        Returns:
            The search if it only sampled, else None; and the tensor-parallel dims of state that it found, or None.
        """
        evaluator = self._evaluator(variant)
        search = LayoutSearch(evaluator, meshes, effort)
        if evaluator.may_fit(meshes[0].device_count):
            search.run()
            return None, search.tensor_dims
        search.sample()
        return LayoutSearch(evaluator, meshes, effort), search.tensor_dims

    @property
    def _best(self) -> Evaluator:
        return min(self._evaluators.values(), key=lambda evaluator: evaluator.best.order)

    def _ranked(self) -> list[Alternative]:
        known = [alternative for evaluator in self._evaluators.values() for alternative in evaluator.known.values()]
        return sorted(known, key=lambda alternative: alternative.order)

    def _try_pipelines(self, count: int, mesh: AbstractMesh | None, effort: float, remat: str = PLAIN.remat) -> None:
        PipelineSearch(self.source, self.chip, self.options, self._evaluator).run(count, mesh, effort, remat)

    def _may_be_context_parallel(self, count: int, mesh: AbstractMesh | None, rows: int) -> bool:
        """Return whether to shard sequences: by default, if all devices together do not divide the rows."""
        return rows % count != 0 if mesh is None else CONTEXT in mesh.axis_names

    def _may_be_pipelined(self, count: int, mesh: AbstractMesh | None) -> bool:
        """Return whether to try pipelines of an ordinary step.

        By default, they are tried if the devices are in several nodes. Within a node, links are so fast that other
        layouts are faster than a pipeline, whose devices wait.
        """
        if mesh is not None:
            may_be = STAGE in mesh.axis_names
        else:
            may_be = self.options.stages is not None or count > self.chip.fast_domain_size
        return may_be and self.source.layer_scan is not None

    def _evaluator(self, variant: Variant) -> Evaluator:
        """Return the evaluator of a variant."""
        if variant not in self._evaluators:
            step = self.source.trace(variant)
            donated = [index for index, is_donated in enumerate(step.request.donated) if is_donated]
            self._evaluators[variant] = Evaluator(
                step, self.chip, self.memory_limit, donated, variant, self._state, self.expert_imbalance
            )
        return self._evaluators[variant]


def meshes_to_try(
    known: Collection[AbstractMesh], meshes: Sequence[AbstractMesh], is_known_to_fit: bool
) -> list[AbstractMesh]:
    """Return the meshes to try for a variant that needs less memory than another one, which was searched before.

    Replicas of the state need more memory, so that a search in which no plan fits hardly tries meshes with them.

    Args:
        known: the meshes that were tried for the other variant.
        meshes: all meshes.
        is_known_to_fit: whether a plan of the other variant fits.
    """
    return [mesh for mesh in meshes if mesh in known or (not is_known_to_fit and len(mesh.axis_names) == 3)]


def _memory_is_short(alternatives: Sequence[Alternative]) -> bool:
    """Return whether a plan that does not fit would be faster than all plans that fit."""
    best = alternatives[0]
    return not best.fits or any(not other.fits and other.seconds < best.seconds for other in alternatives)

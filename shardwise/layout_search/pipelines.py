"""PipelineSearch: choose the mesh, the chunks and the microbatches of a pipelined step.

Variants are compared with fully sharded layouts, by coordinate descent: first the number of stages, then the inner
axis, then the number of chunks, with which the schedule is interleaved, then the number of microbatches. All layouts
are then searched for the resulting variant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.evaluate import Alternative, Evaluator, Variant
from shardwise.layout_search.meshes import STAGE, divisors, stage_mesh_shapes
from shardwise.layout_search.search import LayoutSearch
from shardwise.layout_search.source import StepSource
from shardwise.layout_search.step import BATCH, PARAMETER, STATE, Step

_ROUNDS_PER_STAGE = 4  # microbatches per stage to try first: devices are idle in about a fifth of the ticks
_MICROBATCHES = (1, 2, 4, 8, 16)  # per stage
_ALL_STAGES = 4  # up to this many stage counts, all are tried
_SHARE = 1.5  # of the effort for one variant; beyond it, no further variants are tried
_LAYOUTS = 0.75  # of the effort, for the layouts of one pipeline, because its stages determine most of them


@final
@dataclass(frozen=True)
class PipelineOptions:
    """The values to try for a pipelined step.

    Attributes:
        stages: the numbers of stages; by default the divisors of both the devices and the layers.
        microbatches: the numbers of microbatches; by default multiples of the stages.
        chunks: the numbers of stages on each device; by default the divisors of the layers.
    """

    stages: Sequence[int] | None = None
    microbatches: Sequence[int] | None = None
    chunks: Sequence[int] | None = None


@final
class PipelineSearch:
    """A search over the variants of a pipelined step.

    Attributes:
        source: the step.
        chip: the chip.
        options: the values to try.
        evaluator: returns the evaluator of a variant.
    """

    def __init__(
        self, source: StepSource, chip: Chip, options: PipelineOptions, evaluator: Callable[[Variant], Evaluator]
    ):
        self.source = source
        self.chip = chip
        self.options = options
        self.evaluator = evaluator
        self._searches: dict[Variant, LayoutSearch] = {}
        self._effort = 0.0

    def run(self, count: int, mesh: AbstractMesh | None, effort: float, remat: str = "none") -> None:
        """Evaluate variants; none if no number of microbatches divides the batch.

        Args:
            count: the number of devices.
            mesh: the mesh; None if its shape is chosen.
            effort: the number of equations that may be planned for each variant.
            remat: the values that derivatives of scans rematerialize.
        """
        self._effort = effort
        rows, layers = self._rows_and_layers(count, mesh)

        def first_variant(mesh: AbstractMesh) -> Variant:
            ideal = _ROUNDS_PER_STAGE * mesh.shape[STAGE]
            chunks = self._chunk_counts(mesh, layers)[0]
            numbers = self._microbatch_counts(mesh, rows, chunks)
            return Variant(remat, min(numbers, key=lambda n: (abs(math.log(n / ideal)), n)), mesh, chunks)

        shapes: dict[int, list[AbstractMesh]] = {}
        for stages in self._stage_counts(count, mesh, layers):
            meshes = [mesh] if mesh is not None else stage_mesh_shapes(count, stages, self.chip)
            shapes[stages] = [
                shape
                for shape in meshes
                if (chunks := self._chunk_counts(shape, layers)) and self._microbatch_counts(shape, rows, chunks[0])
            ]
        starts = [first_variant(_inner_axis_in_node(meshes, self.chip)) for meshes in shapes.values() if meshes]
        if not starts:
            return
        middle = starts[len(starts) // 2]
        for variant in starts if len(starts) <= _ALL_STAGES else [middle]:
            self._attempt(variant)
        self._descend(starts, middle)
        self._descend([first_variant(shape) for shape in shapes[self._best.variant.stages]])
        best, chosen = self._best.variant, self._best.mesh
        chunk_counts = self._chunk_counts(chosen, layers)
        valid = [c for c in chunk_counts if best.microbatches in self._microbatch_counts(chosen, rows, c)]
        self._descend([replace(best, chunks=chunks) for chunks in valid])
        best = self._best.variant
        numbers = self._microbatch_counts(chosen, rows, best.chunks)
        self._descend([replace(best, microbatches=number) for number in numbers])
        self._searches[self._best.variant].run()

    def _rows_and_layers(self, count: int, mesh: AbstractMesh | None) -> tuple[int, int]:
        """Return the number of rows that microbatches divide, and the number of layers."""
        if not self.source.is_pipelined:
            scan = self.source.layer_scan
            assert scan is not None
            return scan.rows, scan.layers
        traced = self.source.trace(Variant("none", 1, mesh or AbstractMesh((1, count), (STAGE, "data"))))
        rows = math.gcd(*(type.shape[0] for type, role in _inputs(traced) if role == BATCH)) or 1
        return rows, _layers(traced)

    @property
    def _best(self) -> Alternative:
        return min((search.evaluator.best for search in self._searches.values()), key=lambda found: found.order)

    def _attempt(self, variant: Variant) -> Alternative:
        """Evaluate fully sharded layouts of a variant."""
        if variant not in self._searches:
            assert variant.mesh is not None
            known = next((other.tensor_dims for other in self._searches.values() if other.tensor_dims), None)
            search = LayoutSearch(self.evaluator(variant), [variant.mesh], _LAYOUTS * self._effort, known)
            search.try_fully_sharded()
            self._searches[variant] = search
        return self._searches[variant].evaluator.best

    def _descend(self, choices: Sequence[Variant], start: Variant | None = None) -> None:
        """Try the neighbours of a variant in `choices`, in both directions as long as they improve.

        Args:
            choices: variants that differ in one number, ordered by it.
            start: a variant in `choices`; by default the best variant.
        """
        for direction in (1, -1):
            place = choices.index(start or self._best.variant) + direction
            while 0 <= place < len(choices):
                spent = sum(search.evaluator.planned_equations for search in self._searches.values())
                before = self._best
                if spent > _SHARE * self._effort or self._attempt(choices[place]).order >= before.order:
                    break
                place += direction

    def _stage_counts(self, count: int, mesh: AbstractMesh | None, layers: int) -> list[int]:
        """Return the numbers of stages to try: divisors of the devices and of the layers."""
        if mesh is not None:
            return [mesh.shape[STAGE]]
        if self.options.stages is not None:
            return [number for number in self.options.stages if self._may_have_stages(number, count, layers)]
        return [number for number in divisors(count) if self._may_have_stages(number, count, layers)]

    def _may_have_stages(self, number: int, count: int, layers: int) -> bool:
        """Return whether to try a number of stages. The function of a pipelined step need not divide its layers."""
        if self.source.is_pipelined and self.options.stages is not None:
            return count % number == 0
        is_pipeline = number > 1 or self.source.is_pipelined  # an ordinary step with one stage is compared before
        return is_pipeline and count % number == 0 and layers % number == 0

    def _chunk_counts(self, mesh: AbstractMesh, layers: int) -> list[int]:
        """Return the numbers of chunks to try on a mesh, in ascending order."""
        if not self.source.has_chunks:
            return [1]
        if self.options.chunks is not None:
            return sorted(self.options.chunks)
        per_device = layers // mesh.shape[STAGE]
        return [index for index in range(1, per_device + 1) if per_device % index == 0]

    def _microbatch_counts(self, mesh: AbstractMesh, rows: int, chunks: int) -> list[int]:
        """Return the numbers of microbatches to try on a mesh, ascending, for which the rows are sharded evenly.

        In an interleaved schedule, the number of stages divides the number of microbatches.
        """
        stages, data = mesh.shape[STAGE], mesh.shape.get("data", 1)
        numbers = self.options.microbatches
        if numbers is None:
            numbers = [stages * factor for factor in _MICROBATCHES]
        allowed = [number for number in numbers if chunks == 1 or number % stages == 0]
        return sorted({number for number in allowed if rows % number == 0 and rows // number % data == 0})


def _inputs(step: Step) -> list[tuple[Any, str]]:
    """Return the type and the role of each input."""
    return list(zip(step.types, step.roles, strict=True))


def _layers(step: Step) -> int:
    """Return the number of layers, which is the most common size of dim 0 in the state."""
    bytes_of: dict[int, int] = {}
    for type, role in _inputs(step):
        if role in (PARAMETER, STATE):
            bytes_of[type.shape[0]] = bytes_of.get(type.shape[0], 0) + type.nbytes
    return max(bytes_of, key=lambda size: (bytes_of[size], size), default=1)


def _inner_axis_in_node(meshes: Sequence[AbstractMesh], chip: Chip) -> AbstractMesh:
    """Return the mesh with the largest inner axis that is within a node, else the first mesh."""
    return next((mesh for mesh in reversed(meshes) if mesh.axis_sizes[-1] <= chip.fast_domain_size), meshes[0])

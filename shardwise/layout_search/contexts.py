"""ContextSearch: choose the mesh of context parallelism, and how attention runs over the sharded sequence.

Context parallelism shards sequences, for a batch with fewer rows than there are devices. Attention runs where the
planner places it, which gathers keys or exchanges heads, or it is ring attention, for which the step is traced again.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, final

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.evaluate import BALANCED_RING, RING, Alternative, Evaluator, Variant
from shardwise.layout_search.meshes import CONTEXT, MODEL, context_mesh_shapes
from shardwise.layout_search.search import LayoutSearch
from shardwise.layout_search.source import StepSource

_REMATS = ("none", "products", "all")  # each saves fewer values than the one before
_MODEL_SIZES = (2, 4, 8)  # sizes of a tensor-parallel axis
_FITTING_MESHES = 2  # the most meshes on which to look for any plan that fits


class _Choice(NamedTuple):
    """Values to decide: the rematerialized values, the way to run attention, and the mesh."""

    remat: str
    attention: str
    mesh: AbstractMesh

    @property
    def variant(self) -> Variant:
        """How the step is traced. Without ring attention, it is the same for all meshes."""
        return Variant(self.remat, mesh=self.mesh if self.attention else None, attention=self.attention)


@final
class ContextSearch:
    """A search by coordinate descent: over the ways to run attention, the meshes, and the rematerialized values.

    Attributes:
        source: the step.
        chip: the chip.
        evaluator: returns the evaluator of a variant; the same one for equal variants.
        tensor_dims: the tensor-parallel dims of state that were found on another mesh, or None.
    """

    def __init__(
        self,
        source: StepSource,
        chip: Chip,
        evaluator: Callable[[Variant], Evaluator],
        tensor_dims: Mapping[int, int | None] | None,
    ):
        self.source = source
        self.chip = chip
        self.evaluator = evaluator
        self.tensor_dims = tensor_dims
        self._tried: dict[_Choice, Alternative] = {}

    def run(self, count: int, mesh: AbstractMesh | None, rows: int, remat: str, may_remat: bool) -> None:
        """Evaluate context parallelism, if the step has self-attention whose length a number of devices divides.

        Args:
            count: the number of devices.
            mesh: the mesh; None if its shape is chosen.
            rows: the number of sequences.
            remat: the values that derivatives of scans rematerialize in the best plan so far.
            may_remat: whether to try others.
        """
        length = math.gcd(*self.source.self_attention.lengths)
        meshes = self._meshes(count, rows, length) if mesh is None else [mesh]
        if not length or not meshes or length % meshes[0].shape[CONTEXT]:
            return
        for attention in self._attentions(meshes[0], length):
            self._attempt(_Choice(remat, attention, meshes[0]))
        for other in meshes[1:]:
            if not self._attempt(self._best._replace(mesh=other)):
                break
        inner = self._best.mesh
        for size in _MODEL_SIZES if mesh is None else ():
            extent, rest = divmod(inner.shape[CONTEXT], size)
            if rest or extent == 1:
                break
            divided = AbstractMesh((*inner.axis_sizes[:-1], extent, size), (*inner.axis_names, MODEL))
            if not self._attempt(self._best._replace(mesh=divided)):
                break
        place = _REMATS.index(remat)
        others = _REMATS[:place][::-1] if self._tried[self._best].fits else _REMATS[place + 1 :]
        for values in others if may_remat else ():
            if not self._attempt(self._best._replace(remat=values)):
                break

    def find_fitting(self, count: int, rows: int, remat: str) -> Alternative | None:
        """Return a plan that fits, with attention where the planner places it; None if none is found."""
        length = math.gcd(*self.source.self_attention.lengths)
        for mesh in self._meshes(count, rows, length)[:_FITTING_MESHES]:
            choice = _Choice(remat, "", mesh)
            self._attempt(choice)
            if self._tried[choice].fits:
                return self._tried[choice]
        return None

    def _meshes(self, count: int, rows: int, length: int) -> list[AbstractMesh]:
        """Return the meshes to try; none without self-attention, whose length is 0."""
        return context_mesh_shapes(count, rows, length, self.chip) if length else []

    def _attentions(self, mesh: AbstractMesh, length: int) -> list[str]:
        """Return the ways to run attention: the planner's, and rings."""
        may_be_balanced = self.source.self_attention.has_causal and length % (2 * mesh.shape[CONTEXT]) == 0
        return ["", RING, *([BALANCED_RING] if may_be_balanced else [])]

    @property
    def _best(self) -> _Choice:
        return min(self._tried, key=lambda choice: self._tried[choice].order)

    def _attempt(self, choice: _Choice) -> bool:
        """Evaluate a choice, and return whether it is better than all before. Evaluate none in an exhausted search."""
        if self._tried and self.evaluator(self._best.variant).state.is_exhausted:
            return False
        search = LayoutSearch(self.evaluator(choice.variant), [choice.mesh], tensor_dims=self.tensor_dims)
        self._tried[choice] = search.try_context_parallel(choice.mesh)
        self.tensor_dims = search.tensor_dims
        return self._best == choice

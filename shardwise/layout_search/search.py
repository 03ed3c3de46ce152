"""search: find the mesh and the layouts of arguments with which a step is predicted to be fastest.

The layouts come from three sources. Families are data parallelism, ZeRO and fully sharded parameters (`families.py`),
combined with a tensor-parallel axis, or with expert parallelism. The planner chooses the layouts of arguments itself
(`open_arguments`), with a cost per byte of state that a device stores. Descent changes one class of arguments at a
time. All candidates are compared by the prediction of `simulate`; the fastest one that fits in memory is the result.

The effort is limited by the number of planned equations instead of time, so that results are deterministic.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import final

from shardwise.compiler.candidates.open_arguments import open_arguments
from shardwise.compiler.plan.choose import choose_candidates
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.search.search import Move, Search
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.evaluate import Alternative, Evaluator, LayoutChange
from shardwise.layout_search.families import (
    may_be_divided,
    pinned_layouts,
    with_axis_on_dims,
    with_batch,
    with_experts,
    with_sequences,
    with_sharded_state,
    with_stages,
)
from shardwise.layout_search.meshes import CONTEXT, DATA, MODEL, STAGE
from shardwise.layout_search.step import BATCH, STATE, Step

MAX_EQUATIONS = 6_500  # the most equations to plan, over all attempts
_MIN_PLANS = 9  # the number of plans for which the effort is enough, however many equations the program has
STORAGE_COSTS = (1e-3, 1.0)  # costs of storing a byte of state, in bytes sent
_MESHES, _FAMILIES, _CHOSEN, _ALL = 0.45, 0.7, 0.85, 1.0  # fractions of the effort after which each part stops
_SAMPLE = 0.15  # the fraction of the effort for a variant that cannot fit in memory, which is one or two plans
_EXPERT_PARALLEL = "FSDP × expert parallel"
_GAIN = 0.999  # descent continues from a plan that takes at most this fraction of the time

Candidate = tuple[str, AbstractMesh, tuple[Layout, ...]]  # a name, a mesh, and the layouts of all arguments


@final
class LayoutSearch:
    """A search for the best layouts.

    Attributes:
        evaluator: evaluates the layouts.
        meshes: the meshes to try.
        effort: the number of equations that may be planned; more for a program that is so large that this allows only a
            few plans.
        tensor_dims: the tensor-parallel dim of each input that is state, or None for an input without one, as they were
            first found, on this mesh or another.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        meshes: Sequence[AbstractMesh],
        effort: float = MAX_EQUATIONS,
        tensor_dims: Mapping[int, int | None] | None = None,
    ):
        self.evaluator = evaluator
        self.step: Step = evaluator.step
        self.meshes = meshes
        self.effort = max(effort, effort / MAX_EQUATIONS * _MIN_PLANS * len(self.step.unfolded.equations))
        self.base: Sequence[Layout] = pinned_layouts(self.step)
        variant = evaluator.variant
        self.stage_axes = (STAGE,) if variant.is_pipelined else ()
        if variant.is_pipelined and variant.mesh is not None:
            self.base = with_stages(self.step, variant.mesh, self.base, STAGE)
        self.tensor_dims = tensor_dims
        self._further = 0.0  # the equations that were planned beside the effort

    def run(self) -> list[Alternative]:
        """Return all alternatives, the best first."""
        self._try_experts()
        self._try_meshes()
        if all(mesh.size == 1 for mesh in self.meshes):  # all layouts are the same
            return self.ranked()
        for mesh in self._best_meshes(2):
            self._try(self._families(mesh), _FAMILIES)
        for mesh in self.meshes:  # data parallelism may prefer another mesh than fully sharded state
            if len(self.axes(mesh)) == 1 and self._has_effort(_FAMILIES):
                self._try(self._families(mesh), _FAMILIES)
        for mesh in self._best_meshes(0 if self.stage_axes else 2):  # a pipeline determines most layouts
            self._try(self._chosen(mesh), _CHOSEN)
        self._descend()
        return self.ranked()

    def sample(self) -> None:
        """Evaluate one or two layouts, to report the time and memory of a variant that cannot fit in memory."""
        self.effort *= _SAMPLE
        self._try_experts()
        self._try_meshes()

    def find_fitting(self) -> Alternative | None:
        """Return a plan that fits, with all state sharded, on a mesh of one or two axes; None if none is found.

        Meshes whose outer axis does not divide the batch are tried only if there are no others.
        """
        meshes = [mesh for mesh in self.meshes if len(self.axes(mesh)) <= 2]
        dividing = [mesh for mesh in meshes if self.step.rows % mesh.shape[DATA] == 0]
        for mesh in dividing or meshes:
            candidates = [self._fully_sharded(mesh)]
            if len(self.axes(mesh)) == 2 and (experts := self._expert_parallel(mesh)) is not None:
                candidates.insert(0, (_EXPERT_PARALLEL, mesh, experts))
            for candidate in candidates:
                if not self._has_effort(_ALL):
                    return None
                if (found := self._evaluate(*candidate)).fits:
                    return found
        return None

    def try_fully_sharded(self) -> None:
        """Evaluate fully sharded layouts on every mesh, to compare meshes."""
        for mesh in self.meshes:
            self._evaluate(*self._fully_sharded(mesh))

    def try_context_parallel(self, mesh: AbstractMesh) -> Alternative:
        """Evaluate layouts with sequences sharded over the axis `context`, and state over all axes.

        Where it can, `context` shards the tensor-parallel dims of state, so that attention may shard heads over it.
        """
        layouts = with_batch(self.step, mesh, self.base, [axis for axis in mesh.axis_names if axis == DATA])
        layouts = with_sequences(self.step, mesh, layouts, CONTEXT)
        name = "FSDP × context parallel"
        if MODEL in mesh.axis_names:
            name, layouts = f"{name} × tensor parallel", self._with_model_axis(mesh, layouts, MODEL)
        if self.tensor_dims is None:
            layouts = self._with_model_axis(mesh, layouts, CONTEXT)
        else:
            layouts = with_axis_on_dims(self.step, mesh, layouts, CONTEXT, self.tensor_dims)
        return self._evaluate(name, mesh, with_sharded_state(self.step, mesh, layouts, mesh.axis_names))

    def axes(self, mesh: AbstractMesh) -> tuple[str, ...]:
        """Return the axes of a mesh without the pipeline axis."""
        return tuple(axis for axis in mesh.axis_names if axis not in self.stage_axes)

    def ranked(self) -> list[Alternative]:
        """Return the alternatives so far, the best first."""
        return sorted(self.evaluator.known.values(), key=lambda alternative: alternative.order)

    def _best_meshes(self, count: int) -> list[AbstractMesh]:
        """Return the best meshes. Of meshes with equal inner axes, which differ in replicas, only the first."""
        meshes = list(dict.fromkeys(alternative.mesh for alternative in self.ranked()))[:count]
        best: dict[tuple[int, ...], AbstractMesh] = {}
        for mesh in meshes:
            best.setdefault(mesh.axis_sizes[-1:], mesh)
        return list(best.values())

    def _has_effort(self, share: float) -> bool:
        return self.evaluator.planned_equations - self._further < share * self.effort

    def _try(self, candidates: Iterable[Candidate], share: float) -> None:
        for candidate in candidates:
            self._evaluate(*candidate)
            if not self._has_effort(share):
                break

    def _evaluate(self, name: str, mesh: AbstractMesh, layouts: tuple[Layout, ...]) -> Alternative:
        """Return the costs of layouts. Layouts of a family that cannot shard anything are named replicated."""
        is_sharded = any(mesh.shape[axis] > 1 for layout in layouts for axis in layout.axes)
        return self.evaluator.evaluate(name if is_sharded else "replicated", mesh, layouts)

    def _try_meshes(self) -> None:
        """Evaluate one family on meshes of one and two axes, and on some of three.

        The inner axis grows until two consecutive meshes do not improve. Meshes of three axes extend the best two: the
        outer axis is split into replicas of the state and shards of it. Of these splits, only the direction in which
        the time decreases is evaluated.
        """
        worse = 0  # the number of meshes since the best one
        best: Alternative | None = None
        for mesh in self.meshes:
            if best is not None and (len(self.axes(mesh)) == 3 or worse == 2 or not self._has_effort(_MESHES)):
                break
            alternative = self._evaluate(*self._fully_sharded(mesh))
            worse = 0 if best is None or alternative.order < best.order else worse + 1
            best = alternative if not worse else best
        assert best is not None
        model = best.mesh.axis_sizes[-1:]
        divided = [mesh for mesh in self.meshes if len(self.axes(mesh)) == 3 and mesh.axis_sizes[-1:] == model]
        place, step = len(divided) // 2, 1
        while 0 <= place < len(divided) and self._has_effort(_FAMILIES):
            before = self.ranked()[0]
            after = self._evaluate(*self._fully_sharded(divided[place]))
            if after.order >= before.order:
                if step < 0:
                    break
                step, place = -1, len(divided) // 2
            place += step

    def _try_experts(self) -> None:
        """Evaluate expert parallelism on meshes of two axes, the most devices per set of experts first.

        Replicas of the state are tried for the best of these meshes, and for the largest expert axis within a node,
        with which devices gather the fewest weights between nodes. They are further effort, so that other families are
        not searched less.
        """
        meshes = [mesh for mesh in self.meshes if len(self.axes(mesh)) == 2]
        tried = [
            alternative
            for mesh in sorted(meshes, key=lambda mesh: -mesh.axis_sizes[-1])
            if (alternative := self._try_expert_parallel(mesh, _FAMILIES)) is not None
        ]
        before = self.evaluator.planned_equations
        within = [plan for plan in tried if plan.mesh.axis_sizes[-1] <= self.evaluator.chip.fast_domain_size]
        for plan in dict.fromkeys([*within[:1], *sorted(tried, key=lambda plan: plan.order)[:1]]):
            self._try_replicas(plan)
        self._further += self.evaluator.planned_equations - before

    def _try_replicas(self, best: Alternative) -> None:
        """Evaluate expert parallelism with more and more replicas of the state, as long as it gets better."""
        size = best.mesh.axis_sizes[-1]
        divided = [mesh for mesh in self.meshes if len(self.axes(mesh)) == 3 and mesh.axis_sizes[-1] == size]
        for mesh in sorted(divided, key=lambda mesh: mesh.axis_sizes[-3]):
            alternative = self._try_expert_parallel(mesh, _ALL)
            if alternative is None or alternative.order >= best.order:
                return
            best = alternative

    def _try_expert_parallel(self, mesh: AbstractMesh, share: float) -> Alternative | None:
        """Evaluate expert parallelism on a mesh; None without experts that it divides, or if the effort is spent."""
        layouts = self._expert_parallel(mesh)
        if layouts is None or not self._has_effort(share):
            return None
        return self._evaluate(_EXPERT_PARALLEL, mesh, layouts)

    def _expert_parallel(self, mesh: AbstractMesh) -> tuple[Layout, ...] | None:
        """Return the layouts with the batch sharded over all axes, and experts over the last one; None without experts.

        Other state is fully sharded over the last two axes, and each expert over the one before the last.
        """
        axes = self.axes(mesh)
        batch = with_batch(self.step, mesh, self.base, axes)
        layouts = with_experts(self.step, mesh, batch, axes[-1])
        return None if layouts is None else with_sharded_state(self.step, mesh, layouts, axes[-2:])

    def _fully_sharded(self, mesh: AbstractMesh) -> Candidate:
        """Return the layouts with all state sharded, over the last outer axis and a tensor-parallel axis."""
        axes = self.axes(mesh)
        if not axes:
            return "pipeline" if self.stage_axes else "replicated", mesh, tuple(self.base)
        if len(axes) == 1:
            batch = with_batch(self.step, mesh, self.base, axes)
            return "FSDP", mesh, with_sharded_state(self.step, mesh, batch, axes)
        sharded = with_sharded_state(self.step, mesh, self._tensor_parallel(mesh), axes[-2:-1])
        return "FSDP × tensor parallel", mesh, sharded

    def _zero(self, mesh: AbstractMesh) -> Candidate:
        """Return the layouts with the optimizer's state sharded over the last outer axis."""
        axes = self.axes(mesh)
        if len(axes) == 1:
            batch = with_batch(self.step, mesh, self.base, axes)
            return "ZeRO 1", mesh, with_sharded_state(self.step, mesh, batch, axes, (STATE,))
        sharded = with_sharded_state(self.step, mesh, self._tensor_parallel(mesh), axes[-2:-1], (STATE,))
        return "ZeRO 1 × tensor parallel", mesh, sharded

    def _tensor_parallel(self, mesh: AbstractMesh) -> tuple[Layout, ...]:
        """Return the layouts with the batch sharded over the outer axes, and state chosen along the last axis."""
        *outer, model = self.axes(mesh)
        return self._with_model_axis(mesh, with_batch(self.step, mesh, self.base, outer), model)

    def _with_model_axis(self, mesh: AbstractMesh, layouts: tuple[Layout, ...], model: str) -> tuple[Layout, ...]:
        """Return the layouts with the state chosen along an axis.

        The dims that were chosen on the first mesh are reused for all other meshes that divide them.
        """
        if (dims := self.tensor_dims) is not None:
            size = mesh.shape[model]
            if all(dim is None or may_be_divided(self.step.types[n].shape[dim], size) for n, dim in dims.items()):
                return with_axis_on_dims(self.step, mesh, layouts, model, dims)
        chosen = self.choose_layouts(mesh, layouts, (model,), STORAGE_COSTS[-1], self.state_inputs())
        if dims is None:
            self.tensor_dims = {n: chosen[n].dim_of(model) for n in self.state_inputs()}
        return chosen

    def _families(self, mesh: AbstractMesh) -> Iterator[Candidate]:
        """Yield further layouts of families on a mesh."""
        axes = self.axes(mesh)
        step, base = self.step, self.base
        if not axes:
            return
        data = with_batch(step, mesh, base, axes)
        if len(axes) == 1:
            yield "data parallel", mesh, data
            yield self._zero(mesh)
            yield "tensor parallel", mesh, self.choose_layouts(mesh, base, axes, STORAGE_COSTS[-1], self.state_inputs())
            return
        yield self._zero(mesh)
        yield "data × tensor parallel", mesh, self._tensor_parallel(mesh)
        yield "data × FSDP", mesh, with_sharded_state(step, mesh, data, axes[-1:])

    def _chosen(self, mesh: AbstractMesh) -> Iterator[Candidate]:
        """Yield the layouts that the planner chooses for all arguments."""
        for cost in STORAGE_COSTS:
            layouts = self.choose_layouts(mesh, self.base, self.axes(mesh), cost, self.step.open_inputs())
            yield "planner's choice", mesh, layouts

    def state_inputs(self) -> dict[int, int | None]:
        """Return the open inputs that are state."""
        return {n: out for n, out in self.step.open_inputs().items() if self.step.roles[n] != BATCH}

    def choose_layouts(
        self,
        mesh: AbstractMesh,
        layouts: Sequence[Layout],
        axes: Collection[str],
        storage_cost: float,
        inputs: dict[int, int | None],
    ) -> tuple[Layout, ...]:
        """Return the layouts, with the layouts of some inputs chosen by the planner.

        Args:
            mesh: the mesh.
            layouts: the layouts of all inputs.
            axes: the axes along which the planner chooses.
            storage_cost: the cost of each byte of these inputs that a device stores, in bytes sent.
            inputs: the inputs whose layouts are chosen, each with the output that is passed as it to the next call, or
                None.
        """
        sharded = self.evaluator.layout_problem(mesh, layouts)
        if sharded.mesh != mesh or not inputs:  # a pinned dim needs sub-axes, which shardings of arguments cannot have
            return tuple(layouts)
        opened, equations = open_arguments(sharded, inputs, axes)
        self.evaluator.planned_equations += len(opened.planned)
        costs = {e: storage_cost * e.outputs[0].type.nbytes for e in equations.values()}
        network = Costs(self.evaluator.chip, mesh, exposes_hops=True)
        picks = choose_candidates(opened, network, costs, self.evaluator.state.tables)
        chosen = list(layouts)
        for index, equation in equations.items():
            shape = equation.outputs[0].type.shape
            for axis in mesh.axis_names:
                dim = picks[axis][equation].results[0]
                if axis in axes and isinstance(dim, int):
                    sharding_axes = (*chosen[index].dims[dim], axis)
                    if may_be_divided(shape[dim], mesh.extent(sharding_axes)):
                        chosen[index] = chosen[index].with_dim(dim, sharding_axes)
        return tuple(chosen)

    def _descend(self) -> None:
        """Change the layouts of one class of arguments at a time, as long as the best plan gets faster."""
        classes = argument_classes(self.step)
        improved = True
        while improved:
            improved = False
            for members in classes:
                memory, time, *_ = self.ranked()[0].order
                search: Search[None, Alternative, tuple[float, ...]] = Search(_cost, (memory, _GAIN * time))
                improved |= search.first(self._moves(self.ranked()[0], members)) is not None

    def _moves(self, best: Alternative, members: Sequence[int]) -> Iterator[Move[None, Alternative]]:
        """Yield the best layouts with each axis moved to another dim of some arguments, or removed from them."""
        shape = self.step.types[members[0]].shape
        for axis in self.axes(best.mesh):
            for dim in (*self.step.dims(members[0]), None):
                layouts = list(best.layouts)
                for index in members:
                    dims = [tuple(name for name in axes if name != axis) for axes in layouts[index].dims]
                    if dim is not None:
                        dims[dim] = (*dims[dim], axis)
                        if not may_be_divided(shape[dim], best.mesh.extent(dims[dim])):
                            break
                    layouts[index] = Layout(tuple(dims))
                else:
                    if not self._has_effort(_ALL):
                        return
                    if (best.mesh, tuple(layouts)) not in self.evaluator.known:
                        yield Move(None, partial(self._refine, best, tuple(layouts)))

    def _refine(self, best: Alternative, layouts: tuple[Layout, ...]) -> Alternative:
        """Return the costs of layouts that differ from those of the best alternative, or of its strategy."""
        strategy = {change.indices: change.before for change in best.changes}
        changes = []
        for members in argument_classes(self.step):
            first = members[0]
            before, name = strategy.get(tuple(members), best.layouts[first]), self.step.request.names[first]
            if before != layouts[first]:
                argument = name if len(members) == 1 else _pattern(name)
                changes.append(LayoutChange(argument, tuple(members), before, layouts[first]))
        return self.evaluator.evaluate(best.name, best.mesh, layouts, tuple(changes))


def _cost(alternative: Alternative) -> tuple[float, ...]:
    """Return whether an alternative fits in memory, and its time if it does, else its memory."""
    return alternative.order[:2]


def argument_classes(step: Step) -> list[list[int]]:
    """Return the open inputs in classes that change together, ordered by bytes, largest first.

    Two arguments are in one class if they have the same role and type, and paths that differ only in numbers. So the
    weights of all layers are one class, and their moments are another.
    """
    classes: dict[tuple[str, str, str], list[int]] = {}
    for index in step.open_inputs():
        key = step.roles[index], str(step.types[index]), _pattern(step.request.names[index])
        classes.setdefault(key, []).append(index)
    return sorted(classes.values(), key=lambda members: (-len(members) * step.types[members[0]].nbytes, members[0]))


def _pattern(name: str) -> str:
    """Return the name of an argument with `*` instead of numbers."""
    return re.sub(r"\d+", "*", name)

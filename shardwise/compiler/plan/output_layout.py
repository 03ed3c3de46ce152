"""The layout of an output, given the layout in which it is produced.

Pinned dims get the pinned axes, open dims also get the axes of the produced layout, and the output is partial only if
it is pinned so. Inside a program a dim may be sharded along a sub-axis, but an output may not, because users refer to
axes of their own mesh. The sub-axes of an output are replaced by the axis that contains them, on the open dim that it
divides and that is cheapest to reshard to, or on no dim.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from shardwise.compiler.candidates.candidate import REPLICATED, State
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.plan.cost import Costs, reshard_cost
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first, sub_axes_of


def output_layout(
    produced: Layout, type: ArrayType, pin: Pin | None, costs: Costs, user_meshes: Sequence[AbstractMesh]
) -> Layout:
    """Return the layout of an output.

    Args:
        produced: the layout in which it is produced.
        type: its type.
        pin: its pin, if it has one.
        costs: the cost model.
        user_meshes: the user's meshes. The layout must be expressible in the axes of one of them; empty if sub-axes are
            allowed.
    """
    layout = _unpinned_layout(produced, pin)
    if not user_meshes or coarsen_to_first(layout, user_meshes, costs.mesh) is not None:
        return layout
    open_dims = range(type.ndim) if pin is None else sorted(pin.open_dims)
    candidates = [
        other for mesh in user_meshes for other in _without_sub_axes(layout, type, open_dims, mesh, costs.mesh)
    ]
    return min(candidates, key=lambda candidate: _reshard_cost(layout, candidate, type, costs), default=layout)


def _unpinned_layout(produced: Layout, pin: Pin | None) -> Layout:
    """Return the pinned axes of closed dims, and the pinned and produced axes of open dims; partial only if pinned."""
    if pin is None:
        return Layout(produced.dims)
    pinned_axes = set(pin.layout.axes)
    return Layout(
        tuple(
            (*axes, *(axis for axis in produced.dims[dim] if axis not in pinned_axes)) if dim in pin.open_dims else axes
            for dim, axes in enumerate(pin.layout.dims)
        ),
        pin.layout.partial,
    )


def _without_sub_axes(
    layout: Layout, type: ArrayType, open_dims: Sequence[int], mesh: AbstractMesh, fine: AbstractMesh
) -> Iterator[Layout]:
    """Yield layouts in which every axis of `mesh` whose sub-axes are separated shards one open dim or none."""
    sub_axes = {axis: parts for axis, parts in sub_axes_of(mesh, fine).items() if parts}
    whole = [axis for axis, parts in sub_axes.items() if any(_contains(dim, parts) for dim in layout.dims)]
    split = [axis for axis, parts in sub_axes.items() if axis not in whole and set(parts) & set(layout.axes)]
    in_split = {part for axis in split for part in sub_axes[axis]}
    kept = [tuple(part for part in dim if part not in in_split) for dim in layout.dims]
    if any(kept[dim] != axes for dim, axes in enumerate(layout.dims) if dim not in open_dims):
        return  # a dim is pinned to axes of another mesh
    for targets in product([*open_dims, None], repeat=len(split)):
        dims = list(kept)
        for axis, dim in zip(split, targets, strict=True):
            if dim is not None:
                dims[dim] = (*dims[dim], *sub_axes[axis])
        changed = {dim for dim in targets if dim is not None}
        if not any(type.shape[dim] % fine.extent(dims[dim]) for dim in changed):
            yield Layout(tuple(dims), layout.partial)


def _contains(dim: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether the axes of a dim contain `parts` as a contiguous run."""
    return any(dim[start : start + len(parts)] == parts for start in range(len(dim)))


def _reshard_cost(before: Layout, after: Layout, type: ArrayType, costs: Costs) -> float:
    total = 0.0
    for axis in costs.mesh.axis_names:
        states: list[State] = [REPLICATED if dim is None else dim for dim in (before.dim_of(axis), after.dim_of(axis))]
        others = costs.mesh.extent([other for other in before.axes if other != axis])
        total += reshard_cost(states[0], states[1], type.nbytes / others, axis, False, costs, 1)
    return total

"""Resharding: the cheapest sequence of visible steps from one layout to another.

Steps: take one's own block (free), all-gather, all-to-all, permute, reduce-scatter, all-reduce, and the entry of a
whole value into a sum (free). Blocks are appended and removed at the minor end of a dim's axes, because there the
pieces are contiguous. The search is Dijkstra's over layouts; layouts are few, and results are remembered. On the way no
device holds more than at the start or at the end, unless it is little or there is no other way.

Axes that cut a dim into more pieces than those that take their place need part of themselves alone. P('a') becomes
P('b') on 4×2 in two steps, between which no layout of the mesh describes the pieces: first each device gets a piece of
what it is to hold, and then neighbours along a, two by two, gather the two that each half has.
"""

import heapq
import math
from collections.abc import Iterator
from itertools import count

from shardwise.caches import registered_cache
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    CoarseningPermute,
    Collective,
    LocalSlice,
    Permute,
    ReduceScatter,
    ToPartial,
)
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.hardware import CPU, Chip
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ShardingError

Step = tuple[Collective, Layout | None]  # an op, and the layout that it leaves, where the mesh has one for that
Move = tuple[tuple[Collective, ...], Layout]  # ops, all but the last of which keep a piece's size; and what they leave
FREE_STEP = 1.0  # a step that moves nothing still costs a little: fewer are better
LITTLE = 1 << 20  # bytes that a device may hold on the way, whatever it holds at the start and at the end


@registered_cache(maxsize=65536)
def reshard_steps(
    whole: ArrayType, mesh: AbstractMesh, before: Layout, after: Layout, chip: Chip = CPU
) -> tuple[tuple[Step, ...], float]:
    """The steps on such chips, and their cost; `whole` is the padded array."""
    bound = max(LITTLE, _held(whole, before, mesh), _held(whole, after, mesh))
    costs = Costs(chip, mesh)
    found = _cheapest(whole, costs, before, after, bound) or _cheapest(whole, costs, before, after, math.inf)
    if found is None:
        raise ShardingError(f"no way from {before} to {after} for {whole} on the mesh {mesh}")
    return found


def _held(whole: ArrayType, layout: Layout, mesh: AbstractMesh) -> int:
    """The bytes of one device's piece."""
    return whole.with_shape(layout.shard_shape(whole.shape, mesh)).nbytes


def _cheapest(
    whole: ArrayType, costs: Costs, before: Layout, after: Layout, bound: float
) -> tuple[tuple[Step, ...], float] | None:
    """The cheapest way on which no piece has more than `bound` bytes."""
    mesh = costs.mesh
    queue: list[tuple[float, int, Layout, tuple[Step, ...]]] = [(0.0, 0, before, ())]
    best = {before: 0.0}
    ticket = count(1)
    while queue:
        cost, _, layout, steps = heapq.heappop(queue)
        if layout == after:
            return steps, cost
        if cost > best[layout]:
            continue
        piece = whole.with_shape(layout.shard_shape(whole.shape, mesh))
        for ops, reached in _moves(layout, after, mesh):
            if any(size % mesh.extent(axes) for size, axes in zip(whole.shape, reached.dims, strict=True)):
                continue
            total = cost + sum([step_cost(op, piece, costs) for op in ops])
            if total < best.get(reached, math.inf) and _held(whole, reached, mesh) <= bound:
                best[reached] = total
                taken = (*((op, None) for op in ops[:-1]), (ops[-1], reached))
                heapq.heappush(queue, (total, next(ticket), reached, (*steps, *taken)))
    return None


def step_cost(op: Collective, piece: ArrayType, costs: Costs) -> float:
    """What one step costs that starts from such a piece."""
    sent = op.bytes_sent(piece, costs.mesh)
    if not sent:
        return FREE_STEP
    way = costs.link_cost(*collective_axes(op))
    return sent * way.byte + (way.reduction if isinstance(op, (AllReduce, ReduceScatter)) else way.collective)


def collective_axes(op: Collective) -> tuple[str, ...]:
    """The axes along which a collective's devices lie."""
    return tuple(getattr(op, "axes", ()) or op.after)  # type: ignore[attr-defined]


def _moves(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    used = set(layout.axes)
    for dim, axes in enumerate(after.dims):
        for run in _runs(axes, {axis for axis in axes if axis not in used}):
            yield (LocalSlice(dim, run, mesh.extent(run)),), _append(layout, dim, run)
    entering = tuple(axis for axis, reduction in after.partial if axis not in used and reduction is SUM)
    if entering:
        terms = tuple((axis, SUM) for axis in entering)
        yield (ToPartial(entering),), Layout(layout.dims, tuple(sorted((*layout.partial, *terms))))
    for dim, axes in enumerate(layout.dims):
        for start in range(len(axes)):
            kept, gone = axes[:start], axes[start:]
            pieces = mesh.extent(gone)
            yield (AllGather(dim, gone, pieces),), layout.with_dim(dim, kept)
            for target in range(len(layout.dims)):
                if target != dim and any(axis in after.dims[target] for axis in gone):
                    exchange = AllToAll(target, dim, gone, pieces)
                    yield (exchange,), _append(layout.with_dim(dim, kept), target, gone)
    yield from _reductions(layout, after, mesh)
    yield from _permutes(layout, after, mesh)
    yield from _replacements(layout, after, mesh)


def _runs(axes: tuple[str, ...], among: set[str]) -> Iterator[tuple[str, ...]]:
    """Every run of neighbours in `axes` that are all in `among`."""
    for start in range(len(axes)):
        for end in range(start + 1, len(axes) + 1):
            if among.issuperset(axes[start:end]):
                yield axes[start:end]


def _reductions(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    pending = [p for p in layout.partial if p not in after.partial]
    for reduction in dict.fromkeys(reduction for _, reduction in pending):
        together = tuple(axis for axis in mesh.axis_names if (axis, reduction) in pending)
        for axes in dict.fromkeys([together, *((axis,) for axis in together)]):
            yield (AllReduce(axes, reduction),), layout.without_partial(*axes)
        for dim, wanted in enumerate(after.dims):
            for run in _runs(wanted, set(together)):
                scatter = ReduceScatter(dim, run, mesh.extent(run), reduction)
                yield (scatter,), _append(layout.without_partial(*run), dim, run)


def _permutes(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Pieces change places so that a dim has the axes of `after` first, or all dims have exactly those."""
    goals = [after.dims]
    for dim, axes in enumerate(layout.dims):
        front = tuple(axis for axis in after.dims[dim] if axis in axes)
        goals.append(layout.with_dim(dim, (*front, *(axis for axis in axes if axis not in front))).dims)
    before = tuple(axis for axes in layout.dims for axis in axes)
    for dims in goals:
        moved = tuple(axis for axes in dims for axis in axes)
        if layout.partial and set(moved) != set(before):
            continue  # the terms of a sum must stay on the axis that counts them
        extents_agree = all(mesh.extent(a) == mesh.extent(b) for a, b in zip(layout.dims, dims, strict=True))
        if dims != layout.dims and extents_agree:
            yield (Permute(before, moved),), Layout(dims, layout.partial)


def _replacements(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Axes at the minor end of a dim give way to fewer devices along axes that are free: each device is handed one of
    the pieces that it is to hold, and gathers the others from its neighbours along the old axes."""
    for dim, (axes, wanted) in enumerate(zip(layout.dims, after.dims, strict=True)):
        same = next((n for n, pair in enumerate(zip(axes, wanted, strict=False)) if pair[0] != pair[1]), None)
        if same is None:
            continue
        old, new = axes[same:], wanted[same:]
        pieces, devices = mesh.extent(old), mesh.extent(new)
        parts = pieces // devices
        if set(new) & set(layout.axes) or parts * devices != pieces or 1 in (parts, devices):
            continue
        neighbours = tuple(tuple(range(first, first + parts)) for first in range(0, pieces, parts))
        ops = CoarseningPermute(old, new, parts), AllGather(dim, old, parts, neighbours)
        yield ops, layout.with_dim(dim, (*axes[:same], *new))


def _append(layout: Layout, dim: int, axes: tuple[str, ...]) -> Layout:
    return layout.with_dim(dim, (*layout.dims[dim], *axes))

"""Resharding: the cheapest sequence of steps from one layout to another.

The steps are local slices (free), all-gather, all-to-all, collective permute, reduce-scatter, all-reduce, and the
conversion of a replicated or sharded value to a partial sum (free). Axes are appended and removed at the minor end of a
dim, because only there the blocks of a shard are contiguous. Dijkstra's algorithm searches over layouts, which are few;
results are cached. No intermediate shard is larger than both the first and the last shard, unless it is small or there
is no other route.

If an axis is replaced by a smaller one, no layout of the mesh describes the intermediate shards. On a 4×2 mesh, P('a')
becomes P('b') in two steps: each device first receives one block of its new shard; then pairs of neighbors along 'a'
all-gather the two blocks of each half.
"""

import heapq
import math
from collections.abc import Iterator
from itertools import count
from operator import itemgetter

from shardwise.base.caches import registered_cache
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
    ShardToPartial,
    ToPartial,
)
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import sends_bytes
from shardwise.errors import ShardingError

Step = tuple[Collective, Layout | None]  # an op, and the layout after it; None if no layout of the mesh describes it
Move = tuple[tuple[Collective, ...], Layout]  # ops, of which only the last changes the shard size; the final layout
FREE_STEP = 1.0  # the cost of a step that sends nothing: a tie-break in favour of fewer steps
SMALL = 1 << 20  # the bytes up to which an intermediate shard is always allowed


@registered_cache(maxsize=65536)
def reshard_steps(
    array: ArrayType, mesh: AbstractMesh, before: Layout, after: Layout, chip: Chip = CPU
) -> tuple[tuple[Step, ...], float]:
    """Return the cheapest steps from one layout to another, and their cost.

    Args:
        array: the type of the global array, with padding.
        mesh: the mesh.
        before: the current layout of the array.
        after: the target layout.
        chip: the chip whose cost model is used.

    Raises:
        ShardingError: if no sequence of steps leads from one layout to the other.
    """
    limit = max(SMALL, _shard_bytes(array, before, mesh), _shard_bytes(array, after, mesh))
    costs = Costs(chip, mesh)
    route = _cheapest(array, costs, before, after, limit) or _cheapest(array, costs, before, after, math.inf)
    if route is None:
        raise ShardingError(f"cannot reshard {array} from {before} to {after} on the mesh {mesh}")
    return route


def _shard_bytes(array: ArrayType, layout: Layout, mesh: AbstractMesh) -> int:
    """Return the bytes of one device's shard."""
    return array.with_shape(layout.shard_shape(array.shape, mesh)).nbytes


def _cheapest(
    array: ArrayType, costs: Costs, before: Layout, after: Layout, limit: float
) -> tuple[tuple[Step, ...], float] | None:
    """Return the cheapest steps in which no shard has more than `limit` bytes, and their cost."""
    mesh = costs.mesh
    queue: list[tuple[float, int, Layout, tuple[Step, ...]]] = [(0.0, 0, before, ())]
    best = {before: 0.0}
    tie_breaker = count(1)  # layouts have no order, so heapq must not compare them
    while queue:
        cost, _, layout, steps = heapq.heappop(queue)
        if layout == after:
            return steps, cost
        if cost > best[layout]:
            continue
        shard = array.with_shape(layout.shard_shape(array.shape, mesh))
        for ops, reached in _moves(layout, after, mesh):
            if any(size % mesh.extent(axes) for size, axes in zip(array.shape, reached.dims, strict=True)):
                continue  # the array is padded already, so every layout of the route must divide its sizes
            total = cost + sum([step_cost(op, shard, costs) for op in ops])
            if total < best.get(reached, math.inf) and _shard_bytes(array, reached, mesh) <= limit:
                best[reached] = total
                new_steps = (*((op, None) for op in ops[:-1]), (ops[-1], reached))
                heapq.heappush(queue, (total, next(tie_breaker), reached, (*steps, *new_steps)))
    return None


def step_cost(op: Collective, shard: ArrayType, costs: Costs) -> float:
    """Return the cost of one step on a shard of this type."""
    traffic = op.traffic(shard, costs.mesh)
    if not sends_bytes(traffic):
        return FREE_STEP
    ring = costs.ring(*op.communicates_along)
    return costs.price(ring, traffic, reduces=op.reduces_across_devices)


def _moves(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Yield the moves from a layout that can be part of a route to `after`."""
    used = set(layout.axes)
    for dim, axes in enumerate(after.dims):
        for run in _runs(axes, {axis for axis in axes if axis not in used}):
            yield (LocalSlice(dim, run, mesh.extent(run)),), _append(layout, dim, run)
    for kind in (SUM, MAX):
        new_partial = tuple(axis for axis, reduction in after.partial if axis not in used and reduction is kind)
        if new_partial:
            terms = tuple((axis, kind) for axis in new_partial)
            partial = tuple(sorted((*layout.partial, *terms), key=itemgetter(0)))
            yield (ToPartial(new_partial, kind),), Layout(layout.dims, partial)
    sums = {axis for axis, reduction in after.partial if reduction is SUM}
    for dim, axes in enumerate(layout.dims):
        for start in range(len(axes)):
            kept, removed = axes[:start], axes[start:]
            shards = mesh.extent(removed)
            if sums.issuperset(removed):
                partial = tuple(sorted((*layout.partial, *((axis, SUM) for axis in removed)), key=itemgetter(0)))
                yield (ShardToPartial(dim, removed, shards),), Layout(layout.with_dim(dim, kept).dims, partial)
            yield (AllGather(dim, removed, shards),), layout.with_dim(dim, kept)
            for target in range(len(layout.dims)):
                if target != dim and any(axis in after.dims[target] for axis in removed):
                    exchange = AllToAll(target, dim, removed, shards)
                    yield (exchange,), _append(layout.with_dim(dim, kept), target, removed)
    yield from _reductions(layout, after, mesh)
    yield from _permutes(layout, after, mesh)
    yield from _replacements(layout, after, mesh)


def _runs(axes: tuple[str, ...], among: set[str]) -> Iterator[tuple[str, ...]]:
    """Yield every contiguous run of `axes` whose axes are all in `among`."""
    for start in range(len(axes)):
        for end in range(start + 1, len(axes) + 1):
            if among.issuperset(axes[start:end]):
                yield axes[start:end]


def _reductions(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Yield the all-reduces and reduce-scatters of the pending reductions."""
    pending = [p for p in layout.partial if p not in after.partial]
    for reduction in dict.fromkeys(reduction for _, reduction in pending):
        pending_axes = tuple(axis for axis in mesh.axis_names if (axis, reduction) in pending)
        for axes in dict.fromkeys([pending_axes, *((axis,) for axis in pending_axes)]):
            yield (AllReduce(axes, reduction),), layout.without_partial(*axes)
        for dim, needed in enumerate(after.dims):
            for run in _runs(needed, set(pending_axes)):
                scatter = ReduceScatter(dim, run, mesh.extent(run), reduction)
                yield (scatter,), _append(layout.without_partial(*run), dim, run)


def _permutes(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Yield permutes after which a dim begins with the axes of `after`, or all dims have exactly these axes."""
    goals = [after.dims]
    for dim, axes in enumerate(layout.dims):
        front = tuple(axis for axis in after.dims[dim] if axis in axes)
        goals.append(layout.with_dim(dim, (*front, *(axis for axis in axes if axis not in front))).dims)
    before = tuple(axis for axes in layout.dims for axis in axes)
    for dims in goals:
        moved = tuple(axis for axes in dims for axis in axes)
        if layout.partial and set(moved) != set(before):
            continue  # a permute must not move terms of a partial sum along their axis
        extents_agree = all(mesh.extent(a) == mesh.extent(b) for a, b in zip(layout.dims, dims, strict=True))
        if dims != layout.dims and extents_agree:
            yield (Permute(before, moved),), Layout(dims, layout.partial)


def _replacements(layout: Layout, after: Layout, mesh: AbstractMesh) -> Iterator[Move]:
    """Yield moves that replace axes at the minor end of a dim by unused axes of fewer devices.

    Each device receives one block of its new shard, and gathers the others from its neighbors along the old axes.
    """
    for dim, (axes, needed) in enumerate(zip(layout.dims, after.dims, strict=True)):
        common = next((n for n, pair in enumerate(zip(axes, needed, strict=False)) if pair[0] != pair[1]), None)
        if common is None:
            continue
        old, new = axes[common:], needed[common:]
        old_shards, new_shards = mesh.extent(old), mesh.extent(new)
        blocks = old_shards // new_shards
        if set(new) & set(layout.axes) or blocks * new_shards != old_shards or 1 in (blocks, new_shards):
            continue
        neighbors = tuple(tuple(range(first, first + blocks)) for first in range(0, old_shards, blocks))
        ops = CoarseningPermute(old, new, blocks), AllGather(dim, old, blocks, neighbors)
        yield ops, layout.with_dim(dim, (*axes[:common], *new))


def _append(layout: Layout, dim: int, axes: tuple[str, ...]) -> Layout:
    return layout.with_dim(dim, (*layout.dims[dim], *axes))

"""Resharding between all pairs of layouts: the steps are correct, and send no more than gathering everything."""

from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce, LocalSlice
from shardwise.compiler.partition.evaluate_shards import assemble_shards, split_into_shards
from shardwise.compiler.partition.local_program import Placement
from shardwise.compiler.partition.reshard import reshard_steps
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.hardware import CPU, chip
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh

FOUR_TWO = AbstractMesh((4, 2), ("a", "b"))
TWO_TWO_TWO = AbstractMesh((2, 2, 2), ("a", "b", "c"))


def layouts(mesh, ndim, partial):
    """Return every layout of `ndim` dims; with `partial`, also those with partial sums over some axes."""
    found = []
    places = [*range(ndim), "replicated", *([SUM] if partial else [])]
    for where in product(places, repeat=len(mesh.axis_names)):
        terms = tuple((axis, SUM) for axis, place in zip(mesh.axis_names, where, strict=True) if place is SUM)
        axes_of_dims = [
            tuple(a for a, place in zip(mesh.axis_names, where, strict=True) if place == d) for d in range(ndim)
        ]
        found += [Layout(dims, terms) for dims in product(*(permutations(axes) for axes in axes_of_dims))]
    return found


def shards_of(layout, array, mesh):
    """Return shards that assemble to `array` in `layout`. Partial sums are random and add up to it."""
    rng = np.random.default_rng(0)
    axes = tuple(axis for axis, _ in layout.partial)
    count = mesh.extent(axes)
    terms = [rng.integers(-9, 10, array.shape) for _ in range(count - 1)]
    terms = [*terms, array - sum(terms)]
    placement = Placement(ArrayType(array.shape, np.int32), Layout(layout.dims))
    shards = [split_into_shards(placement, term.astype(np.int32), mesh) for term in terms]
    return [shards[term][device] for device, term in enumerate(mesh.coordinates(axes))]


def check(before, after, mesh, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(np.int32)
    steps, _ = reshard_steps(ArrayType(shape, np.int32), mesh, before, after)
    shards = shards_of(before, array, mesh)
    for op, _ in steps:
        shards = op.exchange(mesh, shards)
    # Reduce the partial sums that remain.
    axes = tuple(axis for axis, _ in after.partial)
    if axes:
        shards = AllReduce(axes, SUM).exchange(mesh, shards)
    found = assemble_shards(Placement(ArrayType(shape, np.int32), Layout(after.dims)), shards, mesh)
    np.testing.assert_array_equal(found, array, err_msg=f"{before} → {after}: {[op for op, _ in steps]}")
    reached = [layout for _, layout in steps]
    assert (reached or [before])[-1] == after


def naive(array, mesh, before, after):
    """Return the steps that reduce, gather every dim, and then slice locally."""
    ops = []
    if before.partial:
        ops.append(AllReduce(tuple(axis for axis, _ in before.partial), SUM))
    ops += [AllGather(dim, axes, mesh.extent(axes)) for dim, axes in enumerate(before.dims) if axes]
    ops += [LocalSlice(dim, axes, mesh.extent(axes)) for dim, axes in enumerate(after.dims) if axes]
    return ops


def bytes_of(ops, shard, mesh):
    total = 0.0
    for op in ops:
        total += op.bytes_sent(shard, mesh)
        shard = op.out_type(shard)
    return total


def check_cost(before, after, mesh, shape):
    array = ArrayType(shape, np.float32)
    steps, _ = reshard_steps(array, mesh, before, after)
    shard = array.with_shape(before.shard_shape(shape, mesh))
    ours = bytes_of([op for op, _ in steps], shard, mesh)
    assert ours <= bytes_of(naive(array, mesh, before, after), shard, mesh), f"{before} → {after}"


def check_pairs(mesh, ndim, sample=None):
    pairs = list(product(layouts(mesh, ndim, partial=True), layouts(mesh, ndim, partial=False)))
    for before, after in Random(0).sample(pairs, sample or len(pairs)):
        check(before, after, mesh, (8, 16, 8)[:ndim])
        check_cost(before, after, mesh, (1024, 512, 256)[:ndim])


def test_every_pair_of_layouts_on_two_axes():
    check_pairs(FOUR_TWO, 3)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_pairs_of_layouts_on_three_axes(ndim):
    check_pairs(TWO_TWO_TWO, ndim, 200 if ndim == 1 else 1000)


@pytest.mark.slow
@pytest.mark.parametrize("ndim", [2, 3])
def test_every_pair_of_layouts_on_three_axes(ndim):
    check_pairs(TWO_TWO_TWO, ndim)


def test_replicated_values_and_partial_sums_become_sums_over_more_axes():
    for before in layouts(TWO_TWO_TWO, 2, partial=True):
        taken = {axis for axes in before.dims for axis in axes}
        more = tuple((axis, SUM) for axis in TWO_TWO_TWO.axis_names if axis not in taken)
        check(before, Layout(before.dims, more), TWO_TWO_TWO, (8, 8))


def test_sharded_values_become_partial_sums_without_communication():
    for before in layouts(TWO_TWO_TWO, 2, partial=True):
        after = Layout(((), ()), tuple((axis, SUM) for axis in TWO_TWO_TWO.axis_names))
        check(before, after, TWO_TWO_TWO, (8, 8))
        steps, _ = reshard_steps(ArrayType((8, 8), np.float32), TWO_TWO_TWO, before, after)
        assert not any(op.bytes_sent(ArrayType((8, 8), np.float32), TWO_TWO_TWO) for op, _ in steps)


def steps_of(mesh, before, after, partial=(), shape=(1024, 512)):
    steps, _ = reshard_steps(ArrayType(shape, np.float32), mesh, Layout(before, partial), Layout(after))
    return [str(op) for op, _ in steps if op.bytes_sent(ArrayType(shape, np.float32), mesh)], len(steps)


def sums(*axes):
    return tuple((axis, SUM) for axis in axes)


OPTIMA = {
    "gather the minor axis": (
        (FOUR_TWO, (("a", "b"), ()), (("a",), ())),
        ["all_gather[dim=0, axes=('b',), count=2]"],
    ),
    "gather both axes at once": (
        (FOUR_TWO, (("a", "b"), ()), ((), ())),
        ["all_gather[dim=0, axes=('a', 'b'), count=8]"],
    ),
    "move an axis to another dim": (
        (FOUR_TWO, (("a",), ()), ((), ("a",))),
        ["all_to_all[split=1, join=0, axes=('a',), count=4]"],
    ),
    "move two axes together": (
        (FOUR_TWO, (("a", "b"), ()), ((), ("a", "b"))),
        ["all_to_all[split=1, join=0, axes=('a', 'b'), count=8]"],
    ),
    "reorder the axes of a dim": (
        (FOUR_TWO, (("a", "b"), ()), (("b", "a"), ())),
        ["permute[before=('a', 'b'), after=('b', 'a')]"],
    ),
    "replace an axis by one of the same size": (
        (TWO_TWO_TWO, (("a",), ()), (("b",), ())),
        ["permute[before=('a',), after=('b',)]"],
    ),
    "swap the axes of two dims": (
        (TWO_TWO_TWO, (("a",), ("b",)), (("b",), ("a",))),
        ["permute[before=('a', 'b'), after=('b', 'a')]"],
    ),
    "scatter a sum": (
        (FOUR_TWO, ((), ()), (("a",), ()), sums("a")),
        ["reduce_scatter[dim=0, axes=('a',), count=4, reduction=sum]"],
    ),
    "scatter a sum over two axes at once": (
        (FOUR_TWO, ((), ()), (("b", "a"), ()), sums("a", "b")),
        ["reduce_scatter[dim=0, axes=('b', 'a'), count=8, reduction=sum]"],
    ),
    "reduce a sum over two axes at once": (
        (FOUR_TWO, ((), ()), ((), ()), sums("a", "b")),
        ["all_reduce[axes=('a', 'b'), reduction=sum]"],
    ),
    "slice a sum before reducing it": (
        (FOUR_TWO, ((), ()), (("b",), ()), sums("a")),
        ["all_reduce[axes=('a',), reduction=sum]"],
    ),
    "slice a replicated value for free": ((FOUR_TWO, ((), ()), (("b",), ("a",))), []),
}


@pytest.mark.parametrize("name", OPTIMA)
def test_known_optimal_steps(name):
    arguments, expected = OPTIMA[name]
    assert steps_of(*arguments)[0] == expected


def test_a_sum_is_sliced_before_it_is_reduced():
    steps, _ = reshard_steps(
        ArrayType((1024, 512), np.float32), FOUR_TWO, Layout(((), ()), sums("a")), Layout((("b",), ()))
    )
    assert [op.name for op, _ in steps] == ["local_slice", "all_reduce"]


def test_replacing_an_axis_by_a_permute_is_cheaper_than_gathering():
    # 'a' → 'b' on 4×2: one half of the new shard (1/4 of the array), then the other (1/4), and not all of it (3/4).
    steps, cost = reshard_steps(
        ArrayType((1024, 512), np.float32), FOUR_TWO, Layout((("a",), ())), Layout((("b",), ()))
    )
    assert [op.name for op, _ in steps] == ["coarsening_permute", "all_gather"]
    latency = Costs(CPU, FOUR_TWO).ring("a").latency
    assert cost == pytest.approx(1024 * 512 * 4 * (1 / 4 + 1 / 4) + 2 * latency, rel=1e-5)


@pytest.mark.parametrize("sizes", [(6, 3), (6, 2), (8, 2), (12, 4), (4, 2, 3)], ids=str)
def test_axes_are_replaced_by_axes_of_fewer_devices(sizes):
    mesh = AbstractMesh(sizes, ("a", "b", "c")[: len(sizes)])
    for before, after in [((("a",), ()), (("b",), ())), (((), ("a",)), ((), ("b",)))]:
        check(Layout(before), Layout(after), mesh, (48, 48))
        check_cost(Layout(before), Layout(after), mesh, (480, 480))
        assert [op for op in steps_of(mesh, before, after, shape=(480, 480))[0] if op.startswith("coarsening_permute")]
    if "c" in mesh.axis_names:
        check(Layout((("c", "a"), ())), Layout((("c", "b"), ())), mesh, (48, 48))
        check(Layout((("a", "c"), ())), Layout((("b",), ())), mesh, (48, 48))


def test_the_axis_with_slow_links_is_gathered_first():
    # Over the nodes first, 1/32 of the array from each of the 3 others; then 1/8 each within the node.
    mesh = AbstractMesh((4, 8), ("node", "gpu"))
    array = ArrayType((4096, 4096), np.float32)
    sharded, gathered = Layout((("node",), ("gpu",))), Layout(((), ()))
    steps, _ = reshard_steps(array, mesh, sharded, gathered, chip("h100"))
    assert [op.axes for op, _ in steps] == [("node",), ("gpu",)]
    other = AbstractMesh((8, 4), ("gpu", "node"))  # the last axis is within a node: here that is `node`
    steps, _ = reshard_steps(array, other, sharded, gathered, chip("h100"))
    assert [op.axes for op, _ in steps] == [("gpu",), ("node",)]


def test_equal_layouts_need_no_step():
    layout = Layout((("a",), ("b",)))
    assert reshard_steps(ArrayType((8, 8), np.float32), FOUR_TWO, layout, layout) == ((), 0.0)


@pytest.mark.parametrize("mesh", [FOUR_TWO, TWO_TWO_TWO], ids=["4x2", "2x2x2"])
def test_no_intermediate_shard_is_larger_than_the_first_and_last(mesh):
    """Every pair of layouts of a large array, with partial sums too."""
    array = ArrayType((4096, 4096), np.float32)
    found = layouts(mesh, 2, partial=mesh is FOUR_TWO)

    def held(layout):
        return array.with_shape(layout.shard_shape(array.shape, mesh)).nbytes

    for before, after in product(found, [layout for layout in found if not layout.partial]):
        steps, _ = reshard_steps(array, mesh, before, after)
        most = max([held(layout) for _, layout in steps if layout], default=0)
        assert most <= max(held(before), held(after)), f"{before} → {after}: {[str(op) for op, _ in steps]}"

"""The objective of the planner: reshards cost what the report and `simulate` predict for their collectives."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.candidates.candidate import PARTIAL_SUM, REPLICATED
from shardwise.compiler.control.region_boundary import Stack
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce, AllToAll, LocalSlice, ReduceScatter
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.plan.cost import COMBINED_REDUCTIONS, FORBIDDEN, TO_PARTIAL, Costs, compute_cost, reshard_cost
from shardwise.compiler.plan.hardware import CPU, built_in_chips, chip
from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("a", "b"))
COSTS = Costs(CPU, MESH)
LATENCY = COSTS.ring("a").latency
UNSHARDED = ArrayType((64, 32), np.float32)
ROWS = UNSHARDED.with_shape((16, 32))

MOVES = {
    "gather": (0, REPLICATED, AllGather(0, ("a",), 4), ROWS),
    "exchange": (0, 1, AllToAll(1, 0, ("a",), 4), ROWS),
    "reduce": (PARTIAL_SUM, REPLICATED, AllReduce(("a",), SUM), UNSHARDED),
    "scatter": (PARTIAL_SUM, 0, ReduceScatter(0, ("a",), 4, SUM), UNSHARDED),
}


def cost(before, after, as_partial=False, costs=COSTS, times=1, axis="a"):
    return reshard_cost(before, after, UNSHARDED.nbytes, axis, as_partial, costs, times)


@pytest.mark.parametrize("name", MOVES)
def test_a_reshard_costs_the_bytes_of_its_collective_and_one_latency(name):
    before, after, op, shard = MOVES[name]
    sent = op.traffic(shard, MESH)[0].bytes_sent
    share = COMBINED_REDUCTIONS if isinstance(op, (AllReduce, ReduceScatter)) else 1
    assert cost(before, after) == sent + LATENCY / share
    assert cost(before, after, times=3) == 3 * (sent + LATENCY)  # in a loop, reductions are not combined


CHIPS = {name: chip(name) for name in built_in_chips()}
MESHES = [AbstractMesh(sizes, ("a", "b")) for sizes in ((8, 1), (4, 8), (3, 5), (64, 8))]


@pytest.mark.table(default=6)
@pytest.mark.parametrize("size", [8, 1 << 14, 1 << 20])
@pytest.mark.parametrize("name", MOVES)
def test_planner_report_and_simulate_agree(name, size):
    """The planner's price of a reshard, with all hops, is the time that the report and the timeline predict for it.

    They are reached through the public functions, for every chip and for meshes within a node and across nodes.
    """
    for this, mesh, axis in product(CHIPS.values(), MESHES, ("a", "b")):
        count = mesh.shape[axis]
        if count == 1:
            continue
        shape = (count * 4, count * max(1, size // 64))
        before, after = {
            "gather": (P(axis), P()),
            "exchange": (P(axis), P(None, axis)),
            "reduce": (P(None, None, axis), P()),
            "scatter": (P(None, None, axis), P(axis)),
        }[name]
        reduces = len(before) == 3
        x = sw.ShapeDtypeStruct((*shape, count) if reduces else shape, np.float32, sharding=NamedSharding(mesh, before))
        function = sw.jit(lambda x: x.sum(2) if x.ndim == 3 else x, out_shardings=NamedSharding(mesh, after))
        run = sw.simulate(function, hardware=replace(this, overlaps=False))(x)
        (row,) = run.plan.collectives
        (step,) = [step for step in run.plan.timeline.steps if step.sent]
        costs = Costs(this, mesh, exposes_hops=True)
        states = (PARTIAL_SUM if reduces else 0, {P(): REPLICATED, P(axis): 0, P(None, axis): 1}[after])
        planned = reshard_cost(*states, float(np.prod(shape)) * 4, axis, False, costs, 1) / this.sending_rate
        assert row.seconds == step.seconds == pytest.approx(planned, rel=1e-9), (this.name, mesh, axis)


def test_slicing_a_replicated_value_is_free():
    assert cost(REPLICATED, 0) == 0
    assert LocalSlice(0, ("a",), 4).traffic(UNSHARDED, MESH) == ()


def test_keeping_a_state_is_free():
    for state in (REPLICATED, 0, PARTIAL_SUM):
        assert cost(state, state) == 0


def test_only_replicated_as_partial_candidates_accept_other_values_as_terms():
    for state in (REPLICATED, 0):
        assert cost(state, PARTIAL_SUM, as_partial=True) == TO_PARTIAL < LATENCY / COMBINED_REDUCTIONS
        assert cost(state, PARTIAL_SUM) == FORBIDDEN
    assert cost(MAX, PARTIAL_SUM, as_partial=True) == FORBIDDEN


def test_communication_along_an_axis_of_size_one_is_free():
    alone = Costs(CPU, AbstractMesh((1, 8), ("a", "b")))
    for before in (REPLICATED, 0, PARTIAL_SUM):
        for after in (REPLICATED, 1):
            assert cost(before, after, costs=alone) == 0
    assert cost(0, PARTIAL_SUM, costs=alone) == FORBIDDEN


def test_sharded_work_costs_its_share():
    x, y, out = (Value(ArrayType(shape, np.float32)) for shape in ((8, 16), (16, 4), (8, 4)))
    product = Equation(Dot(((1,), (0,))), [x, y], [out])
    work = COSTS.flop(x.type.dtype) * 2 * 8 * 16 * 4
    touched = COSTS.memory_byte * sum(value.type.nbytes for value in (x, y, out))
    assert compute_cost(product, 1, COSTS) == pytest.approx(work + touched)
    assert compute_cost(product, 8, COSTS) == pytest.approx((work + touched) / 8)
    assert compute_cost(Equation(Exp(), [x], [Value(x.type)]), 4, COSTS) == COSTS.memory_byte * x.type.nbytes / 4


def test_attention_costs_all_its_products():
    x = Value(ArrayType((2, 64, 4, 16), np.float32))
    attention = Equation(FusedAttention(1.0), [x, x, x], [x])
    work = COSTS.flop(x.type.dtype) * 2 * (2 * 2 * 4 * 64 * 64 * 16)
    assert compute_cost(attention, 1, COSTS) == pytest.approx(work + COSTS.memory_byte * 4 * x.type.nbytes)


def test_a_loop_writes_one_slice_of_a_stack_per_iteration():
    x = Value(UNSHARDED)
    stack = Equation(Stack(5), [x], [Value(UNSHARDED.with_shape((5, *UNSHARDED.shape)))])
    assert compute_cost(stack, 1, COSTS) == COSTS.memory_byte * UNSHARDED.nbytes


@pytest.mark.parametrize("name", built_in_chips())
def test_costs_are_seconds_times_the_bandwidth_of_fast_links(name):
    """All costs are the seconds of the chip's figures times the rate at which it sends."""
    this, mesh = chip(name), AbstractMesh((4, 1 << 16, 2), ("far", "middle", "near"))
    costs = Costs(this, mesh)
    second = this.fast_link.bandwidth * this.link_fraction
    assert costs.flop(np.dtype(np.float32)) == pytest.approx(second / (this.f32_flops * this.product_fraction))
    assert costs.memory_byte == pytest.approx((this.memory_time(1) - this.kernel_gap) * second)
    for axis, link in (("near", this.fast_link), ("far", this.slow_link)):
        ring = costs.ring(axis)
        assert 1 / ring.bandwidth == pytest.approx(second / (link.bandwidth * this.link_fraction))
        assert ring.latency == pytest.approx(link.latency * second)
    assert costs.ring("near").bandwidth == 1
    assert costs.ring("near", "far").bandwidth == pytest.approx(2 * costs.ring("far").bandwidth)  # two links per node
    latencies = [costs.ring(axis).latency for axis in ("near", "far")]
    assert costs.ring("near", "far").latency == pytest.approx((4 * latencies[0] + 3 * latencies[1]) / 7)  # of 7 hops

"""The cost model: reshard costs equal the bytes that the collectives send."""

import numpy as np
import pytest

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce, AllToAll, LocalSlice, ReduceScatter
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention
from shardwise.compiler.ops.control.region_boundary import Stack
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.plan.cost import COMBINED_REDUCTIONS, FORBIDDEN, TO_PARTIAL, Costs, compute_cost, reshard_cost
from shardwise.compiler.plan.hardware import CPU, built_in_chips, chip
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED
from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh

MESH = AbstractMesh((4, 2), ("a", "b"))
COSTS = Costs(CPU, MESH)
LINK = COSTS.link_cost("a")
UNSHARDED = ArrayType((64, 32), np.float32)
ROWS, COLUMNS = UNSHARDED.with_shape((16, 32)), UNSHARDED.with_shape((64, 8))

MOVES = {
    "gather": (0, REPLICATED, AllGather(0, ("a",), 4), ROWS),
    "exchange": (0, 1, AllToAll(1, 0, ("a",), 4), ROWS),
    "reduce": (PARTIAL_SUM, REPLICATED, AllReduce(("a",), SUM), UNSHARDED),
    "scatter": (PARTIAL_SUM, 0, ReduceScatter(0, ("a",), 4, SUM), UNSHARDED),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_reshard_costs_the_bytes_of_its_collective(name):
    before, after, op, piece = MOVES[name]
    counted = reshard_cost(before, after, UNSHARDED.nbytes, 4, False, LINK)
    latency = LINK.reduction if isinstance(op, (AllReduce, ReduceScatter)) else LINK.collective
    assert counted == op.bytes_sent(piece, MESH) + latency


def test_slicing_a_replicated_value_is_free():
    assert reshard_cost(REPLICATED, 0, UNSHARDED.nbytes, 4, False, LINK) == 0
    assert LocalSlice(0, ("a",), 4).bytes_sent(UNSHARDED, MESH) == 0


def test_keeping_a_state_is_free():
    for state in (REPLICATED, 0, PARTIAL_SUM):
        assert reshard_cost(state, state, UNSHARDED.nbytes, 4, False, LINK) == 0


def test_only_replicated_as_partial_candidates_accept_other_values_as_terms():
    for state in (REPLICATED, 0):
        assert reshard_cost(state, PARTIAL_SUM, UNSHARDED.nbytes, 4, True, LINK) == TO_PARTIAL < LINK.reduction
        assert reshard_cost(state, PARTIAL_SUM, UNSHARDED.nbytes, 4, False, LINK) == FORBIDDEN
    assert reshard_cost(MAX, PARTIAL_SUM, UNSHARDED.nbytes, 4, True, LINK) == FORBIDDEN


def test_communication_along_an_axis_of_size_one_is_free():
    alone = Costs(CPU, AbstractMesh((1, 8), ("a", "b"))).link_cost("a")
    for before in (REPLICATED, 0, PARTIAL_SUM):
        for after in (REPLICATED, 1):
            assert reshard_cost(before, after, UNSHARDED.nbytes, 1, False, alone) == 0
    assert reshard_cost(0, PARTIAL_SUM, UNSHARDED.nbytes, 1, False, alone) == FORBIDDEN


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


def test_hops_of_a_collective_count_if_asked_for():
    exact = Costs(CPU, MESH, counts_hops=True).link_cost("a")
    assert (exact.byte, exact.collective, exact.reduction) == (LINK.byte, 3 * LINK.collective, 3 * LINK.collective)


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
        cost = costs.link_cost(axis)
        assert cost.byte == pytest.approx(second / (link.bandwidth * this.link_fraction))
        assert cost.collective == pytest.approx(link.latency * second)
        assert cost.reduction == pytest.approx(cost.collective / COMBINED_REDUCTIONS)
    assert costs.link_cost("near").byte == 1
    assert costs.link_cost("near", "far").byte == pytest.approx(costs.link_cost("far").byte / 2)  # two links per node
    assert costs.link_cost("near", "far").collective == costs.link_cost("far").collective

"""The cost model: what the planner counts is what the collectives send."""

import numpy as np
import pytest

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective import AllGather, AllReduce, AllToAll, OwnBlock, ReduceScatter
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.transcendental import Exp
from shardwise.compiler.plan.cost import CPU, FORBIDDEN, Hardware, compute_cost, reshard_cost
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED
from shardwise.compiler.shardings.mesh import AbstractMesh

MESH = AbstractMesh((4, 2), ("a", "b"))
WHOLE = ArrayType((64, 32), np.float32)
ROWS, COLUMNS = WHOLE.with_shape((16, 32)), WHOLE.with_shape((64, 8))

MOVES = {
    "gather": (0, REPLICATED, AllGather(0, ("a",), 4), ROWS),
    "exchange": (0, 1, AllToAll(1, 0, ("a",), 4), ROWS),
    "reduce": (PARTIAL_SUM, REPLICATED, AllReduce(("a",), "sum"), WHOLE),
    "scatter": (PARTIAL_SUM, 0, ReduceScatter(0, ("a",), 4, "sum"), WHOLE),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_costs_what_its_collective_sends(name):
    before, after, op, piece = MOVES[name]
    counted = reshard_cost(before, after, WHOLE.nbytes, 4, False, CPU)
    latency = CPU.reduction if isinstance(op, (AllReduce, ReduceScatter)) else CPU.collective
    assert counted == op.wire(piece, MESH) + latency


def test_taking_a_block_is_free():
    assert reshard_cost(REPLICATED, 0, WHOLE.nbytes, 4, False, CPU) == 0
    assert OwnBlock(0, ("a",), 4).wire(WHOLE, MESH) == 0


def test_staying_is_free():
    for state in (REPLICATED, 0, PARTIAL_SUM):
        assert reshard_cost(state, state, WHOLE.nbytes, 4, False, CPU) == 0


def test_only_a_whole_value_becomes_a_term_of_a_sum_and_only_where_it_is_adopted():
    assert reshard_cost(REPLICATED, PARTIAL_SUM, WHOLE.nbytes, 4, True, CPU) == 0
    assert reshard_cost(REPLICATED, PARTIAL_SUM, WHOLE.nbytes, 4, False, CPU) == FORBIDDEN
    gathered = reshard_cost(0, REPLICATED, WHOLE.nbytes, 4, False, CPU)
    assert reshard_cost(0, PARTIAL_SUM, WHOLE.nbytes, 4, True, CPU) == gathered
    assert reshard_cost(0, PARTIAL_SUM, WHOLE.nbytes, 4, False, CPU) == FORBIDDEN
    assert reshard_cost("max", PARTIAL_SUM, WHOLE.nbytes, 4, True, CPU) == FORBIDDEN


def test_along_an_axis_of_one_device_nothing_costs():
    for before in (REPLICATED, 0, PARTIAL_SUM):
        for after in (REPLICATED, 1):
            assert reshard_cost(before, after, WHOLE.nbytes, 1, False, CPU) == 0
    assert reshard_cost(0, PARTIAL_SUM, WHOLE.nbytes, 1, False, CPU) == FORBIDDEN


def test_work_that_is_cut_costs_its_share():
    hardware = Hardware(flop=1.0, memory_byte=0.0, collective=0.0, reduction=0.0)
    x, y, out = (Value(ArrayType(shape, np.float32)) for shape in ((8, 16), (16, 4), (8, 4)))
    product = Equation(Dot(((1,), (0,))), [x, y], [out])
    assert compute_cost(product, 1, hardware) == 2 * 8 * 16 * 4
    assert compute_cost(product, 8, hardware) == 2 * 16 * 4
    memory = Hardware(flop=0.0, memory_byte=1.0, collective=0.0, reduction=0.0)
    assert compute_cost(Equation(Exp(), [x], [Value(x.type)]), 4, memory) == x.type.nbytes / 4

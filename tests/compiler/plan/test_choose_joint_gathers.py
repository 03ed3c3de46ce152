"""A value that is gathered along several axes costs one gather of the entire value, and not one of a shard per axis."""

import numpy as np
import pytest

from shardwise import numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.plan.choose import _Planner
from shardwise.compiler.plan.cost import Costs, joint_gather
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.plan.hardware import CPU, chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.traffic import all_gather
from tests.compiler.plan.test_choose import planned

MESH = AbstractMesh((4, 2), ("data", "expert"))
ROWS = P(("data", "expert"))


def f32(*shape):
    return ArrayType(shape, np.float32)


def gathered_axes(stages):
    rows = [equation for equation in stages.local.collectives() if equation.op.name == "all_gather"]
    return [set(equation.op.communicates_along) for equation in rows]


def test_tokens_are_sent_to_experts_that_are_sharded_along_two_axes():
    """The tokens of a device are twice as large as the shard of the experts along `data`, and half of all experts."""

    def experts(tokens, weights):
        return jnp.einsum("recd,edh->rech", tokens, weights)

    types = [f32(16, 8, 8, 64), f32(8, 64, 64)]
    stages = planned(experts, types, [ROWS, P("expert", "data")], MESH, [None])
    assert gathered_axes(stages) == [{"data"}]
    assert any(equation.op.name == "all_to_all" for equation in stages.local.collectives())


def test_weights_of_fully_sharded_layers_are_gathered_at_once():
    def layer(x, weights):
        return x @ weights

    stages = planned(layer, [f32(256, 16), f32(16, 16)], [ROWS, ROWS], MESH, [None])
    assert gathered_axes(stages) == [{"data", "expert"}]


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
def test_the_costs_of_all_axes_add_up_to_the_gather(hardware):
    mesh = AbstractMesh((16, 8), ("data", "expert"))
    costs = Costs(CPU if hardware == "cpu" else chip(hardware), mesh)
    nbytes, axes = 1e9, ("data", "expert")
    joint = costs.price(costs.ring(*axes), all_gather(nbytes / 128, 128))
    first = joint_gather(nbytes / 16, "expert", ("data",), costs, 1)  # `data` gathers the shards along `expert`
    assert first.joint == pytest.approx(joint)
    alone = costs.price(costs.ring("data"), all_gather(nbytes / 128, 16))
    assert first.sharded == pytest.approx(alone)
    assert first.whole == pytest.approx(costs.price(costs.ring("data"), all_gather(nbytes / 16, 16)))


def test_the_cost_of_a_plan_has_the_gather_once():
    stages = planned(lambda x: x * 1.0, [f32(64, 64)], [ROWS], MESH, [P()])
    problem = stages.problem
    planner = _Planner(problem, Costs(CPU, MESH), IdentityCache())

    def picks(replicated):
        return {
            axis: {e: next(c for c in rows[e] if (c.factor is None) == replicated) for e in rows}
            for axis, rows in problem.candidates.items()
        }

    # Work is the same; the gather before the op and the gather of its result send the same bytes.
    before, after = planner.cost(picks(True)), planner.cost(picks(False))
    work = sum(planner.work.values())
    assert before - work == pytest.approx(after - work / 8, rel=1e-3)

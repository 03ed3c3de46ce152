"""constrain: the result has the pinned layout and the value of the operand."""

import itertools

import numpy as np
import pytest

from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.execute.load import load
from shardwise.runtime.array import place
from shardwise.runtime.client import devices
from tests.compiler.ops.cases import Case, constrain_cases, one_op

MESH = AbstractMesh((2, 3), ("a", "b"))


def all_layouts(ndim: int) -> list[Layout]:
    """Return every layout of `ndim` dims over no, one or both axes of the mesh."""
    layouts = [Layout.replicated(ndim)]
    for dim, other in itertools.product(range(ndim), range(ndim)):
        layouts += [Layout.replicated(ndim).with_dim(dim, axes) for axes in (("a",), ("b",), ("a", "b"), ("b", "a"))]
        if dim != other:
            layouts.append(Layout.replicated(ndim).with_dim(dim, ("a",)).with_dim(other, ("b",)))
    return list(dict.fromkeys(layouts))


@pytest.mark.parametrize("case", constrain_cases(), ids=str)
def test_the_result_has_the_pinned_layout_whatever_the_operand_has(case: Case):
    (arg,) = case.args
    pin = case.op.constraint
    for before in all_layouts(arg.ndim):
        stages = run_stages(case.program, MESH, [Pin(before)], [None])
        (after,) = stages.plan.outputs
        for dim, axes in enumerate(pin.layout.dims):
            if dim in pin.open_dims:
                assert after.dims[dim][: len(axes)] == axes
            else:
                assert after.dims[dim] == axes
        (result,) = evaluate_shards(stages.local, [arg])
        assert result.tobytes() == arg.tobytes()


@pytest.mark.parametrize("case", constrain_cases(), ids=str)
def test_devices_hold_the_shards_of_the_layout(case: Case):
    (arg,) = case.args
    mesh = Mesh(np.array(devices()[:6]).reshape(2, 3), ("a", "b"))
    replicated = NamedSharding(mesh, PartitionSpec())
    stages = run_stages(case.program, MESH, [replicated.pin(arg.shape)], [None])
    (after,) = stages.plan.outputs
    executable = load(stages, mesh.flat_devices, [NamedSharding(mesh, spec_of(after))], True)
    (result,) = executable.run([place(arg, case.types[0], replicated, True).buffers])
    assert result.numpy().tobytes() == arg.tobytes()
    for shard in result.addressable_shards:
        assert shard.data.tobytes() == arg[shard.index].tobytes()


def test_vmap_leaves_the_batch_dim_open():
    op = Constrain((("a",), ()), MESH, (1,))
    batched, dims = vmap_program(one_op(op, [parse_type("f32[4,5]")]), BatchAxis(3), (1,))
    assert dims == (1,)
    (equation,) = batched.equations
    assert equation.op == Constrain((("a",), (), ()), MESH, (1, 2))

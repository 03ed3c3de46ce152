"""constrain: the layout that it pins is the layout that the value has, and the value stays what it was."""

import itertools

import numpy as np
import pytest

from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.partition.simulate import simulate
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.execute.load import load
from shardwise.runtime.array import place
from shardwise.runtime.client import devices
from shardwise.runtime.sharding import NamedSharding
from tests.compiler.ops.cases import Case, constrain_cases, one_op

MESH = AbstractMesh((2, 3), ("a", "b"))


def layouts(ndim: int) -> list[Layout]:
    """Every way to cut `ndim` dims along none, one or both axes of the mesh."""
    found = [Layout.replicated(ndim)]
    for dim, other in itertools.product(range(ndim), range(ndim)):
        found += [Layout.replicated(ndim).with_dim(dim, axes) for axes in (("a",), ("b",), ("a", "b"), ("b", "a"))]
        if dim != other:
            found.append(Layout.replicated(ndim).with_dim(dim, ("a",)).with_dim(other, ("b",)))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("case", constrain_cases(), ids=str)
def test_the_layout_is_the_one_pinned_wherever_the_value_comes_from(case: Case):
    (arg,) = case.args
    pin = case.op.pin
    for before in layouts(arg.ndim):
        stages = run_stages(case.program, MESH, [Pin(before)], [None])
        (after,) = stages.plan.outputs
        for dim, axes in enumerate(pin.layout.dims):
            if dim in pin.open_dims:
                assert after.dims[dim][: len(axes)] == axes
            else:
                assert after.dims[dim] == axes
        (found,) = simulate(stages.local, [arg])
        assert found.tobytes() == arg.tobytes()


@pytest.mark.parametrize("case", constrain_cases(), ids=str)
def test_devices_hold_the_parts_that_the_layout_gives_them(case: Case):
    (arg,) = case.args
    mesh = Mesh(np.array(devices()[:6]).reshape(2, 3), ("a", "b"))
    given = NamedSharding(mesh, PartitionSpec())
    stages = run_stages(case.program, MESH, [given.pin(arg.shape)], [None])
    (after,) = stages.plan.outputs
    executable = load(stages, mesh.flat_devices, [NamedSharding(mesh, spec_of(after))], True)
    (found,) = executable.run([place(arg, case.types[0], given, True).buffers])
    assert found.numpy().tobytes() == arg.tobytes()
    for shard in found.addressable_shards:
        assert shard.data.tobytes() == arg[shard.index].tobytes()


def test_a_batch_dim_is_left_open():
    op = Constrain((("a",), ()), MESH, (1,))
    batched, dims = vmap_program(one_op(op, [parse_type("f32[4,5]")]), BatchAxis(3), (1,))
    assert dims == (1,)
    (equation,) = batched.equations
    assert equation.op == Constrain((("a",), (), ()), MESH, (1, 2))

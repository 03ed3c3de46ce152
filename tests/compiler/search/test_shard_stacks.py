"""The stack of activations that a scan saves is sharded over a tensor-parallel axis, within a memory limit."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.search.fit_memory import fit_memory
from shardwise.compiler.search.shard_stacks import shard_stacks
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

LAYERS, ROWS, LENGTH, WIDTH = 6, 8, 32, 16
MESH = (2, 4)


@sw.jit
def gradients(layers, x):
    """Return the gradients of a scan over tensor-parallel layers, which saves its carry of each layer."""

    @sw.checkpoint
    def layer(x, w):
        x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    return sw.grad(lambda layers: jnp.mean(lax.scan(layer, x, layers)[0] ** 2))(layers)


def arguments(mesh, length=LENGTH, width=WIDTH):
    rng = np.random.default_rng(0)
    shapes = {"up": (LAYERS, width, 2 * WIDTH), "down": (LAYERS, 2 * WIDTH, width)}
    specs = {"up": P(None, None, "model"), "down": P(None, "model")}
    layers = {name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    x = rng.normal(size=(ROWS, length, width)).astype(np.float32)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    return (layers, x), (shardings, NamedSharding(mesh, P("data")))


def planned(length=LENGTH, width=WIDTH):
    """Return the planned program, its arguments, and the results of the program on one device."""
    arrays, shardings = arguments(AbstractMesh(MESH, ("data", "model")), length, width)
    structs = sw.tree.map(lambda x, s: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arrays, shardings)
    stages = gradients.lower(*structs)._prepared.stages
    leaves = sw.tree.leaves(arrays)
    expected = evaluate(inline(gradients.trace(*structs).program), leaves)
    return PartitionedProgram(stages.problem, stages.plan, stages.local), leaves, expected


def saved_layouts(program):
    """Return the layouts of the stacks of activations."""
    return [
        program.plan.choices[equation].results[0].dims
        for equation in program.problem.planned
        if equation.op.writes_slices and equation.outputs[0].type.ndim == 4
    ]


def replanned(program, problem):
    plan = choose(problem, program.plan.chip)
    return PartitionedProgram(problem, plan, partition(problem, plan))


def check_values(program, leaves, expected):
    for actual, reference in zip(evaluate_shards(program.local, leaves), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)


def test_a_limit_shards_the_stack():
    program, leaves, expected = planned()
    assert saved_layouts(program) == [((), ("data",), (), ())]
    held = peak(program.local)[0]
    stack_bytes = LAYERS * ROWS * LENGTH * WIDTH * 4 // MESH[0]
    tight = fit_memory(program, held - stack_bytes // 2)
    assert peak(tight.local)[0] <= held - stack_bytes // 2
    assert saved_layouts(tight) == [((), ("data",), ("model",), ())]
    check_values(tight, leaves, expected)


def test_the_backward_pass_gathers_one_slice_at_a_time():
    program, leaves, expected = planned()
    problem = shard_stacks(program, 1)
    assert problem is not None and not problem.moves
    sharded = replanned(program, problem)
    gathered = [e for e in sharded.local.collectives() if e.op.name == "all_gather" and e.outputs[0].type.ndim > 2]
    assert [(sharded.local.times[e], e.outputs[0].type.shape) for e in gathered] == [(LAYERS, (4, LENGTH, WIDTH))]
    slice_bytes = 4 * LENGTH * WIDTH * 4
    assert sharded.local.sent - program.local.sent == LAYERS * slice_bytes * 3 / 4
    check_values(sharded, leaves, expected)


def test_ops_between_the_layers_may_be_sharded_too():
    program, leaves, expected = planned()
    problem = shard_stacks(program, 1, opens_dims=True)
    assert problem is not None and problem.moves
    sharded = replanned(program, problem)
    assert sharded.local.sent <= program.local.sent
    assert saved_layouts(sharded) == [((), ("data",), ("model",), ())]
    check_values(sharded, leaves, expected)


def test_another_dim_is_sharded_if_the_axis_does_not_divide_the_first():
    program, leaves, expected = planned(length=31)
    problem = shard_stacks(program, 1)
    assert problem is not None
    sharded = replanned(program, problem)
    assert saved_layouts(sharded) == [((), ("data",), (), ("model",))]
    check_values(sharded, leaves, expected)


def test_a_dim_is_shared_by_axes_if_no_other_is_divisible():
    program, leaves, expected = planned(length=31, width=15)
    problem = shard_stacks(program, 1)
    assert problem is not None
    sharded = replanned(program, problem)
    assert saved_layouts(sharded) == [((), ("data", "model"), (), ())]
    check_values(sharded, leaves, expected)


def test_sharded_stacks_are_not_changed_again():
    program, _, _ = planned()
    problem = shard_stacks(program, 1e6)
    assert problem is not None
    assert shard_stacks(replanned(program, problem), 1e6) is None


@pytest.mark.parametrize("length", [LENGTH, pytest.param(31, marks=pytest.mark.slow)])
def test_devices_agree_with_one_device(length):
    arrays, shardings = arguments(sw.make_mesh(MESH, ("data", "model")), length)
    expected = gradients(*arrays)
    sharded = sw.tree.map(sw.device_put, arrays, shardings)
    with sw.config.override("memory_limit", 1):
        compiled = gradients.lower(*sharded).compile()
    assert any(row.kind == "all_gather" and row.times == LAYERS for row in compiled.plan.collectives)
    actual = compiled(*sharded)
    for a, b in zip(sw.tree.leaves(actual), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)

"""Weights of a step that accumulates gradients are gathered before the loop, or within a memory limit inside of it."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, strategies
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.search.fit_memory import fit_memory
from shardwise.compiler.search.gather_in_loops import gather_in_loops
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

LAYERS, WIDTH, ROWS = 8, 32, 128
ROWS_OF_WEIGHTS = P(None, "data")


def scanned(loss, params, batch, micro):
    """Return the mean of the gradients of microbatches, added in a scan."""

    def add(total, rows):
        return sw.tree.map(jnp.add, total, sw.grad(loss)(params, rows)), None

    parts = batch.reshape(-1, micro, WIDTH).swapaxes(0, 1)
    return sw.tree.map(lambda g: g / micro, lax.scan(add, sw.tree.map(jnp.zeros_like, params), parts)[0])


def accumulated(loss, params, batch, micro):
    return strategies.accumulate_gradients(sw.grad(loss), micro)(params, batch)


def step(accumulate, micro, dtype=jnp.float32):
    """Return a step of SGD for layers that are scanned, with compute in `dtype`."""

    def layer(x, w):
        return x + jnp.tanh(x @ w["up"].astype(dtype)) @ w["down"].astype(dtype), None

    def loss(params, rows):
        x, _ = lax.scan(layer, rows.astype(dtype), params["layers"])
        return jnp.mean((x @ params["head"].astype(dtype)).astype(jnp.float32) ** 2)

    def update(params, batch):
        return sw.tree.map(lambda p, g: p - g, params, accumulate(loss, params, batch, micro))

    return sw.jit(update)


def arguments(mesh, micro, spec=ROWS_OF_WEIGHTS):
    shapes = {"up": (LAYERS, WIDTH, 2 * WIDTH), "down": (LAYERS, 2 * WIDTH, WIDTH)}
    rng = np.random.default_rng(0)
    layers = {name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    params = {"layers": layers, "head": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8}
    batch = rng.normal(size=(ROWS * micro, WIDTH)).astype(np.float32)
    shardings = {
        "layers": {name: NamedSharding(mesh, spec) for name in shapes},
        "head": NamedSharding(mesh, P("data")),
    }
    return (params, batch), (shardings, NamedSharding(mesh, P("data")))


def planned(accumulate, micro, dtype=jnp.float32, spec=ROWS_OF_WEIGHTS):
    """Return the planned program, its arguments, and the results of the program on one device."""
    arrays, shardings = arguments(AbstractMesh((8,), ("data",)), micro, spec)
    structs = sw.tree.map(lambda x, s: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arrays, shardings)
    jitted = step(accumulate, micro, dtype)
    stages = jitted.lower(*structs)._prepared.stages
    leaves = sw.tree.leaves(arrays)
    expected = evaluate(inline(jitted.trace(*structs).program), leaves)
    return PartitionedProgram(stages.problem, stages.plan, stages.local), leaves, expected


def gathers(local):
    """Return the gathers of weights, as (number of times, dtype, rank)."""
    rows = [e for e in local.collectives() if e.op.name == "all_gather"]
    return sorted((local.times[e], str(e.outputs[0].type.dtype), e.outputs[0].type.ndim) for e in rows)


def problem_after(program, excess):
    problem = gather_in_loops(program, excess)
    assert problem is not None
    return problem


@pytest.mark.parametrize("accumulate", [scanned, accumulated])
def test_a_limit_moves_gathers_into_the_loop(accumulate):
    program, leaves, expected = planned(accumulate, 3)
    assert {times for times, _, _ in gathers(program.local)} == {1}
    limit = peak(program.local)[0] // 3
    tight = fit_memory(program, limit)
    assert peak(tight.local)[0] <= limit
    assert {times for times, _, rank in gathers(program.local) if rank == 3} == {1}
    assert 3 * LAYERS in {times for times, _, _ in gathers(tight.local)}
    assert not [rank for _, _, rank in gathers(tight.local) if rank == 3]  # no copy of all layers
    for actual, reference in zip(evaluate_shards(tight.local, leaves), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-6)


def test_weights_are_gathered_before_the_loop_if_reducing_sums_suffices():
    program, _, _ = planned(scanned, 3)
    tight = fit_memory(program, peak(program.local)[0] * 2 // 3)
    assert tight.problem.reduced_in_loops
    assert {times for times, _, _ in gathers(tight.local)} == {1}


def test_slices_are_gathered_in_the_dtype_of_the_compute():
    program, _, _ = planned(scanned, 3, jnp.bfloat16)
    tight = fit_memory(program, peak(program.local)[0] // 2)
    in_loops = [dtype for times, dtype, _ in gathers(tight.local) if times > 1]
    assert in_loops and set(in_loops) == {"bfloat16"}


def test_layers_that_are_sharded_along_the_dim_of_the_loop():
    """The inner loop slices that dim, so it gathers the layers in every iteration of the outer one."""
    program, leaves, expected = planned(scanned, 3, spec=P("data"))
    tight = fit_memory(program, 1)
    assert peak(tight.local)[0] < peak(program.local)[0]
    for actual, reference in zip(evaluate_shards(tight.local, leaves), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-6)


def test_only_as_many_values_as_necessary_enter_sharded():
    program, _, _ = planned(scanned, 3)
    few, all_values = problem_after(program, 1), problem_after(program, 1e6)

    def changed(problem):
        before = program.problem.candidates["data"]
        return sum(len(options) < len(before[e]) for e, options in problem.candidates["data"].items())

    assert 0 < changed(few) < changed(all_values)


def test_values_that_enter_sharded_are_not_changed_again():
    program, _, _ = planned(scanned, 3)
    problem = problem_after(program, 1e6)
    plan = choose(problem, program.plan.chip)
    assert gather_in_loops(PartitionedProgram(problem, plan, partition(problem, plan)), 1e6) is None


@pytest.mark.parametrize("micro", [1, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_devices_agree_with_one_device(micro):
    mesh = sw.make_mesh((8,), ("data",))
    arrays, shardings = arguments(mesh, micro)
    update = step(accumulated, micro)
    expected = update(*arrays)
    with sw.config.override("memory_limit", 1):
        actual = update(*sw.tree.map(sw.device_put, arrays, shardings))
    for a, b in zip(sw.tree.leaves(actual), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)

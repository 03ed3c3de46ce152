"""A program that exceeds the memory limit reduces sums inside of its loops, and sends as little as possible."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak, total_bytes
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.regather import regather_to_fit
from shardwise.compiler.search.fit_memory import fit_memory
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.golden import models

AXES = {"data": 8}
MICRO, LAYERS, WIDTH = 4, 3, 32


def planned(rows="data"):
    """Return the stages of gradients that are added up over microbatches, and the program with its arguments."""
    model = models.microbatches(AXES, rows, None, MICRO, LAYERS, 64, WIDTH)
    mesh = AbstractMesh(tuple(AXES.values()), tuple(AXES))
    leaves = model.arguments("sgd")
    structs = sw.tree.map(lambda leaf: leaf.struct(mesh), leaves)
    jitted = sw.jit(model.step("sgd"))
    stages = jitted.lower(*structs)._prepared.stages
    rng = np.random.default_rng(0)
    arrays = sw.tree.leaves(sw.tree.map(lambda leaf: leaf.value(rng), leaves))
    expected = evaluate(inline(jitted.trace(*structs).program), arrays)
    return PartitionedProgram(stages.problem, stages.plan, stages.local), arrays, expected


def reductions(local):
    """Return how often each reduction of gradients runs; scalars are losses."""
    return sorted(
        local.times[equation]
        for equation in local.collectives()
        if equation.op.name in ("reduce_scatter", "all_reduce") and equation.inputs[0].type.ndim
    )


def check_values(program, arrays, expected):
    for actual, reference in zip(evaluate_shards(program.local, arrays), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)


def test_a_program_that_fits_is_returned_unchanged():
    program, _, _ = planned()
    chip = program.plan.chip
    assert fit_memory(program, peak(program.local, (), chip)[0]) is program
    assert fit_memory(program, total_bytes(program.local.program, chip)) is program


def test_every_changed_program_is_reported():
    program, _, _ = planned()
    problems = []
    fitted = fit_memory(program, peak(program.local, (), program.plan.chip)[0] - 1, on_plan=problems.append)
    assert program.problem not in problems and fitted.problem in problems


def test_sums_that_do_not_fit_are_reduced_in_the_loops():
    """The loop over microbatches then carries shards of the gradients."""
    program, arrays, expected = planned()
    assert reductions(program.local) == [1, 1, 1]
    limit = peak(program.local)[0] - 40_000
    tight = fit_memory(program, limit)
    assert peak(tight.local)[0] <= limit < peak(program.local)[0]
    assert max(reductions(tight.local)) > 1
    assert tight.local.sent > program.local.sent
    assert tight.problem.reduced_in_loops
    check_values(tight, arrays, expected)


@pytest.mark.slow
def test_a_lower_limit_never_holds_more():
    program, arrays, expected = planned()
    most = peak(program.local)[0]
    fitted = [fit_memory(program, limit) for limit in range(most, most // 3, -most // 12)]
    held = [peak(attempt.local)[0] for attempt in fitted]
    assert held == sorted(held, reverse=True)
    for attempt in fitted:
        check_values(attempt, arrays, expected)


def test_only_as_many_sums_as_necessary_are_reduced_in_the_loops():
    program, _, _ = planned()
    halfway = fit_memory(program, peak(program.local)[0] - 8_000)
    least = fit_memory(program, 1)
    assert len(halfway.problem.reduced_in_loops) < len(least.problem.reduced_in_loops)
    assert reductions(halfway.local).count(1) > 0


def test_of_the_programs_that_fit_the_one_that_sends_least_is_returned():
    """Gathering weights again also saves memory; it is done where it sends less."""
    program, _, _ = planned()
    limit = peak(program.local)[0] - 40_000
    regathered = regather_to_fit(program.local, limit)
    tight = fit_memory(program, limit)
    assert tight.local.sent <= regathered.sent or peak(regathered)[0] > limit


@pytest.mark.parametrize("rows", ["data", None], ids=["fsdp", "data-parallel"])
def test_a_limit_that_cannot_be_met(rows):
    """The program that holds the fewest bytes is returned, and its values are right."""
    program, arrays, expected = planned(rows)
    tight = fit_memory(program, 1)
    assert peak(tight.local)[0] <= peak(program.local)[0]
    check_values(tight, arrays, expected)


def test_a_sum_whose_type_is_unreduced_stays_unreduced():
    """Its carry has only partial candidates along the Explicit axis, and keeps them."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    unreduced = P(None, None, unreduced={"data"})

    def total(x):
        with sw.sharding.use_abstract_mesh(mesh):
            zeros = sw.sharding.reshard(jnp.zeros((64, 64)), unreduced)
            add = lambda sum, rows: (sum + jnp.einsum("bi,bj->ij", rows, rows, out_sharding=unreduced), None)  # noqa: E731
            return sw.sharding.reshard(lax.scan(add, zeros, x)[0], P())

    x = sw.ShapeDtypeStruct((4, 64, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "data")))
    stages = sw.jit(total).lower(x)._prepared.stages
    tight = fit_memory(PartitionedProgram(stages.problem, stages.plan, stages.local), 1)
    assert reductions(tight.local) == [1]


def test_the_reason_names_the_memory_limit():
    model = models.microbatches(AXES, "data", None, MICRO, LAYERS, 64, WIDTH)
    unlimited = model.plan()
    with sw.config.override("memory_limit", unlimited.peak_bytes - 40_000):
        tight = model.plan()
    assert tight.peak_bytes <= unlimited.peak_bytes - 40_000
    reasons = [row.reason for row in tight.collectives if row.times > 1]
    assert any("in every iteration, because keeping it unreduced would exceed the memory limit" in r for r in reasons)
    assert not any("memory limit" in row.reason for row in unlimited.collectives)


@pytest.mark.parametrize(
    ("limit", "kind"),
    [(10_000, "reduce_scatter"), (1, "all_reduce")],
    ids=["sums-in-the-loop", "weights-in-the-loop"],
)
def test_devices_agree_with_numpy_within_a_limit(limit, kind):
    model = models.microbatches(AXES, "data", None, 2, 2, 8, 8)
    mesh = sw.make_mesh(tuple(AXES.values()), tuple(AXES))
    rng = np.random.default_rng(0)
    leaves = model.arguments("sgd")
    arguments = sw.tree.map(lambda leaf: leaf.value(rng), leaves)
    problem = sw.tree.map(lambda x, leaf: sw.device_put(x, NamedSharding(mesh, leaf.spec)), arguments, leaves)
    step = sw.jit(model.step("sgd"))
    expected = evaluate(inline(step.trace(*problem).program), sw.tree.leaves(arguments))
    with sw.config.override("memory_limit", limit):
        compiled = step.lower(*problem).compile()
    assert any(row.times > 1 and row.kind == kind for row in compiled.plan.collectives)
    for actual, reference in zip(sw.tree.leaves(compiled(*problem)), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=2e-4, atol=2e-5)

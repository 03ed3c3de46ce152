"""Random functions × meshes × specs: shard_map compared with a loop over the devices in numpy.

Every stage is compared with the loop: `evaluate` (the program), `simulate` (the partitioned program), and real devices.
Gradients are compared with finite differences of the loop.
"""

from random import Random

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.plan_from_picks import plan_from_picks
from tests.fuzz.check import random_picks
from tests.manual.devices import is_float
from tests.manual.recipes import MESHES, Recipe, random_recipe, random_spec
from tests.manual.stages import simulated, trace_and_partition

BLOCK = 10  # cases per test


def compare(stage, actual, expected, exact):
    for index, (result, reference, is_exact) in enumerate(zip(map(np.asarray, actual), expected, exact, strict=True)):
        message = f"{stage}: result {index}"
        assert (result.dtype, result.shape) == (reference.dtype, reference.shape), message
        if is_exact or not is_float(reference.dtype):
            np.testing.assert_array_equal(result, reference, message)
        else:
            unit = 2e-5 if reference.dtype == np.float32 else 0.04
            scale = max(1.0, float(np.max(np.abs(reference.astype(np.float64)), initial=0.0)))
            np.testing.assert_allclose(
                result.astype(np.float64), reference.astype(np.float64), rtol=0, atol=unit * scale, err_msg=message
            )


def random_specs(recipe: Recipe):
    """Return shardings for the arguments, which need not be those that the region asks for."""
    rng = Random(recipe.seed)
    return [random_spec(rng, shape, tuple(recipe.mesh)) for shape in recipe.shapes]


def check_stages(recipe: Recipe):
    expected = recipe.reference(recipe.args)
    function = recipe.function(recipe.abstract)
    program, stages, args = trace_and_partition(function, recipe.args, recipe.abstract, random_specs(recipe))
    compare("evaluate", evaluate(program, args), expected, recipe.exact)
    compare("simulate", evaluate_shards(stages.local, args), expected, recipe.exact)
    other = plan_from_picks(stages.problem, random_picks(stages.problem, Random(recipe.seed)))
    compare("another plan", evaluate_shards(partition(stages.problem, other), args), expected, recipe.exact)
    assert parse_program(str(program)) == program


def check_recipe(recipe, check):
    try:
        check(recipe)
    except Exception as error:
        raise AssertionError(str(recipe)) from error


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
def test_stages_match_the_loop(first):
    for seed in range(first, first + BLOCK):
        check_recipe(random_recipe(seed), check_stages)


@pytest.mark.parametrize("seed", [2787], ids=["shards are permuted along axes outside the region"])
def test_regressions(seed):
    check_recipe(random_recipe(seed), check_stages)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_more_stages_match_the_loop(first):
    for seed in range(first, first + 100):
        check_recipe(random_recipe(seed), check_stages)


def check_vmap(recipe: Recipe):
    """vmap over three elements, along random dims of some arguments, equals three single calls."""
    rng, draw = Random(recipe.seed), np.random.default_rng(recipe.seed)
    dims = [rng.choice((None, rng.randint(0, len(shape)))) for shape in recipe.shapes]
    dims[0] = 0 if all(dim is None for dim in dims) else dims[0]
    batches = [
        x if dim is None else np.stack([draw.permutation(x.ravel()).reshape(x.shape) for _ in range(3)], dim)
        for x, dim in zip(recipe.args, dims, strict=True)
    ]
    one_by_one = [
        recipe.reference([x if dim is None else np.take(x, n, dim) for x, dim in zip(batches, dims, strict=True)])
        for n in range(3)
    ]
    function = sw.vmap(recipe.function(recipe.abstract), tuple(dims))
    expected = [np.stack(column) for column in zip(*one_by_one, strict=True)]
    compare("vmap", simulated(function, recipe.abstract, *batches), expected, recipe.exact)


@pytest.mark.parametrize("first", range(0, 30, BLOCK))
def test_vmap_matches_single_calls(first):
    for seed in range(first, first + BLOCK):
        check_recipe(random_recipe(seed), check_vmap)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_more_vmap_matches_single_calls(first):
    for seed in range(first, first + 100):
        check_recipe(random_recipe(seed), check_vmap)


def check_gradient(recipe: Recipe):
    """The directional derivative equals a finite difference of the loop, in float64."""
    rng = np.random.default_rng(recipe.seed + 1)
    args = recipe.args
    weights = [rng.normal(size=x.shape) for x in recipe.reference(args)]
    tangent = [rng.normal(size=x.shape) for x in args]

    def loss(*xs):
        outs = recipe.function(recipe.abstract)(*xs)
        return sum((out * w.astype(np.float32)).sum() for out, w in zip(outs, weights, strict=True))

    gradients = sw.grad(loss, tuple(range(len(args))))
    _, stages, stage_args = trace_and_partition(gradients, args, recipe.abstract, random_specs(recipe))
    actual = evaluate_shards(stages.local, stage_args)

    def loss_of_loop(step):
        shifted = [x.astype(np.float64) + step * d for x, d in zip(args, tangent, strict=True)]
        return sum((out * w).sum() for out, w in zip(recipe.reference(shifted), weights, strict=True))

    slope = (loss_of_loop(1e-5) - loss_of_loop(-1e-5)) / 2e-5
    actual_slope = sum((g.astype(np.float64) * d).sum() for g, d in zip(actual, tangent, strict=True))
    scale = max(1.0, sum(float(np.abs(g * d).sum()) for g, d in zip(actual, tangent, strict=True)))
    assert abs(actual_slope - slope) <= 1e-4 * scale, f"gradient {actual_slope}, finite difference {slope}"


@pytest.mark.parametrize("first", range(0, 40, BLOCK))
def test_gradients_match_finite_differences(first):
    for seed in range(first, first + BLOCK):
        check_recipe(random_recipe(seed, (np.float32,)), check_gradient)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_more_gradients_match_finite_differences(first):
    for seed in range(first, first + 100):
        check_recipe(random_recipe(seed, (np.float32,)), check_gradient)


@pytest.mark.parametrize("sizes", MESHES, ids=["8", "4x2", "2x2x2"])
def test_devices_match_the_loop(sizes):
    """All functions are one program, to save compile time."""
    mesh = sw.make_mesh(tuple(sizes.values()), tuple(sizes))
    recipes = [recipe for recipe in map(random_recipe, range(500, 540)) if recipe.mesh == sizes]
    assert len(recipes) > 8

    @sw.jit
    def all_functions(groups):
        return [recipe.function(mesh)(*args) for recipe, args in zip(recipes, groups, strict=True)]

    actual = all_functions([recipe.args for recipe in recipes])
    for recipe, outputs in zip(recipes, actual, strict=True):
        check_recipe(
            recipe, lambda recipe, outputs=outputs: compare("jit", outputs, recipe.reference(recipe.args), recipe.exact)
        )

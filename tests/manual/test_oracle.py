"""Random functions × meshes × specs: shard_map against a loop over devices in numpy.

Every stage is compared with the loop: `evaluate` (what the program means), `simulate` (what it is partitioned to), and
devices; and slopes are compared with differences of the loop.
"""

from random import Random

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.partition.simulate import simulate
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import plan_from_picks
from tests.fuzz.check import random_picks
from tests.manual.devices import is_float
from tests.manual.recipes import MESHES, Recipe, random_recipe, random_spec
from tests.manual.stages import simulated, staged

BLOCK = 10  # cases of one test


def compare(stage, found, wanted, exact):
    for number, (got, want, is_exact) in enumerate(zip(map(np.asarray, found), wanted, exact, strict=True)):
        message = f"{stage}: result {number}"
        assert (got.dtype, got.shape) == (want.dtype, want.shape), message
        if is_exact or not is_float(want.dtype):
            np.testing.assert_array_equal(got, want, message)
        else:
            unit = 2e-5 if want.dtype == np.float32 else 0.04
            scale = max(1.0, float(np.max(np.abs(want.astype(np.float64)), initial=0.0)))
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=0, atol=unit * scale, err_msg=message
            )


def anyhow(recipe: Recipe):
    """Where arguments lie: not as the region wants them."""
    rng = Random(recipe.seed)
    return [random_spec(rng, shape, tuple(recipe.mesh)) for shape in recipe.shapes]


def check_stages(recipe: Recipe):
    wanted = recipe.looped(recipe.args)
    function = recipe.function(recipe.abstract)
    program, stages, args = staged(function, recipe.args, recipe.abstract, anyhow(recipe))
    compare("evaluate", evaluate(program, args), wanted, recipe.exact)
    compare("simulate", simulate(stages.local, args), wanted, recipe.exact)
    other = plan_from_picks(stages.sharded, random_picks(stages.sharded, Random(recipe.seed)))
    compare("another plan", simulate(partition(stages.sharded, other), args), wanted, recipe.exact)
    assert parse_program(str(program)) == program


def named(recipe, check):
    try:
        check(recipe)
    except Exception as error:
        raise AssertionError(str(recipe)) from error


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
def test_the_stages_agree_with_the_loop(first):
    for seed in range(first, first + BLOCK):
        named(random_recipe(seed), check_stages)


@pytest.mark.parametrize("seed", [2787], ids=["pieces change places along other axes than the region's"])
def test_what_went_wrong_once(seed):
    named(random_recipe(seed), check_stages)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_more_stages_agree_with_the_loop(first):
    for seed in range(first, first + 100):
        named(random_recipe(seed), check_stages)


def check_vmap(recipe: Recipe):
    """Three at a time, along any dim of some arguments: as one after the other."""
    rng, draw = Random(recipe.seed), np.random.default_rng(recipe.seed)
    dims = [rng.choice((None, rng.randint(0, len(shape)))) for shape in recipe.shapes]
    dims[0] = 0 if all(dim is None for dim in dims) else dims[0]
    batches = [
        x if dim is None else np.stack([draw.permutation(x.ravel()).reshape(x.shape) for _ in range(3)], dim)
        for x, dim in zip(recipe.args, dims, strict=True)
    ]
    one_by_one = [
        recipe.looped([x if dim is None else np.take(x, n, dim) for x, dim in zip(batches, dims, strict=True)])
        for n in range(3)
    ]
    function = sw.vmap(recipe.function(recipe.abstract), tuple(dims))
    wanted = [np.stack(column) for column in zip(*one_by_one, strict=True)]
    compare("vmap", simulated(function, recipe.abstract, *batches), wanted, recipe.exact)


@pytest.mark.parametrize("first", range(0, 30, BLOCK))
def test_vmap_is_one_after_the_other(first):
    for seed in range(first, first + BLOCK):
        named(random_recipe(seed), check_vmap)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_more_vmap_is_one_after_the_other(first):
    for seed in range(first, first + 100):
        named(random_recipe(seed), check_vmap)


def check_slope(recipe: Recipe):
    """The gradient along a direction is the slope of the loop there, in f64."""
    rng = np.random.default_rng(recipe.seed + 1)
    args = recipe.args
    weights = [rng.normal(size=x.shape) for x in recipe.looped(args)]
    direction = [rng.normal(size=x.shape) for x in args]

    def loss(*xs):
        outs = recipe.function(recipe.abstract)(*xs)
        return sum((out * w.astype(np.float32)).sum() for out, w in zip(outs, weights, strict=True))

    gradients = sw.grad(loss, tuple(range(len(args))))
    _, stages, given = staged(gradients, args, recipe.abstract, anyhow(recipe))
    found = simulate(stages.local, given)

    def looped(step):
        moved = [x.astype(np.float64) + step * d for x, d in zip(args, direction, strict=True)]
        return sum((out * w).sum() for out, w in zip(recipe.looped(moved), weights, strict=True))

    slope = (looped(1e-5) - looped(-1e-5)) / 2e-5
    got = sum((g.astype(np.float64) * d).sum() for g, d in zip(found, direction, strict=True))
    size = max(1.0, sum(float(np.abs(g * d).sum()) for g, d in zip(found, direction, strict=True)))
    assert abs(got - slope) <= 1e-4 * size, f"grad {got}, slope {slope}"


@pytest.mark.parametrize("first", range(0, 40, BLOCK))
def test_gradients_are_slopes_of_the_loop(first):
    for seed in range(first, first + BLOCK):
        named(random_recipe(seed, (np.float32,)), check_slope)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_more_gradients_are_slopes_of_the_loop(first):
    for seed in range(first, first + 100):
        named(random_recipe(seed, (np.float32,)), check_slope)


@pytest.mark.parametrize("sizes", MESHES, ids=["8", "4x2", "2x2x2"])
def test_devices_agree_with_the_loop(sizes):
    """Many in one program: to compile is what costs."""
    mesh = sw.make_mesh(tuple(sizes.values()), tuple(sizes))
    recipes = [recipe for recipe in map(random_recipe, range(500, 540)) if recipe.mesh == sizes]
    assert len(recipes) > 8

    @sw.jit
    def all_of_them(groups):
        return [recipe.function(mesh)(*args) for recipe, args in zip(recipes, groups, strict=True)]

    found = all_of_them([recipe.args for recipe in recipes])
    for recipe, outputs in zip(recipes, found, strict=True):
        named(recipe, lambda recipe, outputs=outputs: compare("jit", outputs, recipe.looped(recipe.args), recipe.exact))

"""The shrinker, on failures that are planted."""

from random import Random

import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.trace.build import build
from tests.fuzz.control import function_of, random_recipe
from tests.fuzz.recipe import Recipe, random_array
from tests.fuzz.shrink import shrink


def has(recipe: Recipe, holder: str, held: str) -> bool:
    """Whether some step of the one kind holds, at any depth, one of the other; and the recipe still runs."""
    found = any(
        step.kind == holder and any(held == inside.kind for inner in step.inner for inside in inner.all_steps)
        for step in recipe.all_steps
    )
    if found:
        program, _ = build(function_of(recipe, lambda x, _: x), recipe.inputs, "shrunk")
        verify(program)
    return found


@pytest.mark.parametrize("keep_inputs", [False, True])
@pytest.mark.parametrize(
    ("holder", "held"), [("scan", "add"), ("cond", "sum"), ("while", "add"), ("remat", "exp"), ("custom_vjp", "mul")]
)
def test_what_is_left_of_a_recipe_still_fails_and_is_small(holder, held, keep_inputs):
    recipe = next(r for r in (random_recipe(Random(seed), {"x": 2}) for seed in range(10_000)) if has(r, holder, held))
    smaller = shrink(recipe, lambda r: has(r, holder, held), keep_inputs=keep_inputs)
    assert has(smaller, holder, held)
    assert len(smaller.steps) <= len(recipe.steps)
    assert sum(held == step.kind for step in smaller.all_steps) == 1
    assert (smaller.inputs == recipe.inputs) or not keep_inputs
    assert len(list(smaller.all_steps)) <= 8

"""The shrinker, on failures that are planted."""

from collections.abc import Iterator
from random import Random

import pytest

from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from tests.fuzz.control import function_of, random_recipe
from tests.fuzz.recipe import Recipe
from tests.fuzz.shrink import shrink


def equations(program: Program) -> Iterator[Equation]:
    for equation in program.equations:
        yield equation
        for inner in equation.op.programs:
            yield from equations(inner)


def has(recipe: Recipe, holder: str, held: str) -> bool:
    """Whether an op of the one kind, which something needs, holds one of the other."""
    if not any(step.kind == holder for step in recipe.all_steps):
        return False
    program, _ = build(function_of(recipe, lambda x, _: x), recipe.inputs, "planted")
    return any(
        held == inside.op.name
        for equation in equations(dce(program))
        if equation.op.name == holder
        for inner in equation.op.programs
        for inside in equations(inner)
    )


@pytest.mark.parametrize("keep_inputs", [False, True])
@pytest.mark.parametrize(
    ("holder", "held"), [("scan", "add"), ("cond", "sum"), ("while", "exp"), ("remat", "mul"), ("custom_vjp", "sum")]
)
def test_what_is_left_of_a_recipe_still_fails_and_is_small(holder, held, keep_inputs):
    recipe = next(r for r in (random_recipe(Random(seed), {"x": 2}) for seed in range(10_000)) if has(r, holder, held))
    smaller = shrink(recipe, lambda r: has(r, holder, held), keep_inputs=keep_inputs)
    assert has(smaller, holder, held)
    assert len(list(smaller.all_steps)) <= min(8, len(list(recipe.all_steps)) // 2)
    assert smaller.inputs == recipe.inputs or not keep_inputs

"""The shrinker, on artificial failures."""

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


def contains(recipe: Recipe, outer: str, inner_op: str) -> bool:
    """Return whether a live `outer` op has a nested program with a `inner_op` op."""
    if not any(step.kind == outer for step in recipe.all_steps):
        return False
    program, _ = build(function_of(recipe, lambda x, _: x), recipe.inputs, "shrunk")
    return any(
        inner_op == nested.op.name
        for equation in equations(dce(program))
        if equation.op.name == outer
        for inner in equation.op.programs
        for nested in equations(inner)
    )


@pytest.mark.table(default=3)
@pytest.mark.parametrize("keep_inputs", [False, True])
@pytest.mark.parametrize(
    ("outer", "inner_op"), [("scan", "add"), ("cond", "sum"), ("while", "exp"), ("remat", "mul"), ("custom_vjp", "sum")]
)
def test_shrunk_recipe_still_fails_and_is_small(outer, inner_op, keep_inputs):
    recipe = next(
        r for r in (random_recipe(Random(seed), {"x": 2}) for seed in range(10_000)) if contains(r, outer, inner_op)
    )
    smaller = shrink(recipe, lambda r: contains(r, outer, inner_op), keep_inputs=keep_inputs)
    assert contains(smaller, outer, inner_op)
    assert len(list(smaller.all_steps)) <= min(8, len(list(recipe.all_steps)) // 2)
    assert smaller.inputs == recipe.inputs or not keep_inputs

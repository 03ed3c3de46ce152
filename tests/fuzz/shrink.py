"""Shrink a failing recipe by trying one change after the other.

Outputs are dropped. A value is replaced by an earlier one of its type, by an input, or by a constant if the inputs must
not change. Nested recipes shrink too, and control flow becomes a call.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise.compiler.dtypes import is_float
from tests.fuzz.recipe import BOOL, Recipe, Step

ATTEMPTS = 300


def shrink(
    recipe: Recipe, fails: Callable[[Recipe], bool], attempts: int = ATTEMPTS, keep_inputs: bool = False
) -> Recipe:
    """Return the smallest recipe found for which `fails` is true."""
    while True:
        for smaller in _smaller(recipe, keep_inputs):
            attempts -= 1
            if attempts < 0:
                return recipe
            if fails(smaller):
                recipe = smaller
                break
        else:
            return recipe


def _smaller(recipe: Recipe, keep_inputs: bool) -> Iterator[Recipe]:
    reduced = remove_unused(recipe, keep_inputs)
    if len(reduced.steps) < len(recipe.steps) or len(reduced.inputs) < len(recipe.inputs):
        yield reduced
    for number in range(len(recipe.outputs)):
        if len(recipe.outputs) > 1:
            outputs = recipe.outputs[:number] + recipe.outputs[number + 1 :]
            exact = recipe.exact[:number] + recipe.exact[number + 1 :]
            yield remove_unused(replace(recipe, outputs=outputs, exact=exact), keep_inputs)
    if not keep_inputs:
        for number in reversed(range(len(recipe.steps))):
            yield remove_unused(_replace_by_inputs(recipe, number))
    yield from _fewer_steps(recipe, keep_inputs)


def _simpler(step: Step) -> Iterator[Step]:
    """Yield simpler versions of a step with nested recipes."""
    if step.kind in ("cond", "switch"):
        for branch in step.inner:
            yield Step("call", step.args[1:], (max(1, step.params[0]), branch), step.results)
    elif step.kind in ("remat", "custom_jvp", "custom_vjp"):
        yield Step("call", step.args, (len(step.args), *step.inner), step.results)
    for index, inner in enumerate(step.inner):
        for smaller in _smaller_nested(inner):
            yield step.with_inner((*step.inner[:index], smaller, *step.inner[index + 1 :]))


def _smaller_nested(recipe: Recipe) -> Iterator[Recipe]:
    """Yield smaller versions of a nested recipe, with the same inputs and outputs."""
    reduced = remove_unused(recipe, keep_inputs=True)
    if len(reduced.steps) < len(recipe.steps):
        yield reduced
    yield from _fewer_steps(recipe, keep_inputs=True)


def _fewer_steps(recipe: Recipe, keep_inputs: bool) -> Iterator[Recipe]:
    """Yield recipes with one step removed or simplified."""
    for number in reversed(range(len(recipe.steps))):
        yield from (remove_unused(other, keep_inputs) for other in _replace_by_earlier(recipe, number))
        if recipe.steps[number].args:
            yield remove_unused(_replace_by_ones(recipe, number), keep_inputs)
    for number, step in enumerate(recipe.steps):
        for simpler in _simpler(step):
            yield _with_step(recipe, number, simpler)


def _replace_by_earlier(recipe: Recipe, number: int) -> Iterator[Recipe]:
    """Replace each result of a step by the first value of its type, or by an argument of its type."""
    types = recipe.types
    end = len(recipe.inputs) + sum(len(step.results) for step in recipe.steps[: number + 1])
    for value in range(end - len(recipe.steps[number].results), end):
        arguments = [arg for arg in recipe.steps[number].args if types[arg] == types[value]]
        for other in dict.fromkeys([types.index(types[value]), *arguments]):
            if other == value:
                continue
            replacement = {value: other}
            steps = [replace(s, args=tuple(replacement.get(arg, arg) for arg in s.args)) for s in recipe.steps]
            outputs = tuple(replacement.get(output, output) for output in recipe.outputs)
            if outputs != recipe.outputs or tuple(steps) != recipe.steps:
                yield replace(recipe, steps=tuple(steps), outputs=outputs)


def _with_step(recipe: Recipe, number: int, step: Step) -> Recipe:
    return replace(recipe, steps=(*recipe.steps[:number], step, *recipe.steps[number + 1 :]))


def _replace_by_ones(recipe: Recipe, number: int) -> Recipe:
    """Replace the results of a step by ones."""
    step = recipe.steps[number]
    ones = [
        Step("full", (), (type.shape, True if type.dtype == BOOL else 1, type.dtype), (type,)) for type in step.results
    ]
    return replace(recipe, steps=(*recipe.steps[:number], *ones, *recipe.steps[number + 1 :]))


def _replace_by_inputs(recipe: Recipe, number: int) -> Recipe:
    """Replace the results of a step by inputs of small integers."""
    step = recipe.steps[number]
    first = len(recipe.inputs)
    start = first + sum(len(s.results) for s in recipe.steps[:number])
    count = len(step.results)

    def renumbered(value: int) -> int:
        if value < first:
            return value
        if start <= value < start + count:
            return first + value - start
        return value + count if value < start else value

    steps = [replace(s, args=tuple(map(renumbered, s.args))) for s in recipe.steps if s is not step]
    return replace(
        recipe,
        inputs=recipe.inputs + tuple(type.strong() for type in step.results),
        integers=recipe.integers + (True,) * count,
        steps=tuple(steps),
        outputs=tuple(map(renumbered, recipe.outputs)),
    )


def remove_unused(recipe: Recipe, keep_inputs: bool = False) -> Recipe:
    """Remove unused steps and, unless `keep_inputs`, unused inputs; at least one input stays."""
    used = set(recipe.outputs)
    kept: list[Step] = []
    new_numbers: dict[int, int] = {}
    end = len(recipe.types)
    spans: list[tuple[Step, int]] = []
    for step in reversed(recipe.steps):
        end -= len(step.results)
        spans.append((step, end))
        if not used.isdisjoint(range(end, end + len(step.results))):
            kept.append(step)
            used.update(step.args)
    inputs = [number for number in range(len(recipe.inputs)) if keep_inputs or number in used] or [0]
    if not any(is_float(recipe.inputs[i].dtype) for i in inputs):  # grad needs one
        inputs += [i for i, type in enumerate(recipe.inputs) if is_float(type.dtype) and i not in inputs][:1]
    inputs.sort()
    new_numbers.update({old: new for new, old in enumerate(inputs)})
    steps = []
    for step, start in reversed(spans):
        if any(step is other for other in kept):
            new_numbers.update({start + i: len(new_numbers) + i for i in range(len(step.results))})
            steps.append(replace(step, args=tuple(new_numbers[arg] for arg in step.args)))
    return replace(
        recipe,
        inputs=tuple(recipe.inputs[i] for i in inputs),
        integers=tuple(recipe.integers[i] or recipe.inputs[i].dtype == BOOL for i in inputs),
        steps=tuple(steps),
        outputs=tuple(new_numbers[number] for number in recipe.outputs),
    )

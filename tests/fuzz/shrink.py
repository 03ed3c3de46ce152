"""shrink: a smaller recipe that still fails, found by trying one change after the other.

Outputs are dropped; values become earlier ones of their type, or inputs (or, where inputs must stay as they are,
constants); steps that hold recipes hold smaller ones, or become calls.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise.compiler.dtypes import is_float
from tests.fuzz.recipe import BOOL, Recipe, Step

ATTEMPTS = 300


def shrink(
    recipe: Recipe, fails: Callable[[Recipe], bool], attempts: int = ATTEMPTS, keep_inputs: bool = False
) -> Recipe:
    """The smallest recipe that was found and `fails`."""
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
    alive = without_dead(recipe, keep_inputs)
    if len(alive.steps) < len(recipe.steps) or len(alive.inputs) < len(recipe.inputs):
        yield alive
    for number in range(len(recipe.outputs)):
        if len(recipe.outputs) > 1:
            outputs = recipe.outputs[:number] + recipe.outputs[number + 1 :]
            exact = recipe.exact[:number] + recipe.exact[number + 1 :]
            yield without_dead(replace(recipe, outputs=outputs, exact=exact), keep_inputs)
    if not keep_inputs:
        for number in reversed(range(len(recipe.steps))):
            yield without_dead(_as_inputs(recipe, number))
    yield from _less(recipe, keep_inputs)


def _simpler(step: Step) -> Iterator[Step]:
    """A step that holds less."""
    if step.kind in ("cond", "switch"):
        for branch in step.inner:
            yield Step("call", step.args[1:], (max(1, step.params[0]), branch), step.results)
    elif step.kind in ("remat", "custom_jvp", "custom_vjp"):
        yield Step("call", step.args, (len(step.args), *step.inner), step.results)
    for number, inner in enumerate(step.inner):
        for smaller in _inside(inner):
            yield step.with_inner((*step.inner[:number], smaller, *step.inner[number + 1 :]))


def _inside(recipe: Recipe) -> Iterator[Recipe]:
    """A recipe with the same inputs and outputs that does less."""
    alive = without_dead(recipe, keep_inputs=True)
    if len(alive.steps) < len(recipe.steps):
        yield alive
    yield from _less(recipe, keep_inputs=True)


def _less(recipe: Recipe, keep_inputs: bool) -> Iterator[Recipe]:
    """A recipe that does not do one of its steps, or one that holds less."""
    for number in reversed(range(len(recipe.steps))):
        yield from (without_dead(other, keep_inputs) for other in _as_another(recipe, number))
        if recipe.steps[number].args:
            yield without_dead(_as_constants(recipe, number), keep_inputs)
    for number, step in enumerate(recipe.steps):
        for simpler in _simpler(step):
            yield _with_step(recipe, number, simpler)


def _as_another(recipe: Recipe, number: int) -> Iterator[Recipe]:
    """The first value of its type instead of a result of this step."""
    types = recipe.types
    end = len(recipe.inputs) + sum(len(step.results) for step in recipe.steps[: number + 1])
    for value in range(end - len(recipe.steps[number].results), end):
        other = types.index(types[value])
        if other < value:
            changed = {value: other}
            steps = [replace(s, args=tuple(changed.get(arg, arg) for arg in s.args)) for s in recipe.steps]
            outputs = tuple(changed.get(output, output) for output in recipe.outputs)
            if outputs != recipe.outputs or tuple(steps) != recipe.steps:
                yield replace(recipe, steps=tuple(steps), outputs=outputs)


def _with_step(recipe: Recipe, number: int, step: Step) -> Recipe:
    return replace(recipe, steps=(*recipe.steps[:number], step, *recipe.steps[number + 1 :]))


def _as_constants(recipe: Recipe, number: int) -> Recipe:
    """The results of a step as ones."""
    step = recipe.steps[number]
    ones = [
        Step("full", (), (type.shape, True if type.dtype == BOOL else 1, type.dtype), (type,)) for type in step.results
    ]
    return replace(recipe, steps=(*recipe.steps[:number], *ones, *recipe.steps[number + 1 :]))


def _as_inputs(recipe: Recipe, number: int) -> Recipe:
    """The results of a step as inputs of small integers."""
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


def without_dead(recipe: Recipe, keep_inputs: bool = False) -> Recipe:
    """The recipe without steps that nothing uses, and without such inputs too, unless these are kept; one stays."""
    wanted = set(recipe.outputs)
    kept: list[Step] = []
    places: dict[int, int] = {}
    end = len(recipe.types)
    spans: list[tuple[Step, int]] = []
    for step in reversed(recipe.steps):
        end -= len(step.results)
        spans.append((step, end))
        if not wanted.isdisjoint(range(end, end + len(step.results))):
            kept.append(step)
            wanted.update(step.args)
    inputs = [number for number in range(len(recipe.inputs)) if keep_inputs or number in wanted] or [0]
    if not any(is_float(recipe.inputs[i].dtype) for i in inputs):  # grad needs one
        inputs += [i for i, type in enumerate(recipe.inputs) if is_float(type.dtype) and i not in inputs][:1]
    inputs.sort()
    places.update({old: new for new, old in enumerate(inputs)})
    steps = []
    for step, start in reversed(spans):
        if any(step is other for other in kept):
            places.update({start + i: len(places) + i for i in range(len(step.results))})
            steps.append(replace(step, args=tuple(places[arg] for arg in step.args)))
    return replace(
        recipe,
        inputs=tuple(recipe.inputs[i] for i in inputs),
        integers=tuple(recipe.integers[i] or recipe.inputs[i].dtype == BOOL for i in inputs),
        steps=tuple(steps),
        outputs=tuple(places[number] for number in recipe.outputs),
    )

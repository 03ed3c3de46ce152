"""shrink: a smaller recipe that still fails, by dropping outputs and turning values into inputs, one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise.compiler.ir.types import is_float
from tests.fuzz.programs import BOOL, Recipe, Step

ATTEMPTS = 300


def shrink(recipe: Recipe, fails: Callable[[Recipe], bool], attempts: int = ATTEMPTS) -> Recipe:
    """The smallest recipe that was found and `fails`."""
    while True:
        for smaller in _smaller(recipe):
            attempts -= 1
            if attempts < 0:
                return recipe
            if fails(smaller):
                recipe = smaller
                break
        else:
            return recipe


def _smaller(recipe: Recipe) -> Iterator[Recipe]:
    alive = without_dead(recipe)
    if len(alive.steps) < len(recipe.steps) or len(alive.inputs) < len(recipe.inputs):
        yield alive
    for number in range(len(recipe.outputs)):
        if len(recipe.outputs) > 1:
            outputs = recipe.outputs[:number] + recipe.outputs[number + 1 :]
            yield without_dead(
                replace(recipe, outputs=outputs, exact=recipe.exact[:number] + recipe.exact[number + 1 :])
            )
    for number in reversed(range(len(recipe.steps))):
        yield without_dead(_as_inputs(recipe, number))


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


def without_dead(recipe: Recipe) -> Recipe:
    """The recipe without steps and inputs that nothing uses; one input stays."""
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
    inputs = [number for number in range(len(recipe.inputs)) if number in wanted] or [0]
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

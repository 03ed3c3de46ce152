"""Recipe: a program as data. A step may have nested recipes: the body of a call or a loop, the branches of a cond."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import short_name
from shardwise.compiler.ir.types import ArrayType
from tests.fuzz.layouts import Spec, spec_text

F32, I32, BOOL, BF16 = (np.dtype(dtype) for dtype in (np.float32, np.int32, np.bool_, ml_dtypes.bfloat16))

Constrain = Callable[[Any, Spec], Any]


@dataclass(frozen=True)
class Step:
    """One op of a recipe: its arguments by index, its static parameters, and the types of its results."""

    kind: str
    args: tuple[int, ...]
    params: tuple[Any, ...]
    results: tuple[ArrayType, ...]

    def __str__(self) -> str:
        params = ", ".join(spec_text(p) if self.kind == "constrain" else str(p) for p in self.params)
        return f"{self.kind}[{params}] {' '.join(f'v{arg}' for arg in self.args)}"

    @property
    def inner(self) -> tuple["Recipe", ...]:
        """The nested recipes."""
        return tuple(param for param in self.params if isinstance(param, Recipe))

    def with_inner(self, recipes: tuple["Recipe", ...]) -> "Step":
        """Replace the nested recipes."""
        rest = iter(recipes)
        params = tuple(next(rest) if isinstance(param, Recipe) else param for param in self.params)
        return Step(self.kind, self.args, params, self.results)


@dataclass(frozen=True)
class Recipe:
    """Values are numbered: the inputs first, then the results of each step.

    `exact`: the outputs that must be equal bit by bit on every layout.
    """

    inputs: tuple[ArrayType, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    exact: tuple[bool, ...]
    integers: tuple[bool, ...]  # the inputs that are small integers

    def __str__(self) -> str:
        lines = [f"recipe({', '.join(f'v{i}: {t}' for i, t in enumerate(self.inputs))})"]
        number = len(self.inputs)
        for step in self.steps:
            names = ", ".join(f"v{number + i}: {t}" for i, t in enumerate(step.results))
            number += len(step.results)
            lines.append(f"  {names} = {step}".replace("\n", "\n  "))
        lines.append(f"  return {', '.join(f'v{i}' for i in self.outputs)}")
        return "\n".join(lines)

    @property
    def types(self) -> list[ArrayType]:
        """The type of every value."""
        return [*self.inputs, *(type for step in self.steps for type in step.results)]

    @property
    def all_steps(self) -> Iterator[Step]:
        """All steps, those of nested recipes included."""
        for step in self.steps:
            yield step
            for inner in step.inner:
                yield from inner.all_steps


def random_array(rng: np.random.Generator, type: ArrayType, integers: bool) -> np.ndarray:
    """Return an array of small integers, or of numbers between -3 and 3."""
    if type.dtype == BOOL:
        return rng.random(type.shape) < 0.5
    if integers:
        return rng.integers(-3, 4, type.shape).astype(type.dtype)
    return (rng.random(type.shape) * 6 - 3).astype(type.dtype)


def has_narrow_floats(recipe: Recipe) -> bool:
    """Return whether any value is a bfloat16, which needs a wider tolerance."""
    made = (type for step in recipe.all_steps for type in step.results)
    return any(short_name(type.dtype) == "bf16" for type in (*recipe.inputs, *made))

"""StageUpdate: the programs of one stage that compute what a training step does after its gradients.

There is a program for each level. The last one returns the stage's results; each other returns vectors of the values
that the stages exchange before the next level. A program computes again what earlier ones have computed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.jit import jit
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.transforms.replay import for_each_equation
from shardwise.parallel.mpmd.update_homes import EVERYWHERE, LAYERS, UpdateHomes

Vectors = list[Any]  # the values that a stage exchanges at one level, one vector per dtype


@final
class StageUpdate:
    """The programs of a stage.

    Attributes:
        inputs: the indices of the inputs of the step's program that the stage reads.
        outputs: the indices of its results that the stage computes.

    Args:
        program: the program of the step, for the layers of all stages.
        own: the program of the step for the layers of this stage.
        homes: where values are computed.
        output_homes: where results are.
        stage: the number of this stage.
        name: the name of the step.
    """

    def __init__(
        self,
        program: Program,
        own: Program,
        homes: UpdateHomes,
        output_homes: Sequence[int | str],
        stage: int,
        name: str,
    ):
        self._program = program
        self._own = own
        self._homes = homes
        self._stage = stage
        self._name = f"{name}_stage{stage}"
        local = (LAYERS, EVERYWHERE, stage)
        self.inputs = [
            index for index, home in enumerate(homes.inputs) if home in local and program.inputs[index] in program.used
        ]
        self.outputs = [index for index, home in enumerate(output_homes) if home in local]
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def vector_types(self, level: int) -> list[ArrayType]:
        """Return the types of the vectors that the program of a level returns."""
        return _vector_types(self._exchanged(level + 1, self._stage))

    def exchange(
        self, level: int, inputs: Sequence[Any], received: Sequence[Sequence[Vectors]], vector: Sharding
    ) -> Vectors:
        """Run the program of a level but the last.

        Args:
            level: the level.
            inputs: the arrays that the stage reads.
            received: for each level before, the vectors of all stages.
            vector: the sharding of the results.
        """
        key = level, vector
        if key not in self._compiled:

            def run(inputs: Sequence[Any], received: Sequence[Sequence[Vectors]]) -> Vectors:
                return _pack(self._exchanged(level + 1, self._stage), self._evaluate(inputs, received))

            run.__name__ = run.__qualname__ = f"{self._name}_exchange{level}"
            self._compiled[key] = jit(run, out_shardings=vector)
        result: Vectors = self._compiled[key](list(inputs), list(received))
        return result

    def results(
        self,
        inputs: Sequence[Any],
        received: Sequence[Sequence[Vectors]],
        shardings: Sequence[Sharding | None],
        donated: Sequence[bool],
    ) -> list[Any]:
        """Run the program of the last level.

        Args:
            inputs: the arrays that the stage reads.
            received: for each level before, the vectors of all stages.
            shardings: the shardings of the results; None for any.
            donated: for each of the inputs, whether its memory may be used for the results.
        """
        key = tuple(shardings), tuple(donated)
        if key not in self._compiled:
            targets = [self._program.outputs[index] for index in self.outputs]

            def run(given: dict[int, Any], kept: dict[int, Any], received: Sequence[Sequence[Vectors]]) -> list[Any]:
                env = self._evaluate([value for _, value in sorted({**given, **kept}.items())], received)
                return env(targets)

            run.__name__ = run.__qualname__ = f"{self._name}_update"
            self._compiled[key] = jit(run, out_shardings=list(shardings), donate_argnums=(0,))
        given = {index: x for index, (x, is_donated) in enumerate(zip(inputs, donated, strict=True)) if is_donated}
        kept = {index: x for index, x in enumerate(inputs) if index not in given}
        results: list[Any] = self._compiled[key](given, kept, list(received))
        return results

    def _exchanged(self, level: int, stage: int) -> list[Value]:
        """Return the values that a stage computes for the programs of a level."""
        return [
            value
            for value, exchange in self._homes.exchanges.items()
            if exchange.level == level and exchange.home in (LAYERS, stage)
        ]

    def _evaluate(
        self, inputs: Sequence[Any], received: Sequence[Sequence[Vectors]]
    ) -> Callable[[Sequence[Value]], list[Any]]:
        """Return a function that computes values in the open frame."""
        env = {self._program.inputs[index]: x for index, x in zip(self.inputs, inputs, strict=True)}
        for level, vectors in enumerate(received, start=1):
            env.update(self._combined(level, vectors))

        def values(targets: Sequence[Value]) -> list[Any]:
            needed = set(targets).difference(env)
            equations: list[tuple[Equation, Equation]] = []
            for one, own in zip(reversed(self._program.equations), reversed(self._own.equations), strict=True):
                if not needed.isdisjoint(one.outputs):
                    equations.append((one, own))
                    needed.update(value for value in one.inputs if value not in env)
            chosen = {one: own for one, own in equations if self._homes.is_by_layer(one)}

            def emit(equation: Equation) -> None:
                op = chosen.get(equation, equation).op
                found = op(*(env[value] for value in equation.inputs))
                results = (found,) if op.single else found
                for value, result in zip(equation.outputs, results, strict=True):
                    env.setdefault(value, result)

            for_each_equation([one for one, _ in reversed(equations)], emit)
            return [env[value] for value in targets]

        return values

    def _combined(self, level: int, vectors: Sequence[Vectors]) -> Iterator[tuple[Value, Any]]:
        """Yield the values of a level, from the vectors of all stages."""
        by_stage = [_unpack(self._exchanged(level, stage), each) for stage, each in enumerate(vectors)]
        for value in dict.fromkeys(value for each in by_stage for value in each):
            parts = [each[value] for each in by_stage if value in each]
            reduction = self._homes.exchanges[value].reduction
            yield value, parts[0] if reduction is None else reduce(getattr(jnp, reduction.ufunc.__name__), parts)


def _by_dtype(values: Sequence[Value]) -> list[tuple[DType, list[Value]]]:
    dtypes = dict.fromkeys(value.type.dtype for value in values)
    return [(dtype, [value for value in values if value.type.dtype == dtype]) for dtype in dtypes]


def _vector_types(values: Sequence[Value]) -> list[ArrayType]:
    return [ArrayType((sum(value.type.size for value in group),), dtype) for dtype, group in _by_dtype(values)]


def _pack(values: Sequence[Value], evaluate: Callable[[Sequence[Value]], list[Any]]) -> Vectors:
    """Return values as one vector per dtype."""
    arrays = dict(zip(values, evaluate(values), strict=True))
    return [jnp.concatenate([jnp.ravel(arrays[value]) for value in group]) for _, group in _by_dtype(values)]


def _unpack(values: Sequence[Value], vectors: Vectors) -> dict[Value, Any]:
    """Return the values of one vector per dtype."""
    found = {}
    for vector, (_, group) in zip(vectors, _by_dtype(values), strict=True):
        ends = np.cumsum([value.type.size for value in group])[:-1]
        for value, part in zip(group, jnp.split(vector, ends), strict=True):
            found[value] = part.reshape(value.type.shape)
    return found

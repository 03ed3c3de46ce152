"""Random ops and random programs on meshes with Explicit axes: `python -m tests.fuzz.explicit [--cases N] [--seed N]`.

A program is a recipe of the fuzzer. Its arguments have shardings in their types. Where the rule refuses a step, its
operands are replicated first, as the error advises; carries and the results of branches are resharded to one type. The
results equal those of one device, gradients have the types of cotangents, and tangents those of their primals.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, final

import numpy as np

import shardwise
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.compiler.shardings.spec import UNCONSTRAINED, spec_of
from shardwise.compiler.trace.build import build
from shardwise.errors import ShardingTypeError
from shardwise.execute.executor import as_array
from shardwise.sharding import NamedSharding
from tests.compiler.ops.cases import Case as OpCase
from tests.explicit.samples import Sample, check_sample, random_sample, sampled_cases
from tests.fuzz.campaign import campaign_parser, run_campaign
from tests.fuzz.check import Case, Judge, Mismatch, lifted, random_case
from tests.fuzz.control import Typing, apply_step
from tests.fuzz.layouts import Spec
from tests.fuzz.recipe import Constrain, Step


@final
class ExplicitTyping(Typing):
    """Replicates the operands of a step that the rule of explicit types refuses, as its error advises."""

    def apply(self, step: Step, xs: list[Any], constrain: Constrain) -> Any:
        try:
            return apply_step(step, xs, constrain)
        except ShardingTypeError:
            return apply_step(step, [_replicated(x) for x in xs], constrain)

    def like(self, results: Sequence[Any], examples: Sequence[Any]) -> list[Any]:
        """Return results with the shardings of the examples; with that of None, replicated."""
        return [
            reshard_to(x, example.type.explicit if isinstance(example, Array) else None) if isinstance(x, Array) else x
            for x, example in zip(results, examples, strict=True)
        ]

    def unsharded_rows(self, xs: Sequence[Any]) -> list[Any]:
        return [reshard_to(x, x.type.without((0,)).with_dim(0, x.type.shape[0]).explicit) for x in xs]


def _replicated(x: Any) -> Any:
    return reshard_to(x, None) if isinstance(x, Array) else x


@final
@dataclass(frozen=True)
class ExplicitCase:
    """A case of the fuzzer with a type for each mesh axis."""

    case: Case
    axis_types: tuple[AxisType, ...]

    def __str__(self) -> str:
        return f"axis types {', '.join(kind.name for kind in self.axis_types)}, {self.case}"

    @property
    def mesh(self) -> AbstractMesh:
        return AbstractMesh(tuple(self.case.mesh.values()), tuple(self.case.mesh), axis_types=self.axis_types)

    @property
    def mapped_axes(self) -> tuple[str, ...]:
        """The axes of the mapped dims of vmap, which no other dim has."""
        dims = zip(self.case.in_specs, self.case.batch, strict=True) if self.case.kind == "vmap" else ()
        return next((axes_of(spec)[dim] for spec, dim in dims if dim is not None), ())

    @property
    def in_layouts(self) -> list[Layout]:
        """The layouts of the inputs."""
        batch = self.case.batch or (None,) * len(self.case.in_specs)
        return [
            Layout(
                tuple(
                    self.mapped_axes if index == dim else axes
                    for index, axes in enumerate(without_axes(axes_of(spec), self.mapped_axes))
                )
            )
            for spec, dim in zip(self.case.in_specs, batch, strict=True)
        ]

    @property
    def in_types(self) -> list[ArrayType]:
        return [
            type.with_explicit(ExplicitSharding.from_dims(self.mesh, layout.dims))
            for type, layout in zip(self.case.in_types, self.in_layouts, strict=True)
        ]

    def function(self, mesh: Mesh | AbstractMesh) -> Callable[..., tuple[Any, ...]]:
        """Return the function of the case. Where it constrains values, it reshards them on `mesh`."""

        def constrain(x: Any, spec: Spec) -> Any:
            axes = without_axes(axes_of(spec), self.mapped_axes)
            return reshard_to(x, ExplicitSharding.from_dims(mesh, axes)) if isinstance(x, Array) else x

        return self.case.function(constrain, ExplicitTyping())

    def trace(self) -> tuple[Program, list[Any]]:
        """Return the program with explicit types, and the arrays that it closes over."""
        return lifted(*build(self.function(self.mesh), self.in_types, "fuzzed"))


def axes_of(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each dim."""
    return tuple(
        () if entry is None or entry is UNCONSTRAINED else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in spec
    )


def without_axes(dims: tuple[tuple[str, ...], ...], axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each dim except for `axes`."""
    return tuple(tuple(axis for axis in of_dim if axis not in axes) for of_dim in dims)


def random_program(seed: int) -> ExplicitCase:
    """Return the program of this seed."""
    case = random_case(seed)
    rng = Random(f"{seed} axis types")
    kinds = [AxisType.Explicit, *rng.choices((AxisType.Explicit, AxisType.Auto), k=len(case.mesh) - 1)]
    return ExplicitCase(case, tuple(rng.sample(kinds, len(kinds))))


def check_program(explicit: ExplicitCase) -> None:
    """Raise an exception if a result differs from that of one device, or a derivative has another type."""
    with np.errstate(all="ignore"):
        case = explicit.case
        reference, constants = case.traced
        judge = Judge(case, reference, [*case.args, *map(np.asarray, constants)])
        program, captured = explicit.trace()
        check_derivative_types(explicit, program)
        pins = [Pin(layout) for layout in explicit.in_layouts]
        pins += [Pin(Layout.replicated(np.ndim(array))) for array in captured]
        stages = run_stages(program, explicit.mesh, pins, [None] * len(program.outputs))
        judge("simulate", evaluate_shards(stages.local, [*case.args, *map(np.asarray, captured)]), stages.local)


def check_on_devices(explicit: ExplicitCase) -> None:
    """Raise an exception if `jit` on devices computes other results than one device."""
    case = explicit.case
    devices = np.array(shardwise.devices()[: explicit.mesh.size], object).reshape(explicit.mesh.axis_sizes)
    mesh = Mesh(devices, explicit.mesh.axis_names, axis_types=explicit.axis_types)
    with np.errstate(all="ignore"):
        reference, constants = case.traced
        judge = Judge(case, reference, [*case.args, *map(np.asarray, constants)])
        args = [
            shardwise.device_put(arg, NamedSharding(mesh, spec_of(layout)))
            for arg, layout in zip(case.args, explicit.in_layouts, strict=True)
        ]
        results = shardwise.jit(explicit.function(mesh))(*args)
        judge("jit", [np.asarray(as_array(x)) for x in results], None)


def check_derivative_types(explicit: ExplicitCase, program: Program) -> None:
    """Check that gradients have the shardings of their arguments, and tangents those of their primals."""
    case, types = explicit.case, program.out_types
    if case.kind == "grad":
        floats = [
            type for type, plain in zip(explicit.in_types, case.in_types, strict=True) if plain.dtype.kind in "fV"
        ]
        pairs = list(zip(types[1:], floats, strict=True))
    elif case.kind == "jvp":
        primals = [types[number] for number in case.float_outputs]
        pairs = list(zip(types[len(case.recipe.outputs) :], primals, strict=True))
    else:
        return
    for derivative, primal in pairs:
        if derivative.explicit != primal.explicit:
            raise Mismatch(f"a derivative has type {derivative}, its primal {primal}")


@lru_cache(maxsize=1)
def cases_by_op() -> dict[str, list[OpCase]]:
    """Return the cases of each op, by its name."""
    cases: dict[str, list[OpCase]] = {}
    for case in sampled_cases():
        cases.setdefault(case.op.name, []).append(case)
    return dict(sorted(cases.items()))


def random_application(seed: int) -> Sample:
    """Return the sample of an op of this seed."""
    rng = Random(seed)
    return random_sample(rng, rng.choice(rng.choice(list(cases_by_op().values()))))


def main(arguments: list[str] | None = None) -> int:
    options = campaign_parser("tests.fuzz.explicit", __doc__).parse_args(arguments)
    return run_campaign(options, [(random_application, check_sample), (random_program, check_program)])


if __name__ == "__main__":
    sys.exit(main())

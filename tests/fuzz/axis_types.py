"""Random programs on meshes with Explicit axes, some of which `auto_axes` leaves to the planner inside.

All axes       the plan has the collectives of a plan for Auto axes with the same pins
Some axes      along the others, types decide inside; the results equal those of one device in any case
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import Stages, run_stages
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.report.report import report
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, mesh_context
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build, rewrite
from shardwise.compiler.transforms.replay import replay
from shardwise.errors import ShardingError
from shardwise.lax import with_sharding_constraint
from shardwise.sharding import NamedSharding, PartitionSpec, auto_axes, use_abstract_mesh
from tests.fuzz.check import Case, Judge, Mismatch
from tests.fuzz.explicit import ExplicitCase, ExplicitTyping, axes_of, without_axes
from tests.fuzz.layouts import Spec, abstract, partition_spec, random_spec


def explicit_mesh(case: Case) -> AbstractMesh:
    return AbstractMesh(tuple(case.mesh.values()), tuple(case.mesh), axis_types=AxisType.Explicit)


def typed_arguments(case: Case, mesh: AbstractMesh) -> list[Any]:
    """Return the types of the arguments with the shardings of their specs."""
    shardings = [ExplicitSharding.from_dims(mesh, axes_of(spec)) for spec in case.in_specs]
    return [type.with_explicit(sharding) for type, sharding in zip(case.in_types, shardings, strict=True)]


def check_all_axes(case: Case) -> None:
    """Raise an exception if `auto_axes` along all axes has another plan than Auto axes with the same pins."""
    mesh, auto = explicit_mesh(case), abstract(case.mesh)
    reference, constants = case.traced
    rng = Random(f"{case.seed} all axes")
    out_specs = [partition_spec(random_spec(rng, type.shape, case.mesh)) for type in reference.out_types]

    def constrain(x: Any, spec: Spec) -> Any:
        return with_sharding_constraint(x, NamedSharding(auto, partition_spec(spec)))

    shardings = tuple(NamedSharding(mesh, spec) for spec in out_specs)
    with use_abstract_mesh(mesh):
        function = auto_axes(case.function(constrain), out_sharding=shardings)
        program, captured = build(function, typed_arguments(case, mesh), "fuzzed")
    pins = [
        pin_of(partition_spec(spec), type.shape, auto) for spec, type in zip(case.in_specs, case.in_types, strict=True)
    ]
    out_pins = [pin_of(spec, type.shape, auto) for spec, type in zip(out_specs, reference.out_types, strict=True)]
    planned = run_stages(
        constrained_results(reference, auto, out_pins), auto, [*pins, *replicated(constants)], out_pins
    )
    typed = run_stages(verify(program), mesh, [*pins, *replicated(captured)], [None] * len(program.outputs))
    judge(case, typed, captured)
    if all_planned(typed) and collectives(typed) != collectives(planned):
        raise Mismatch(f"auto_axes: {collectives(typed)}, Auto axes: {collectives(planned)}")


def constrained_results(program: Program, mesh: AbstractMesh, pins: Sequence[Pin]) -> Program:
    """Return the program with a constraint on each result, as `out_sharding` is one."""

    def body(*args: Any) -> list[Any]:
        results = zip(replay(program, args), pins, strict=True)
        return [Constrain(pin.layout.dims, mesh)(x) for x, pin in results]

    return rewrite(program.name, program.in_types, body)


def check_some_axes(case: Case) -> None:
    """Raise an exception if a result differs from that of one device."""
    mesh = explicit_mesh(case)
    rng = Random(f"{case.seed} some axes")
    axes = tuple(rng.sample(mesh.axis_names, rng.randint(1, len(mesh.axis_names))))

    explicit = ExplicitCase(case, mesh.axis_types)

    def constrain(x: Any, spec: Spec) -> Any:
        if not isinstance(x, Array) or mesh_context.mesh is None:
            return x
        dims = without_axes(axes_of(spec), explicit.mapped_axes)
        return reshard_to(x, ExplicitSharding.from_dims(mesh_context.mesh, dims, scoped=mesh_context.scoped))

    with use_abstract_mesh(mesh):
        function = auto_axes(case.function(constrain, ExplicitTyping()), axes=axes, out_sharding=PartitionSpec())
        try:
            program, captured = build(function, explicit.in_types, "fuzzed")
        except ShardingError as error:
            if "every device needs every slice along it" in str(error):  # scan refuses a sharded dim 0
                return
            raise
    pins = [*map(Pin, explicit.in_layouts), *replicated(captured)]
    judge(case, run_stages(verify(program), mesh, pins, [None] * len(program.outputs)), captured)


def judge(case: Case, stages: Stages, captured: list[Any]) -> None:
    """Compare the results of all devices with those of one."""
    reference, constants = case.traced
    compare = Judge(case, reference, [*case.args, *map(np.asarray, constants)])
    compare("simulate", evaluate_shards(stages.local, [*case.args, *map(np.asarray, captured)]), stages.local)


def all_planned(stages: Stages) -> bool:
    """Return whether the planner decides for all values: it does not for those that depend on no argument."""
    values = [value for equation in stages.problem.planned for value in equation.outputs]
    return all(value in stages.problem.shardings for value in values)


def replicated(arrays: list[Any]) -> list[Pin]:
    return [Pin(Layout.replicated(np.ndim(array))) for array in arrays]


def collectives(stages: Stages) -> list[tuple[Any, ...]]:
    """Return the collectives of a plan, in any order."""
    rows = report(stages.problem, stages.plan, stages.local, CPU).collectives
    return sorted((row.kind, row.axes, row.times, row.sent) for row in rows)

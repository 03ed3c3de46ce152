"""Run programs with manual regions through the compiler stages that need no devices; nothing is compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import Stages, run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of
from shardwise.compiler.trace.build import build


def trace_and_partition(
    function: Callable[..., Sequence[Any]], args: Sequence[np.ndarray], mesh: AbstractMesh, specs: Sequence[Any]
) -> tuple[Program, Stages, list[np.ndarray]]:
    """Trace and partition a function of arrays that are sharded by `specs`.

    Returns:
        The program, its stages, and their arguments: `args` and the captured constants.
    """
    program, captured = build(function, [ArrayType(x.shape, x.dtype) for x in args], "staged")
    all_specs = [*specs, *[()] * len(captured)]
    pins = [pin_of(PartitionSpec(*s), t.shape, mesh) for s, t in zip(all_specs, program.in_types, strict=True)]
    stages = run_stages(program, mesh, pins, [None] * len(program.outputs))
    return program, stages, [*args, *map(np.asarray, captured)]


def simulated(function: Callable[..., Any], mesh: AbstractMesh, *args: Any) -> Any:
    """Return the results of a function of pytrees, simulated in numpy on the devices of a mesh."""
    leaves, structure = tree.flatten(args)
    results: Any = None

    def flat(*tracers: Any) -> list[Any]:
        nonlocal results
        flat_results, results = tree.flatten(function(*structure.unflatten(tracers)))
        return flat_results

    arrays = [np.asarray(leaf) for leaf in leaves]
    _, stages, stage_args = trace_and_partition(flat, arrays, mesh, [()] * len(arrays))
    return results.unflatten(list(evaluate_shards(stages.local, stage_args)))

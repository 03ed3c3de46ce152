"""PlannedProgram: a program of a stage, planned for hardware that need not be present."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

from shardwise import tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.base.config import config
from shardwise.compiler.plan.chip import Chip
from shardwise.execute.executor import LoweredRequest
from shardwise.explain.plan import prepare


@final
class PlannedProgram(NamedTuple):
    """A planned program.

    Attributes:
        prepared: the program at every compiler stage.
        results: the types of its results, with the shardings that the planner chose.
    """

    prepared: LoweredRequest
    results: Any


def plan_program(function: Callable[..., Any], arguments: tuple[Any, ...], chip: Chip) -> PlannedProgram:
    """Plan a program.

    Args:
        function: the jitted function.
        arguments: the types of its arguments, with shardings.
        chip: the hardware to plan for.
    """
    prepared = prepare(function, arguments, {}, chip)
    with config.override("target_platform", chip.platform):  # attention has other residuals on other platforms
        types, structure = tree_util.tree_flatten(eval_shape(function, *arguments))
    results = [
        ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding)
        for type, sharding in zip(types, prepared.out_shardings, strict=True)
    ]
    return PlannedProgram(prepared, tree_util.tree_unflatten(structure, results))

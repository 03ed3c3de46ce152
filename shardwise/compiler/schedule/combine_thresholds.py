"""combine_thresholds: the compiler options that keep XLA from merging launches beyond those of the schedule.

XLA merges collectives of one kind, over all of a program, up to a size. The merged launch starts when its last operand
is ready: the gradients of several layers would be reduced at the end, with no kernel left that could hide them. A
launch of all-gathers is one op of the module, and so is one of all-reduces outside of loops: XLA must merge none of
these. A StableHLO reduce-scatter has one operand, and an all-reduce in a loop is lowered with one: XLA merges those of
a launch, and the size of the largest such launch is the threshold.
"""

from collections.abc import Iterator

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.platform_memory import is_loop

_OPTION = "xla_gpu_{}_combine_threshold_bytes"
_ALL_REDUCE, _REDUCE_SCATTER = "all_reduce", "reduce_scatter"
_KINDS = ("all_gather", _ALL_REDUCE, _REDUCE_SCATTER)


def combine_thresholds(local: LocalProgram) -> dict[str, int]:
    """Return the options of XLA's GPU compiler for a scheduled program, by name.

    XLA counts the bytes of the results of a launch, on one device.
    """
    kinds = {equation.op.name for equation in local.collectives()}
    largest = dict.fromkeys(_KINDS, 0)
    for equation in _merged_by_xla(local):
        size = sum(each.outputs[0].type.nbytes for each in local.launches.get(equation, (equation,)))
        largest[equation.op.name] = max(largest[equation.op.name], size)
    return {_OPTION.format(kind): largest[kind] for kind in _KINDS if kind in kinds}


def _merged_by_xla(local: LocalProgram) -> Iterator[Equation]:
    """Yield the collectives that are lowered to an op each, and whose launches XLA merges."""
    bodies = [body for equation in local.program.walk() if is_loop(equation.op) for body in equation.op.programs]
    in_loops = {equation for body in bodies for equation in body.walk()}
    for equation in local.collectives():
        if equation.op.name == _REDUCE_SCATTER or (
            equation.op.name == _ALL_REDUCE and equation in in_loops and equation in local.launches
        ):
            yield equation

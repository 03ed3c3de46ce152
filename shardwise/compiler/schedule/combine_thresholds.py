"""combine_thresholds: the compiler options that keep XLA from merging launches beyond those of the schedule.

XLA merges collectives of one kind, over all of a program, up to a size. The merged launch starts when its last operand
is ready: the gradients of several layers would be reduced at the end, with no kernel left that could hide them. All
launches with several gathers or all-reduces are one op of the module, so XLA merges none of these. A StableHLO
reduce-scatter has one operand: XLA merges those of a launch, and the size of the largest launch is its threshold.
"""

from shardwise.compiler.partition.local_program import LocalProgram

_OPTION = "xla_gpu_{}_combine_threshold_bytes"
_ONE_OPERAND = "reduce_scatter"
_KINDS = ("all_gather", "all_reduce", _ONE_OPERAND)


def combine_thresholds(local: LocalProgram) -> dict[str, int]:
    """Return the options of XLA's GPU compiler for a scheduled program, by name.

    XLA counts the bytes of the results of a launch, on one device.
    """
    kinds = {equation.op.name for equation in local.collectives()}
    sizes = [
        sum(each.outputs[0].type.nbytes for each in local.launches.get(equation, (equation,)))
        for equation in local.collectives()
        if equation.op.name == _ONE_OPERAND
    ]
    return {_OPTION.format(kind): max(sizes) if kind == _ONE_OPERAND else 0 for kind in _KINDS if kind in kinds}

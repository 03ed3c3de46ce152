"""Remat prefetch: gather the weights of rematerialized layers one layer earlier.

`checkpoint` puts a barrier before a layer's rematerialization. It waits for the cotangent of the layer's result, so
that XLA does not rematerialize all layers at once. The layer's weights pass through the same barrier, and their gathers
wait for it too, although weights depend on nothing but arguments. This pass moves the weights to the barrier of the
preceding layer: the gathers then overlap with that layer's kernels, and CSE still does not merge them with those of the
forward pass.
"""

from collections.abc import Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.schedule.kernel_graph import KernelGraph


def prefetch_for_remat(graph: KernelGraph) -> Program:
    """Return the program in which weights that are gathered after a remat barrier pass through the preceding one.

    It is the program itself if there are none.
    """
    program = graph.program
    if not any(map(_is_remat_barrier, program.equations)):
        return program
    sent = _sent(graph)
    weights = set(program.inputs)  # so far: arguments, and what only moves their elements or sends them
    known: set[Value] = set()  # the weights before the preceding barrier
    groups: list[list[Equation]] = []
    preceding: list[Equation] | None = None  # the last barrier with an operand that is no weight; one of `groups`
    has_moved = False
    for group in graph.groups:
        kept = group
        if group[0].op.fusion.is_barrier and are_remat_barriers(group):
            early = [equation for equation in group if equation.inputs[0] in known and equation.outputs[0] in sent]
            if early and preceding is not None and len(early) < len(group):
                has_moved = True
                preceding += early
                kept = [equation for equation in group if equation not in early]
            if any(equation.inputs[0] not in weights for equation in kept):
                preceding = kept = list(kept)  # the groups of the graph are not changed
                known = set(weights)
        else:
            for equation in group:
                if _moves(equation, weights):
                    weights.update(equation.outputs)
        groups.append(kept)
    if not has_moved:
        return program
    return program.with_equations(equation for group in groups for equation in group)


def are_remat_barriers(group: Sequence[Equation]) -> bool:
    """Return whether all these equations are barriers that `checkpoint` inserted."""
    return all(map(_is_remat_barrier, group))


def _is_remat_barrier(equation: Equation) -> bool:
    return isinstance(equation.op, Barrier) and equation.op.before_recomputation


def _moves(equation: Equation, weights: set[Value]) -> bool:
    """Return whether an equation only moves the elements of weights, on a device or between devices."""
    return (equation.op.only_moves or isinstance(equation.op, Collective)) and weights.issuperset(equation.inputs)


def _sent(graph: KernelGraph) -> set[Value]:
    """Return the operands of collectives, and the operands of short kernels before them, such as casts."""
    sent: set[Value] = set()
    for equation in reversed(graph.program.equations):
        if equation in graph.bits or (not sent.isdisjoint(equation.outputs) and equation in graph.movable):
            sent.update(equation.inputs)
    return sent

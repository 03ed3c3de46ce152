"""Remat prefetch: gather the weights of rematerialized layers one layer earlier.

`checkpoint` puts a barrier before a layer's rematerialization. It waits for the cotangent of the layer's result, so
that XLA does not rematerialize all layers at once. The layer's weights pass through the same barrier, and their gathers
wait for it too, although they depend on nothing but arguments. This pass moves the weights to the barrier of the
preceding layer: the gathers then overlap with that layer's kernels, and CSE still does not merge them with those of the
forward pass.
"""

from collections.abc import Sequence

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.schedule.kernel_graph import KernelGraph


def prefetch_for_remat(graph: KernelGraph) -> Program:
    """Return the program in which arguments that are gathered after a remat barrier pass through the preceding one."""
    program = graph.program
    if not any(map(_is_remat_barrier, program.equations)):
        return program
    sent = _sent(graph)
    arguments = set(program.inputs)
    groups: list[list[Equation]] = []
    preceding: list[Equation] | None = None  # the last barrier with an operand that is no argument; one of `groups`
    for group in graph.groups:
        kept = group
        if are_remat_barriers(group):
            early = [equation for equation in group if equation.inputs[0] in arguments and equation.outputs[0] in sent]
            if preceding is not None and len(early) < len(group):
                preceding += early
                kept = [equation for equation in group if equation not in early]
            if any(equation.inputs[0] not in arguments for equation in kept):
                preceding = kept = list(kept)  # the groups of the graph are not changed
        groups.append(kept)
    return program.with_equations(equation for group in groups for equation in group)


def are_remat_barriers(group: Sequence[Equation]) -> bool:
    """Return whether all these equations are barriers that `checkpoint` inserted."""
    return all(map(_is_remat_barrier, group))


def _is_remat_barrier(equation: Equation) -> bool:
    return isinstance(equation.op, Barrier) and equation.op.before_recomputation


def _sent(graph: KernelGraph) -> set[Value]:
    """Return the operands of collectives, and the operands of short kernels before them, such as casts."""
    sent: set[Value] = set()
    for equation in reversed(graph.program.equations):
        if equation in graph.bits or (not sent.isdisjoint(equation.outputs) and equation in graph.movable):
            sent.update(equation.inputs)
    return sent

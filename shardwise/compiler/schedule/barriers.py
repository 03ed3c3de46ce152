"""barriers: let the gathers of recomputed layers start one layer earlier.

`checkpoint` puts a barrier before a layer's recomputation. It waits for the cotangent of the layer's result, so that
XLA does not recompute all layers at once. The layer's weights pass through the same barrier, and their gathers wait for
it too, although they need nothing but arguments. Here, the weights pass through the barrier of the layer before
instead: the gathers then run beside that layer's kernels, and are still not merged with those of the forward pass.
"""

from collections.abc import Sequence

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.schedule.kernel_graph import is_movable


def advance_barriers(local: LocalProgram, program: Program) -> Program:
    """Return the program in which arguments that are gathered after a barrier pass through the barrier before it."""
    if not any(map(_is_checkpoint_barrier, program.equations)):
        return program
    sent = _sent(local, program)
    arguments = set(program.inputs)
    groups: list[list[Equation]] = []
    before: list[Equation] | None = None  # the last barrier that waits for more than arguments; one of `groups`
    for group in issue_groups(program):
        kept = group
        if is_before_recomputation(group):
            early = [equation for equation in group if equation.inputs[0] in arguments and equation.outputs[0] in sent]
            if before is not None and len(early) < len(group):
                before += early
                kept = [equation for equation in group if equation not in early]
            if any(equation.inputs[0] not in arguments for equation in kept):
                before = kept
        groups.append(kept)
    return program.with_equations(equation for group in groups for equation in group)


def is_before_recomputation(group: Sequence[Equation]) -> bool:
    """Return whether `checkpoint` inserted all these equations, as barriers."""
    return all(map(_is_checkpoint_barrier, group))


def _is_checkpoint_barrier(equation: Equation) -> bool:
    return isinstance(equation.op, Barrier) and equation.op.before_recomputation


def _sent(local: LocalProgram, program: Program) -> set[Value]:
    """Return the values that a collective sends, directly or after short kernels, such as a cast."""
    sent: set[Value] = set()
    for equation in reversed(program.equations):
        if local.bytes_sent(equation) or (is_movable(local, equation) and not sent.isdisjoint(equation.outputs)):
            sent.update(equation.inputs)
    return sent

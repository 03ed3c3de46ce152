"""split_norms: let the kernel that rounds normalized rows to float8 compute them.

The kernel of a norm then adds the residual and writes two numbers per row, and not the normalized rows, if they are
only rounded, as before products. The elementwise ops that compute them become the prologue of the kernel that rounds,
by the pass `fuse_quantize`.
"""

from collections import Counter

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.kernels.norm import Norm
from shardwise.compiler.lower.fuse_quantize import can_be_fused
from shardwise.compiler.lower.nested_programs import rewrite_nested_programs
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.inline import inline


@verifies_result
def split_norms(program: Program) -> Program:
    """Replace norms whose normalized rows are only rounded to float8 by kernels of their factors and elementwise ops.

    Args:
        program: the program of one device. Nested programs are rewritten too.

    Returns:
        The new program; `program` itself if there is no such norm.
    """
    program = rewrite_nested_programs(program, split_norms)
    uses = Counter(value for equation in program.equations for value in equation.inputs)
    uses.update(program.outputs)
    producers = program.producers()
    rounded: set[Value] = set()  # values that one kernel rounds, and nothing else reads
    for equation in program.equations:
        if can_be_fused(equation):
            value = equation.inputs[0]
            while uses[value] == 1 and (producer := producers.get(value)) is not None:
                rounded.add(value)
                if not isinstance(producer.op, StopGradient):
                    break
                (value,) = producer.inputs
    equations: list[Equation] = []
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Norm) and equation.outputs[-1] in rounded and _is_kernel(equation, op):
            equations += _split(equation, op)
        else:
            equations.append(equation)
    return program if len(equations) == len(program.equations) else program.with_equations(equations)


def _is_kernel(equation: Equation, op: Norm) -> bool:
    return not op.reason_for_plain_ops(*(value.type for value in equation.inputs))


def _split(equation: Equation, op: Norm) -> list[Equation]:
    """Return the equations that replace a norm."""
    program = inline(rewrite("norm", [value.type for value in equation.inputs], op.split))
    renamed = dict(zip(program.inputs, equation.inputs, strict=True))
    renamed |= dict(zip(program.outputs, equation.outputs, strict=True))
    return [
        equation.replace(
            op=each.op,
            inputs=[renamed.get(value, value) for value in each.inputs],
            outputs=[renamed.get(value, value) for value in each.outputs],
        )
        for each in program.equations
    ]

"""transpose_weights: let the kernel that rounds a weight to float8 write it transposed too, as the product reads it.

Products of float8 numbers read operands whose summed dims are minor in memory. A weight is rounded without a transposed
copy, so that a gather of it sends one byte per element, and XLA transposes it in a kernel of its own. This pass is for
weights that one device rounds and multiplies.
"""

from dataclasses import replace

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.lower.nested_programs import rewrite_nested_programs
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot


@verifies_result
def transpose_weights(program: Program) -> Program:
    """Replace operands of float8 products by transposed results of the kernels that round them.

    Args:
        program: the program of one device. Nested programs are rewritten too.

    Returns:
        The new program; `program` itself if there is no such operand.
    """
    program = rewrite_nested_programs(program, transpose_weights)
    kernels = {equation.outputs[0]: equation for equation in program.equations if isinstance(equation.op, Quantize)}
    transposed: dict[Value, Value] = {}
    rewritten: dict[Equation, Equation] = {}
    for equation in program.equations:
        op = equation.op
        if isinstance(op, ScaledDot):
            weight = equation.inputs[1]
            if weight in kernels and _can_be_transposed(op, kernels[weight].op):
                result = transposed.setdefault(weight, Value(_transposed_type(kernels[weight])))
                rewritten[equation] = _with_transposed_weight(equation, op, result)
    for weight, result in transposed.items():
        rewritten[kernels[weight]] = _with_transposed_result(kernels[weight], result)
    equations = [rewritten.get(equation, equation) for equation in program.equations]
    return program.with_equations(equations) if rewritten else program


def _can_be_transposed(dot: ScaledDot, kernel: Op) -> bool:
    """Return whether a product sums over the rows of its second operand, which a kernel could write transposed."""
    if not isinstance(kernel, Quantize) or kernel.transposes or kernel.batch or dot.batch[1]:
        return False
    return dot.contract[1] == tuple(range(kernel.rows))


def _transposed_type(equation: Equation) -> ArrayType:
    assert isinstance(equation.op, Quantize)
    op = replace(equation.op, transposes=True)
    return op.out_types(*(value.type for value in equation.inputs))[1]


def _with_transposed_result(equation: Equation, transposed: Value) -> Equation:
    """Return the equation of a kernel whose second result is the transpose."""
    assert isinstance(equation.op, Quantize)
    result, largest = equation.outputs
    return equation.replace(op=replace(equation.op, transposes=True), outputs=[result, transposed, largest])


def _with_transposed_weight(equation: Equation, op: ScaledDot, transposed: Value) -> Equation:
    """Return a product that sums over the last dims of its second operand."""
    x, _, *rest = equation.inputs
    ndim, count = transposed.type.ndim, len(op.contract[1])
    op = replace(op, contract=(op.contract[0], tuple(range(ndim - count, ndim))))
    return equation.replace(op=op, inputs=[x, transposed, *rest])

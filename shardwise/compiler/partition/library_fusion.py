"""library_fusion: the equations that XLA computes in one call of its library of reductions on CPU.

A call starts at a reduction and grows over neighbours, until none can join: an operand whose consumers are all in the
call, and the only consumer of the result. Products can join, too. XLA forms the calls before it fuses other ops, so a
call reads all other operands from memory, even values that would be computed again in a fused kernel.
"""

from collections.abc import Mapping, Sequence

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.shape.slicing import Concatenate

_ARITHMETIC = "abs add ceil convert div floor integer_pow max min mul neg one_minus_square relu round sign square sub"
_FUNCTIONS = "erf exp exp2 expm1 gelu log log1p log2 logistic pow rsqrt silu softplus sqrt tanh"
_OPS = {"broadcast", "full", "pad", *_ARITHMETIC.split(), *_FUNCTIONS.split()}
_LEAST_ELEMENTS = 4096  # of an operand or the result


def library_calls(program: Program, uses: Mapping[Value, Sequence[Equation]]) -> dict[Equation, Equation]:
    """Return the equations in calls with at least one reduction, each with the last equation of its call.

    Args:
        program: the program.
        uses: the consumers of each value.
    """
    producers = {value: equation for equation in program.equations for value in equation.outputs}
    outputs = set(program.outputs)
    calls: dict[Equation, Equation] = {}
    for equation in reversed(program.equations):
        if _is_reduction(equation) and equation not in calls:
            members, last = _grow(equation, uses, producers, outputs, calls)
            calls.update(dict.fromkeys(members, last))
    return calls


def _grow(
    start: Equation,
    uses: Mapping[Value, Sequence[Equation]],
    producers: Mapping[Value, Equation],
    outputs: set[Value],
    calls: Mapping[Equation, Equation],
) -> tuple[set[Equation], Equation]:
    """Return the equations of the call that starts at a reduction, and the last of them, whose result is stored."""
    members, last = {start}, start

    def can_join(equation: Equation | None) -> bool:
        return equation is not None and equation not in members and equation not in calls and _is_supported(equation)

    pending = [start]  # members whose operands are not examined yet
    while pending:
        for value in pending.pop().inputs:
            producer = producers.get(value)
            if can_join(producer) and value not in outputs and members.issuperset(uses[value]):
                assert producer is not None
                members.add(producer)
                pending.append(producer)
        if not pending:
            (result,) = last.outputs
            if result.type.size < _LEAST_ELEMENTS and concatenation_of(last, producers) is not None:
                continue
            consumers = uses.get(result, ())
            if result not in outputs and len(consumers) == 1 and can_join(consumers[0]):
                last = consumers[0]
                members.add(last)
                pending.append(last)
    return members, last


def concatenation_of(equation: Equation, producers: Mapping[Value, Equation]) -> Equation | None:
    """Return the concatenation along whose dim an equation reduces; None for other equations.

    XLA reduces each operand of the concatenation, and combines the results.
    """
    if not equation.op.reduced_dims:
        return None
    producer = producers.get(equation.inputs[0])
    is_along = (
        producer is not None and isinstance(producer.op, Concatenate) and producer.op.dim in equation.op.reduced_dims
    )
    return producer if is_along else None


def _is_reduction(equation: Equation) -> bool:
    return equation.op.reduced_dims is not None and _is_supported(equation)


def _is_supported(equation: Equation) -> bool:
    """Return whether the library has an op: arithmetic of floats, broadcasts, reductions, products and views.

    XLA computes ops of few elements itself.
    """
    op, values = equation.op, (*equation.inputs, *equation.outputs)
    if len(equation.outputs) != 1 or not all(is_float(value.type.dtype) for value in values):
        return False
    if op.fusion.is_view or op.is_product:
        return True
    is_large = any(value.type.size >= _LEAST_ELEMENTS for value in values)
    return is_large and (op.name in _OPS or op.reduced_dims is not None)

"""may_differ: the axes along which the devices of a manual region can hold different values.

Types record over which axes a value varies, and derivatives rely on them. Some varying values are nevertheless equal on
all devices: results of all-gathers and reductions, and values computed from such results alone.
"""

from collections.abc import Iterable

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.collective.named import NamedIndex, NamedReduction
from shardwise.compiler.ops.collective.named_exchange import NamedAllGather, NamedExchangeOp
from shardwise.compiler.trace.tracer import Tracer


def may_differ(x: Tracer) -> frozenset[str]:
    """Return the axes along which devices may hold different values of the tracer `x`."""
    differing: dict[Value, frozenset[str]] = {}
    for equation in x.frame.equations:
        axes = _result_axes(equation, [differing.get(v, frozenset(v.type.varying)) for v in equation.inputs])
        differing.update((value, axes & frozenset(value.type.varying)) for value in equation.outputs)
    return differing.get(x.value, frozenset(x.type.varying))


def _result_axes(equation: Equation, operands: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the axes along which results may differ, given the axes along which each operand may differ."""
    axes = frozenset().union(*operands)
    match equation.op:
        case NamedAllGather(axes=named, groups=None) | NamedReduction(axes=named, groups=None):
            return axes - frozenset(named)
        case NamedIndex() | NamedExchangeOp() | NamedReduction():
            return axes | equation.op.axis_names
        case op:
            return axes.union(*(_introduced_axes(inner) for program in op.programs for inner in program.walk()))


def _introduced_axes(equation: Equation) -> frozenset[str]:
    """Return the axes along which the results of an equation may differ even if its operands are equal."""
    return equation.op.axis_names if isinstance(equation.op, (NamedIndex, NamedExchangeOp)) else frozenset()

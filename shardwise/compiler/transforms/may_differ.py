"""alike: whether devices of a manual region, each with a value of its own, can have different ones.

Types know that a value varies, and derivatives go by that. Some values that vary are the same all the same: what was
gathered from all devices, and what is made of that alone.
"""

from collections.abc import Iterable

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.collective.named import NamedIndex, NamedReduction
from shardwise.compiler.ops.collective.named_exchange import NamedAllGather, NamedExchangeOp
from shardwise.compiler.trace.tracer import Tracer


def may_differ(x: Tracer) -> frozenset[str]:
    """The axes along which devices may have different values of `x`, which is being traced."""
    found: dict[Value, frozenset[str]] = {}
    for equation in x.frame.equations:
        axes = _leaving(equation, [found.get(value, frozenset(value.type.varying)) for value in equation.inputs])
        found.update((value, axes & frozenset(value.type.varying)) for value in equation.outputs)
    return found.get(x.value, frozenset(x.type.varying))


def _leaving(equation: Equation, operands: Iterable[frozenset[str]]) -> frozenset[str]:
    axes = frozenset().union(*operands)
    match equation.op:
        case NamedAllGather(axes=named, groups=None) | NamedReduction(axes=named, groups=None):
            return axes - frozenset(named)
        case NamedIndex() | NamedExchangeOp() | NamedReduction():
            return axes | equation.op.axis_names
        case op:
            return axes.union(*(_own(inner) for program in op.programs for inner in program.walk()))


def _own(equation: Equation) -> frozenset[str]:
    """What an equation inside of a program can make differ that its operands do not."""
    return equation.op.axis_names if isinstance(equation.op, (NamedIndex, NamedExchangeOp)) else frozenset()

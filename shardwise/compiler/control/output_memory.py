"""out_kinds: the memory kind of each output of a program, including outputs that calls compute."""

from collections.abc import Sequence

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.placement.memory_space import DEVICE, InMemory
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full

_Kinds = dict[Value, str | None]


def out_kinds(program: Program, in_kinds: Sequence[str | None] | None = None) -> tuple[str | None, ...]:
    """Return the memory kind of each output of a program; None for the default memory.

    Args:
        program: the program.
        in_kinds: the memory kinds of its inputs, if results are in the memory of their operands, as in JAX. If it is
            None, results are in the default memory, except those of `in_memory`.

    Raises:
        ValueError: with `in_kinds`, if the operands of an op are in different memories.
    """
    kinds: _Kinds = {} if in_kinds is None else dict(zip(program.inputs, in_kinds, strict=True))
    scalars = {value for value in program.inputs if not value.type.ndim}  # values that are in any memory
    for equation in program.equations:
        if isinstance(equation.op, InMemory):
            is_default = in_kinds is not None and equation.op.kind == DEVICE
            kinds[equation.outputs[0]] = None if is_default else equation.op.kind
        elif isinstance(equation.op, Call):
            operands = None if in_kinds is None else [kinds.get(value) for value in equation.inputs]
            kinds.update(zip(equation.outputs, out_kinds(equation.op.program, operands), strict=True))
        elif in_kinds is not None:
            if isinstance(equation.op, (Full, Broadcast)) and scalars.issuperset(equation.inputs):
                scalars.update(equation.outputs)
            kinds.update(dict.fromkeys(equation.outputs, _common_kind(equation, kinds, scalars)))
            scalars.update(value for value in equation.outputs if not value.type.ndim)
    return tuple(kinds.get(value) for value in program.outputs)


def _common_kind(equation: Equation, kinds: _Kinds, scalars: set[Value]) -> str | None:
    """Return the memory kind of the operands of an equation that are not scalars, or constants of one value.

    The indices and updates of a scatter may be in any memory.
    """
    operands = equation.inputs[:1] if isinstance(equation.op, Scatter) else equation.inputs
    arrays = [value for value in operands if value not in scalars]
    for value in arrays[1:]:
        if kinds.get(value) != kinds.get(arrays[0]):
            first, second = (kinds.get(x) or "device memory" for x in (arrays[0], value))
            raise ValueError(
                f"{equation.op.name} at {equation.source}: the operands {arrays[0].type} and {value.type} are in "
                f"different memories, {first} and {second}. Move one of them: `device_put(x, memory.Space.Device)`. "
                "The setting jax_compatibility is 'exact': otherwise, operands are moved to device memory."
            )
    return kinds.get(arrays[0]) if arrays else None

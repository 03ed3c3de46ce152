"""inline_single_trips: replace a scan of length 1 by its body.

XLA inlines such loops too, but only after partitioning. Without them, the planner and the predictions of time and
memory see straight code, as it runs: no slice of an operand is copied, and no result is written to a stack. A scan that
slices or stacks values with Explicit shardings stays, because their types determine every reshard.
"""

from typing import final

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.movement import Reshape


@verifies_result
def inline_single_trips(program: Program) -> Program:
    """Inline the bodies of scans of length 1, including nested scans. Reshapes replace slicing and stacking.

    Args:
        program: a program in which every nested program is used once.

    Returns:
        The new program; `program` itself if it has no such scan.
    """
    inlined = _Inlined()
    for equation in program.equations:
        inlined.add(equation)
    if not inlined.is_changed:
        return program
    return program.with_equations(inlined.equations, [inlined.current(value) for value in program.outputs])


@final
class _Inlined:
    """The equations so far.

    Attributes:
        equations: the equations.
        is_changed: whether they differ from the equations of the program.
    """

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.is_changed = False
        self._current: dict[Value, Value] = {}  # the values that replace inputs of bodies and results of scans

    def current(self, value: Value) -> Value:
        return self._current.get(value, value)

    def add(self, equation: Equation) -> None:
        """Add an equation, or the body of a scan of length 1."""
        op = equation.op
        inputs = [self.current(value) for value in equation.inputs]
        if isinstance(op, Control) and op.stack_length == 1 and not _has_explicit_slices(op):
            self.is_changed = True
            self._add_body(equation, op, inputs)
            return
        op = op.map_programs(inline_single_trips)
        if op is not equation.op or any(new is not old for new, old in zip(inputs, equation.inputs, strict=True)):
            self.is_changed = True
            equation = equation.replace(op=op, inputs=inputs)
        self.equations.append(equation)

    def _add_body(self, loop: Equation, op: Control, operands: list[Value]) -> None:
        (body,) = op.programs
        ports = op.ports(operands, [body.inputs], [body.outputs])
        bound = list(zip((binding.boundary for binding in op.bindings), ports, strict=True))
        for boundary, port in bound:
            for entry in port.entries.values():
                self._bind(loop, port.operand, entry, is_reshaped=boundary.reads_slices)
        for equation in body.equations:
            self.add(equation)
        results = iter(loop.outputs)
        for boundary, port in bound:
            if port.has_result:
                self._bind(loop, self.current(port.exits[0]), next(results), is_reshaped=boundary.writes_slices)

    def _bind(self, loop: Equation, source: Value, target: Value, is_reshaped: bool) -> None:
        """Let a value be equal to another one, or a reshape of it."""
        if is_reshaped:
            self.equations.append(loop.replace(op=Reshape(target.type.shape), inputs=[source], outputs=[target]))
        else:
            self._current[target] = source


def _has_explicit_slices(op: Control) -> bool:
    """Return whether a slice that a scan reads or writes has an Explicit sharding."""
    (body,) = op.programs
    ends = {"entry": body.inputs, "exit": body.outputs}
    return any(
        ends[end.kind][end.number].type.explicit is not None
        for binding in op.bindings
        if binding.boundary.leading
        for end in binding.endpoints
        if end.kind in ends
    )

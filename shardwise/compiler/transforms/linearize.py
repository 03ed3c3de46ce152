"""linearize: evaluate a function at a point, and stage its derivative there as a linear Program.

Primals are computed in the outer frames. Tangents are staged in a separate frame, which stages only ops with a tangent
operand. The primal values that this frame captures are the residuals. No equation is evaluated twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import open_frames, resolve_shardings, use_frames
from shardwise.compiler.ir.masks import drop_none, present_mask
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.provenance import current_source, provenance
from shardwise.compiler.trace.tracer import Frame, Tracer
from shardwise.compiler.transforms.dce import dce, live_equations
from shardwise.compiler.transforms.jvp import Duals, instantiate_zeros
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation, replay, restore_source
from shardwise.compiler.transforms.shrink_residuals import shrink_residuals
from shardwise.errors import ConcretizationTypeError

# A derivative rule. It maps the primals and tangents of the operands to the primals and tangents of the results.
Rule = Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


@final
@dataclass(frozen=True)
class Linearized:
    """The value and the derivative of a function.

    Attributes:
        outputs: the outputs of the function.
        program: maps the residuals and the tangents of the active inputs to the tangents of the nonzero outputs.
        residuals: the primal values that `program` needs.
        nonzero: for each output, whether it has a tangent.
    """

    outputs: list[Any]
    program: Program
    residuals: list[Any]
    nonzero: tuple[bool, ...]


@final
class LinearFrame(Frame):
    """A frame that stages ops on tangents.

    A user-defined rule may compute primals and tangents in one jitted function. Such a call is replayed op by op, so
    that only its linear part is staged in this frame. A call with rules of its own is staged whole: its transpose may
    compute more than the transposed ops of its program, such as the magnitudes that float8 products measure.
    """

    def __init__(self, name: str):
        super().__init__(name, stages_all=False)

    def bind(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
        if op.is_call and not op.opaque:
            (program,) = op.programs
            if not all(program.outputs_depending_on([self.owns(arg) for arg in args])):
                return tuple(replay(program, args))
        return super().bind(op, args)


class _Linearizer:
    """Primals and tangents of a function's values, with the frame in which the tangents are staged."""

    def __init__(self, name: str):
        self.frame = LinearFrame(f"linear_{name}")
        self.duals = Duals(linearizing=True)

    def close(self, outputs: Sequence[Value], instantiate: Sequence[bool] = ()) -> Linearized:
        """Return the linearized function with these outputs."""
        out_tangents = [self.duals.tangent.get(value) for value in outputs]
        tangents = instantiate_zeros(out_tangents, instantiate, [value.type for value in outputs])
        nonzero = present_mask(tangents)
        staged = self.frame.program([self.frame.lift(tangent) for tangent in drop_none(tangents)])
        count = len(self.frame.inputs)
        # Residuals become the first inputs. Residuals that only dead equations use are dropped.
        staged = dce(replace(staged, inputs=(*staged.inputs[count:], *staged.inputs[:count])))
        used = staged.used
        residuals = [
            (value, outer) for value, outer in zip(staged.inputs, self.frame.captured, strict=False) if value in used
        ]
        inputs = (*(value for value, _ in residuals), *staged.inputs[len(self.frame.captured) :])
        program = replace(staged, inputs=inputs)
        return Linearized(
            [self.duals.primal[value] for value in outputs], program, [outer for _, outer in residuals], nonzero
        )


@final
class DualFrame(Frame):
    """The frame of a function that is being differentiated. Its values are concrete if the outer frames' values are.

    Equations are evaluated lazily in the frames `over`, with primals and tangents, up to the value that Python needs,
    and each equation once. So `if` on a value works under grad outside jit.
    """

    def __init__(self, name: str, duals: Duals, over: Sequence[Any]):
        super().__init__(name, stages_all=False)
        self.duals = duals
        self.over = list(over)
        self.evaluated = 0  # the number of evaluated equations
        self._rules: list[str] = []  # the functions whose derivative rules are running, innermost last

    def dual_input(self, primal: Operand, tangent: Operand | None) -> Tracer:
        """Add an input with this primal and tangent, and return its tracer."""
        tracer = self.input(primal.type)
        self.duals.set(tracer.value, primal, tangent)
        return tracer

    def capture(self, x: Operand) -> Value:
        value = Value(x.type)
        self.duals.set(value, x, None)
        return value

    def concrete(
        self, tracer: Tracer, error: type[ConcretizationTypeError], use: str, advice: Callable[[], str]
    ) -> Any:
        while tracer.value not in self.duals.primal:
            self.evaluate(self.evaluated + 1)
        return self.duals.primal[tracer.value]

    def has_tangent(self, tracer: Tracer) -> bool:
        """Return whether `tracer`, of this frame, has a tangent that is not a symbolic zero."""
        while tracer.value not in self.duals.primal:
            self.evaluate(self.evaluated + 1)
        return tracer.value in self.duals.tangent

    def evaluate(self, count: int) -> None:
        """Evaluate the first `count` equations in the outer frames, except those that have been evaluated."""
        equations = self.equations[self.evaluated : count]
        self.evaluated = count
        with use_frames(self.over):
            for_each_equation(equations, self.duals.step)

    def apply_rule(self, name: str, rule: Rule, operands: Sequence[Any]) -> list[Tracer]:
        """Evaluate the call of a function with a derivative rule in the outer frames, and return its results.

        The function itself is not traced, because the rule computes its results too.

        Args:
            name: the name of the function.
            rule: maps the primals and tangents of the operands to primals and tangents of the results. None is zero.
            operands: tracers of this frame, or outer values.
        """
        values = [self.lift(x) for x in operands]
        self.evaluate(len(self.equations))
        primals, tangents = [[of.get(value) for value in values] for of in (self.duals.primal, self.duals.tangent)]
        source = current_source()
        self._rules.append(name)
        try:
            with use_frames(self.over), restore_source(), resolve_shardings():
                provenance.source = source
                results, out_tangents = rule(primals, tangents)
                tracers = [Tracer(self, Value(x.type), None, source) for x in results]
                for tracer, result, tangent in zip(tracers, results, out_tangents, strict=True):
                    self.duals.set(tracer.value, result, tangent)
        finally:
            self._rules.pop()
        return list(self.note_tracers(tracers))

    def leak_message(self, tracer: Tracer) -> str:
        if not self._rules:
            return super().leak_message(tracer)
        return (
            f"`{self._rules[-1]}` or its derivative rule closes over a value that is being differentiated, a "
            f"{tracer.type} that was created at {tracer.source}{tracer.origin}, but its rule has no derivative for it. "
            "Pass the value as an argument."
        )

    def run(self, function: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]) -> list[Value]:
        """Call the function, evaluate the equations that its results depend on, and return the results' values."""
        with self.open():
            outputs = [self.lift(as_operand(x)) for x in function(*tracers)]
        self.equations[self.evaluated :] = live_equations(self.equations[self.evaluated :], outputs)
        self.evaluate(len(self.equations))
        return outputs


def linearize(function: Callable[..., Sequence[Any]], primals: Sequence[Any], name: str) -> Linearized:
    """Call `function` on `primals`, all of which are active, and linearize it there."""
    linearizer = _Linearizer(name)
    over = [*open_frames(), linearizer.frame]
    frame = DualFrame(name, linearizer.duals, over)
    tracers = [frame.dual_input(primal, linearizer.frame.input(primal.type)) for primal in primals]
    outputs = frame.run(function, tracers)
    with use_frames(over):
        return linearizer.close(outputs)


def jvp_function(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any], name: str
) -> tuple[list[Any], list[Any]]:
    """Return the results of `function` on `primals`, and their tangents (None is zero).

    If the tangents are staged in a LinearFrame, as in a user-defined rule under grad, ops are linearized, so that
    primals are not staged with the tangents.
    """
    duals = Duals(linearizing=any(isinstance(t, Tracer) and isinstance(t.frame, LinearFrame) for t in tangents))
    frame = DualFrame(name, duals, open_frames())
    outputs = frame.run(function, [frame.dual_input(x, t) for x, t in zip(primals, tangents, strict=True)])
    return [duals.primal[value] for value in outputs], [duals.tangent.get(value) for value in outputs]


@memoized(maxsize=4096)
@verifies_result
def linearize_program(
    program: Program, active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, Program, tuple[bool, ...]]:
    """Split the derivative of a program into a forward and a linear program.

    Args:
        program: the program.
        active: for each input, whether it has a tangent.
        instantiate: for each output, whether it has a tangent even if that is zero.

    Returns:
        The forward program (inputs → outputs, residuals); the linear program (residuals, tangents of the active inputs
        → tangents of the nonzero outputs); and for each output, whether it has a tangent.
    """
    linear: Linearized | None = None

    def body(*args: Operand) -> list[Any]:
        nonlocal linear
        linearizer = _Linearizer(program.name)
        for value, primal, is_active in zip(program.inputs, args, active, strict=True):
            linearizer.duals.set(value, primal, linearizer.frame.input(value.type) if is_active else None)
        with linearizer.frame.open():
            for_each_equation(program.equations, linearizer.duals.step)
            linear = linearizer.close(program.outputs, instantiate)
        return [*linear.outputs, *linear.residuals]

    forward = rewrite(f"forward_{program.name}", program.in_types, body)
    assert linear is not None
    forward, linear_program = shrink_residuals(forward, linear.program, len(program.outputs))
    return dce(forward), linear_program, linear.nonzero

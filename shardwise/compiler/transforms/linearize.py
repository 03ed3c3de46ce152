"""linearize: the values of a function now, and its derivative there as a linear Program.

Primals are emitted in the frame below; tangents are staged in a frame of their own, which takes only ops that touch a
tangent. Primal values that the tangents need are captured by that frame: they are the residuals. Nothing runs twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import open_frames, use_frames
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.call import drop_none, present_mask
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.tracer import Frame, Tracer
from shardwise.compiler.transforms.dce import dce, live_equations
from shardwise.compiler.transforms.jvp import Duals, instantiate_zeros
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation, replay
from shardwise.compiler.transforms.shrink_residuals import shrink_residuals
from shardwise.errors import ConcretizationTypeError


@final
@dataclass(frozen=True)
class Linearized:
    """`program` maps (residuals, tangents of the active inputs) to tangents of the outputs marked in `moving`."""

    outputs: list[Any]
    program: Program
    residuals: list[Any]
    moving: tuple[bool, ...]


@final
class LinearFrame(Frame):
    """Takes what depends on tangents. A call that also computes what does not is taken apart, and only its linear part
    stays here: a user's rule may compute both in one compiled function."""

    def __init__(self, name: str):
        super().__init__(name, stages_all=False)

    def bind(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
        if op.is_call and not all(op.programs[0].outputs_depending_on([self.owns(arg) for arg in args])):
            return tuple(replay(op.programs[0], args))
        return super().bind(op, args)


class _Tangents:
    """The linear half: pairs whose tangents are staged in a frame that takes nothing else."""

    def __init__(self, name: str):
        self.frame = LinearFrame(f"linear_{name}")
        self.pairs = Duals(linearizing=True)

    def close(self, outputs: Sequence[Value], instantiate: Sequence[bool] = ()) -> Linearized:
        found = [self.pairs.tangent.get(value) for value in outputs]
        tangents = instantiate_zeros(found, instantiate, [value.type for value in outputs])
        moving = present_mask(tangents)
        staged = self.frame.program([self.frame.lift(tangent) for tangent in drop_none(tangents)])
        count = len(self.frame.inputs)
        # The captured residuals come first, and those that only dead equations used are dropped.
        staged = dce(replace(staged, inputs=(*staged.inputs[count:], *staged.inputs[:count])))
        used = staged.used
        residuals = [
            (value, outer) for value, outer in zip(staged.inputs, self.frame.captured, strict=False) if value in used
        ]
        inputs = (*(value for value, _ in residuals), *staged.inputs[len(self.frame.captured) :])
        program = replace(staged, inputs=inputs)
        return Linearized(
            [self.pairs.primal[value] for value in outputs], program, [outer for _, outer in residuals], moving
        )


@final
class DualFrame(Frame):
    """The frame of a function that is being differentiated, whose values may be known.

    It plays equations into the frames `over` (primals, and tangents where a value has one) on demand: when Python asks
    for a value, up to that value, and never again. Outside jit this is what makes `if` on values work.
    """

    def __init__(self, name: str, pairs: Duals, over: Sequence[Any]):
        super().__init__(name, stages_all=False)
        self.pairs = pairs
        self.over = list(over)
        self.played = 0

    def pair(self, primal: Any, tangent: Any) -> Tracer:
        """A new input: a tracer for the function, with its primal and tangent."""
        tracer = self.input(primal.type)
        self.pairs.set(tracer.value, primal, tangent)
        return tracer

    def capture(self, x: Any) -> Value:
        value = Value(x.type)
        self.pairs.set(value, x, None)
        return value

    def concrete(self, tracer: Tracer, error: type[ConcretizationTypeError], use: str) -> Any:
        while tracer.value not in self.pairs.primal:
            self.play(self.played + 1)
        return self.pairs.primal[tracer.value]

    def play(self, until: int) -> None:
        """Emit equations, up to number `until`."""
        equations = self.equations[self.played : until]
        self.played = until
        with use_frames(self.over):
            for_each_equation(equations, self.pairs.step)

    def run(self, function: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]) -> list[Value]:
        """Call the function, and play what its results need; the values of the results."""
        with self.open():
            outputs = [self.lift(as_operand(x)) for x in function(*tracers)]
        self.equations[self.played :] = live_equations(self.equations[self.played :], outputs)
        self.play(len(self.equations))
        return outputs


def linearize(function: Callable[..., Sequence[Any]], primals: Sequence[Any], name: str) -> Linearized:
    """Call `function` on `primals`; all of them are active."""
    tangents = _Tangents(name)
    over = [*open_frames(), tangents.frame]
    frame = DualFrame(name, tangents.pairs, over)
    outputs = frame.run(function, [frame.pair(primal, tangents.frame.input(primal.type)) for primal in primals])
    with use_frames(over):
        return tangents.close(outputs)


def jvp_function(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any], name: str
) -> tuple[list[Any], list[Any]]:
    """Call `function` on `primals`, moving along `tangents`: its results, and how they move (None: they do not).

    Tangents that are being staged, as in a user's rule under grad, must not draw the primals in with them.
    """
    pairs = Duals(linearizing=any(isinstance(t, Tracer) and isinstance(t.frame, LinearFrame) for t in tangents))
    frame = DualFrame(name, pairs, open_frames())
    outputs = frame.run(function, [frame.pair(x, t) for x, t in zip(primals, tangents, strict=True)])
    return [pairs.primal[value] for value in outputs], [pairs.tangent.get(value) for value in outputs]


@memoized(maxsize=4096)
@verifies_result
def linearize_program(
    program: Program, active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, Program, tuple[bool, ...]]:
    """Forward (inputs → outputs, residuals) and linear (residuals, tangents → tangents) Programs, and which move.

    Outputs marked in `instantiate` have a tangent even where it is zero.
    """
    linear: Linearized | None = None

    def body(*args: Any) -> list[Any]:
        nonlocal linear
        tangents = _Tangents(program.name)
        for value, primal, is_active in zip(program.inputs, args, active, strict=True):
            tangents.pairs.set(value, primal, tangents.frame.input(value.type) if is_active else None)
        with tangents.frame.open():
            for_each_equation(program.equations, tangents.pairs.step)
            linear = tangents.close(program.outputs, instantiate)
        return [*linear.outputs, *linear.residuals]

    forward = rewrite(f"forward_{program.name}", program.in_types, body)
    assert linear is not None
    lighter, staged = shrink_residuals(forward, linear.program, len(program.outputs))
    return dce(lighter), staged, linear.moving

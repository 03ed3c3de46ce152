"""TrainingStep: a training step, traced apart from the loss that it differentiates.

A pipeline computes the loss and the gradients. What else the step does, such as updating parameters, is a program with
the loss and the gradients among its inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from shardwise import tree
from shardwise.api.arguments import describe_function, function_name
from shardwise.api.differentiated_losses import differentiated_losses
from shardwise.api.flatten import FlatFunction
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Frame, Tracer
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.errors import StrategyError

Check = Callable[[Sequence[Any]], None]


@final
class LossResults(NamedTuple):
    """The results of a loss function.

    Attributes:
        structure: the structure of its value, a scalar.
        aux: its auxiliary result, as `value_and_grad` restores it; None if there is none.
        types: the types of all its results.
    """

    structure: Any
    aux: Any
    types: tuple[ArrayType, ...]


@final
@dataclass(frozen=True, eq=False)
class TrainingStep:
    """A step without its loss.

    Attributes:
        program: from the leaves of the arguments, the results of the loss, the gradients, and captured arrays to the
            leaves of the step's results. It has no calls.
        captured: the arrays that the step closes over.
        structure: the structure of the step's results.
        arguments: the number of leaves of the arguments.
        loss: the results of the loss.
        differentiated: for each gradient, the leaf of the arguments that it belongs to.
        read: the leaves of the arguments that the loss depends on.
    """

    program: Program
    captured: Sequence[Any]
    structure: Any
    arguments: int
    loss: LossResults
    differentiated: tuple[int, ...]
    read: frozenset[int]

    @property
    def loss_inputs(self) -> Sequence[Value]:
        """The inputs of the program that are results of the loss."""
        return self.program.inputs[self.arguments : self.arguments + len(self.loss.types)]

    @property
    def gradient_inputs(self) -> Sequence[Value]:
        """The inputs of the program that are gradients."""
        start = self.arguments + len(self.loss.types)
        return self.program.inputs[start : start + len(self.differentiated)]


def trace_training_step(
    function: Callable[..., Any], structure: Any, types: Sequence[ArrayType], loss: LossResults | None = None
) -> TrainingStep:
    """Trace a step.

    Args:
        function: the step, a function of pytrees that calls `value_and_grad` or `grad` once.
        structure: the structure of its arguments.
        types: the types of their leaves.
        loss: the results of the loss; by default, the loss is traced too.

    Raises:
        StrategyError: if the step does not differentiate one loss with respect to leaves of its arguments.
    """
    recorder = _Recorder(describe_function(function), loss)
    arguments = structure.unflatten(list(range(len(types))))
    flat = FlatFunction(function, tree.structure((arguments, {})))
    with differentiated_losses(recorder):
        program, captured = build(flat, types, function_name(function), frame_type=recorder.new_frame)
    if recorder.loss is None:
        raise StrategyError(
            f"mpmd_step: {recorder.label} differentiates no loss: call `value_and_grad` or `grad` of a loss in it."
        )
    return TrainingStep(
        dce(inline(program)),
        captured,
        flat.out_tree,
        len(types),
        recorder.loss,
        recorder.differentiated,
        recorder.read,
    )


def loss_of_step(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Return the results of the loss that a step differentiates. The rest of the step does not run."""
    try:
        with differentiated_losses(_return_loss):
            function(*args)
    except _Loss as found:
        return found.results
    raise AssertionError("a step that was traced before differentiates a loss")


@final
class _Loss(BaseException):
    """Ends a step with the results of its loss. It is not an Exception, so that the step does not handle it."""

    def __init__(self, results: list[Any]):
        self.results = results


def _return_loss(flat: Any, operands: list[Any], check: Check) -> Any:
    with differentiated_losses(None):
        raise _Loss(flat(*operands))


class _Recorder:
    """Records the loss of a step that is being traced, whose results and gradients become inputs of its program."""

    def __init__(self, label: str, loss: LossResults | None):
        self.label = label
        self.loss: LossResults | None = None
        self.differentiated: tuple[int, ...] = ()
        self.read: frozenset[int] = frozenset()
        self._known = loss
        self._frame: Frame

    def new_frame(self, *args: Any, **keywords: Any) -> Frame:
        """Create the frame in which the step is traced."""
        self._frame = Frame(*args, **keywords)
        return self._frame

    def __call__(self, flat: Any, operands: list[Any], check: Check) -> tuple[list[Any], list[Any]]:
        name = describe_function(flat.function)
        if open_frames()[-1] is not self._frame:
            raise StrategyError(
                f"mpmd_step: {self.label} differentiates {name} inside of another jitted function, a loop or a "
                "transformation: call `value_and_grad` in the step itself. The pipeline divides the batch into "
                "microbatches, so the step needs no loop over them."
            )
        if self.loss is not None:
            raise StrategyError(f"mpmd_step: {self.label} differentiates {name} too: a step has one loss.")
        frame, positions = self._frame, {value: index for index, value in enumerate(self._frame.inputs)}
        self.differentiated = tuple(
            positions.get(x.value, -1) if isinstance(x, Tracer) and x.frame is frame else -1 for x in operands
        )
        if -1 in self.differentiated:
            type = operands[self.differentiated.index(-1)].type
            raise StrategyError(
                f"mpmd_step: {self.label} differentiates {name} with respect to a computed array of type {type}: "
                "differentiate with respect to arguments of the step, and compute in the loss what it needs of them, "
                "such as a cast."
            )
        if self._known is None:
            self._trace(flat, operands, name)
        else:
            self.loss = self._known
            flat.out_tree, flat.aux = self.loss.structure, self.loss.aux
        assert self.loss is not None
        results = [frame.input(type) for type in self.loss.types]
        check(results)
        return results, [frame.input(cotangent_type(x.type)) for x in operands]

    def _trace(self, flat: Any, operands: list[Any], name: str) -> None:
        """Trace the loss."""
        integers = [x.type for x in operands if not is_inexact(x.type.dtype)]
        if integers:
            raise StrategyError(
                f"mpmd_step: {self.label} differentiates {name} with respect to an array of type {integers[0]}: pass "
                "integers to the loss as another argument."
            )
        with differentiated_losses(None):
            program, captured = build(flat, [x.type for x in operands], name)
        if flat.scope.written:
            raise StrategyError(f"mpmd_step: {name} changes a Ref: return what it computes, with has_aux=True.")
        self.loss = LossResults(flat.out_tree, getattr(flat, "aux", None), program.out_types)
        frame = self._frame
        outer = [as_operand(x) for x in (*operands, *captured)]
        used = {x.value for x in outer if isinstance(x, Tracer) and x.frame is frame}
        for equation in reversed(frame.equations):
            if not used.isdisjoint(equation.outputs):
                used.update(equation.inputs)
        self.read = frozenset(index for index, value in enumerate(frame.inputs) if value in used)

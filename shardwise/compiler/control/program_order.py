"""program_order: a call whose kernels run in program order (`jax.experimental.overlap.program_order`).

XLA keeps no program order, only dependencies. When the call is inlined, barriers between its kernels become such
dependencies. Each waits for the results of one kernel, and the operands of the next kernel pass through it. A kernel is
a product, a collective, a loop, a call or another op that XLA does not fuse, with the fusible ops up to the next one.

A collective that was started (`lax.psum_start` and others) does not delay the kernels up to its `done`: they wait for
its operand only.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.identities import Barrier, CollectiveDone
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program


@final
@record
class ProgramOrder(CallLike):
    """A call whose kernels run in program order; or a block, which is one kernel of such a call.

    Attributes:
        enforce: whether the kernels of the program run in order. Otherwise, the program is a block.
        strict_in: whether all operands are computed before the first kernel runs.
        strict_out: whether all results are computed before any of them is used.
        prefetched: for each operand of a block, whether the block may use it before the previous kernel has run.
    """

    name = "program_order"
    enforce: bool
    strict_in: bool
    strict_out: bool
    prefetched: tuple[bool, ...]

    @property
    def inlined_program(self) -> Program:
        return order_kernels(self.program, self.strict_in, self.strict_out) if self.enforce else self.program

    def _with_program(self, program: Program, prefetched: Iterable[bool]) -> "ProgramOrder":
        return ProgramOrder(program, self.enforce, self.strict_in, self.strict_out, tuple(prefetched))

    def _active(self, mask: Sequence[bool]) -> list[bool]:
        """Return `prefetched` of the operands that have a tangent."""
        return [each for each, is_active in zip(self.prefetched, mask, strict=True) if is_active]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        mask = present_mask(tangents)
        program, out_active = jvp_program(self.program, mask)
        call = self._with_program(program, (*self.prefetched, *self._active(mask)))
        results = call(*primals, *drop_none(tangents))
        count = len(self.program.outputs)
        return results[:count], insert_none(results[count:], out_active)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        mask = present_mask(tangents)
        forward, linear, out_active = linearize_program(self.program, mask)
        results = self._with_program(forward, self.prefetched)(*primals)
        count = len(self.program.outputs)
        residuals = results[count:]
        call = self._with_program(linear, (*[False] * len(residuals), *self._active(mask)))
        return results[:count], insert_none(call(*residuals, *drop_none(tangents)), out_active)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        program, nonzero = transpose_program(self.program, linear, present_mask(cotangent))
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        prefetched = [each for each, is_linear in zip(self.prefetched, linear, strict=True) if not is_linear]
        cotangents = drop_none(cotangent)
        call = self._with_program(program, (*prefetched, *[False] * len(cotangents)))
        return tuple(insert_none(insert_none(call(*known, *cotangents), nonzero), linear))


def order_kernels(program: Program, strict_in: bool = False, strict_out: bool = False) -> Program:
    """Return the program with barriers that keep its kernels in order.

    Args:
        program: the program.
        strict_in: whether all inputs are computed before the first kernel runs.
        strict_out: whether all outputs are computed before any of them is used.
    """
    equations: list[Equation] = []
    passed: dict[Value, Value] = {}  # value → the result of the last barrier that it passed through

    def append(kernel: Iterable[Equation]) -> None:
        for equation in kernel:
            equations.append(equation.replace(inputs=[passed.get(value, value) for value in equation.inputs]))

    def wait_for(values: Iterable[Value], source: Source) -> None:
        """Append one barrier through which all these values pass."""
        for value in dict.fromkeys(values):
            result = Value(value.type)
            equations.append(Equation(Barrier(), [passed.get(value, value)], [result], source))
            passed[value] = result

    in_flight, constants = _values_in_flight(program), _constants(program)
    kernels = list(_kernels(program, in_flight))
    last_kernel = {v: index for index, kernel in enumerate(kernels) for equation in kernel for v in equation.inputs}
    last_kernel.update(dict.fromkeys(program.outputs, len(kernels)))
    if strict_in and kernels:
        wait_for(program.inputs, kernels[0][0].source)
    finished: list[Value] = []  # the results of the last kernel
    starts: list[Equation] = []  # the collectives that were started after it
    for index, kernel in enumerate(kernels):
        if not in_flight.isdisjoint(kernel[0].outputs):
            starts += kernel
            continue
        results = [value for equation in kernel for value in equation.outputs]
        operands = [v for v in _ordered_operands(kernel) if v not in results and v not in constants]
        sent = [v for equation in starts for v in equation.inputs if v not in in_flight and v not in constants]
        if starts and isinstance(kernel[0].op, CollectiveDone):
            # The collective must not wait for another one, which this kernel waits for.
            wait_for((*finished, *sent), starts[0].source)
            append(starts)
            starts, sent = [], []
        if operands and (finished or sent):
            # The collectives read what passed through the barrier: dead-code elimination would drop it otherwise, and
            # this kernel would not wait for the operands of the collectives.
            wait_for((*finished, *sent, *operands), kernel[0].source)
            finished = []
        append((*starts, *kernel))
        starts = []
        ordered = [value for value in results if value not in constants]
        finished += [value for value in ordered if last_kernel.get(value, -1) > index]
    append(starts)
    if strict_out and kernels:
        wait_for(program.outputs, kernels[-1][-1].source)
    return program.with_equations(equations, [passed.get(value, value) for value in program.outputs])


def _kernels(program: Program, in_flight: set[Value]) -> Iterator[list[Equation]]:
    """Yield the equations in groups: an op that XLA does not fuse, and the fusible ops up to the next one.

    The start of a collective is a group of its own, with the fusible ops that complete its result.
    """
    kernel: list[Equation] = []
    for equation in program.equations:
        is_start = not in_flight.isdisjoint(equation.outputs)
        if kernel and (not _is_fusible(equation.op) or is_start == in_flight.isdisjoint(kernel[0].outputs)):
            yield kernel
            kernel = []
        kernel.append(equation)
    if kernel:
        yield kernel


def _is_fusible(op: Op) -> bool:
    return op.fusion.fuses or op.fusion.is_view or isinstance(op, Barrier)


def _ordered_operands(kernel: Sequence[Equation]) -> list[Value]:
    """Return the operands of a kernel's equations, but not those that a block may use early."""
    operands: list[Value] = []
    for equation in kernel:
        op = equation.op
        prefetched = (
            op.prefetched if isinstance(op, ProgramOrder) and not op.enforce else [False] * len(equation.inputs)
        )
        operands += [value for value, is_early in zip(equation.inputs, prefetched, strict=True) if not is_early]
    return operands


def _values_in_flight(program: Program) -> set[Value]:
    """Return the results of collectives that were started, up to their `done`."""
    in_flight: set[Value] = set()
    for equation in reversed(program.equations):
        is_reshaped = (
            _is_fusible(equation.op) and len(equation.inputs) == 1 and not in_flight.isdisjoint(equation.outputs)
        )
        if isinstance(equation.op, CollectiveDone) or is_reshaped:
            in_flight.update(equation.inputs)
    return in_flight


def _constants(program: Program) -> set[Value]:
    """Return the values that fusible ops compute from no inputs."""
    constants: set[Value] = set()
    for equation in program.equations:
        if _is_fusible(equation.op) and constants.issuperset(equation.inputs):
            constants.update(equation.outputs)
    return constants

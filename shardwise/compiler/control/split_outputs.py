"""split_outputs: split a program in two, of which the first computes some outputs as early as possible.

The second program computes the other outputs. It receives the intermediate values that it shares with the first one, so
that nothing is computed twice. A pipeline splits a backward pass this way: the first program computes the cotangent of
a stage's input, and the second one the cotangents of its parameters. A scan is split too: the first loop stacks the
values that the second loop needs in each iteration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.transforms.dce import live_equations
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.shrink_residuals import shrink_residuals


@final
@dataclass(frozen=True)
class SplitProgram:
    """The two halves of a program.

    Attributes:
        first: inputs → selected outputs, shared values.
        second: shared values, the inputs at the indices `kept` → the other outputs.
        kept: the indices of the inputs that `second` reads.
    """

    first: Program
    second: Program
    kept: tuple[int, ...]


def split_outputs(program: Program, selected: Sequence[bool]) -> SplitProgram:
    """Split a program by its outputs.

    Args:
        program: the program.
        selected: for each output, whether the first half computes it.
    """
    first, second, kept = _split(inline(program), selected)
    return SplitProgram(first, second, tuple(kept))


@verifies_result
def _split(program: Program, selected: Sequence[bool]) -> tuple[Program, Program, list[int]]:
    outputs = [value for value, is_selected in zip(program.outputs, selected, strict=True) if is_selected]
    others = [value for value, is_selected in zip(program.outputs, selected, strict=True) if not is_selected]
    needed = set(outputs)
    early: list[Equation] = []
    late: list[Equation] = []
    for equation in reversed(program.equations):
        if needed.isdisjoint(equation.outputs) and not equation.op.effect:
            late.append(equation)
            continue
        loops = _split_scan(equation, equation.op, needed) if isinstance(equation.op, Scan) else None
        before, *after = loops or (equation,)
        late += after
        early.append(before)
        needed.update(before.inputs)
    late = live_equations(late[::-1], others)
    used = {value for equation in late for value in equation.inputs}.union(others)
    shared = [value for equation in reversed(early) for value in equation.outputs if value in used]
    inputs = [value for value in program.inputs if value in used]
    first = Program(program.inputs, tuple(early[::-1]), (*outputs, *shared), f"{program.name}_first")
    second = Program((*shared, *inputs), tuple(late), tuple(others), f"{program.name}_second")
    first, second = shrink_residuals(first, second, len(outputs))
    return _pass_inputs(first, second, len(outputs))


def _pass_inputs(first: Program, second: Program, count: int) -> tuple[Program, Program, list[int]]:
    """Let the second program read inputs directly, where the first one would return them unchanged."""
    index_of = {value: index for index, value in enumerate(first.inputs)}
    shared, parameters, kept, passed = [], [], [], []
    for value, parameter in zip(first.outputs[count:], second.inputs, strict=False):
        if value in index_of:
            kept.append(index_of[value])
            passed.append(parameter)
        else:
            shared.append(value)
            parameters.append(parameter)
    direct = second.inputs[len(first.outputs) - count :]
    kept += [index_of[value] for value in direct]
    first = replace(first, outputs=(*first.outputs[:count], *shared))
    return first, replace(second, inputs=(*parameters, *passed, *direct)), kept


def _split_scan(equation: Equation, op: Scan, needed: set[Value]) -> tuple[Equation, Equation] | None:
    """Split a scan into a loop that computes the needed results, and a loop that computes the others.

    Return None if the first loop would compute all results.
    """
    selected = [value in needed for value in equation.outputs]
    while True:  # carries on which the selected outputs depend are selected too
        outputs = [value for value, is_selected in zip(op.program.outputs, selected, strict=True) if is_selected]
        live = live_equations(op.program.equations, outputs)
        used = {value for each in live for value in each.inputs}.union(outputs)
        carries = [op.program.inputs[op.consts + index] in used for index in range(op.carried)]
        if all(selected[index] for index, is_used in enumerate(carries) if is_used):
            break
        selected = [is_selected or (i < op.carried and carries[i]) for i, is_selected in enumerate(selected)]
    if all(selected):
        return None
    first, second, kept = _split(op.program, selected)
    shared = len(first.outputs) - selected.count(True)
    early, late = ([op.consts + i for i in range(op.carried) if selected[i] is is_early] for is_early in (True, False))
    slices = range(op.consts + op.carried, len(op.program.inputs))
    # An early carry that the second body reads has another value in each iteration, so the first loop stacks it.
    stacked = [index for index in kept if index in early]
    first_inputs = [*range(op.consts), *early, *slices]
    body = replace(
        first,
        inputs=tuple(first.inputs[index] for index in first_inputs),
        outputs=(*first.outputs, *(first.inputs[index] for index in stacked)),
    )
    stacks = [
        Value(value.type.with_shape((op.length, *value.type.shape)))
        for value in body.outputs[len(body.outputs) - shared - len(stacked) :]
    ]
    first_loop = equation.replace(
        op=replace(op, program=body, carried=len(early)),
        inputs=[equation.inputs[index] for index in first_inputs],
        outputs=[*(value for value, is_early in zip(equation.outputs, selected, strict=True) if is_early), *stacks],
    )
    parameters = dict(zip(kept, second.inputs[shared:], strict=True))
    consts = [index for index in kept if index < op.consts]
    second_slices = [index for index in kept if index in slices]
    body = replace(
        second,
        inputs=(
            *(parameters[index] for index in consts),
            *(parameters.get(index) or Value(op.program.inputs[index].type) for index in late),
            *second.inputs[:shared],
            *(parameters[index] for index in (*stacked, *second_slices)),
        ),
    )
    second_loop = equation.replace(
        op=replace(op, program=body, consts=len(consts), carried=len(late)),
        inputs=[
            *(equation.inputs[index] for index in (*consts, *late)),
            *stacks,
            *(equation.inputs[index] for index in second_slices),
        ],
        outputs=[value for value, is_early in zip(equation.outputs, selected, strict=True) if not is_early],
    )
    return first_loop, second_loop

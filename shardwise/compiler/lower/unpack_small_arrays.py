"""unpack_small_arrays: read and write the scales of products by a few kernels, and compute maxima without others.

A large step reads hundreds of scales, each an element of an input, and writes as many. XLA would launch a kernel for
each, and for the maximum of each array that is rounded to float8. With this pass one kernel reads scales, and writes
zeros beside them. Each kernel that rounds an array updates one of the zeros to the largest magnitude.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardwise.base.config import config
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.kernels.unpack import MOST_RESULTS, Unpack
from shardwise.compiler.lower.nested_programs import rewrite_nested_programs
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Slice
from shardwise.compiler.transforms.dce import dce

F32 = np.dtype(np.float32)
_LEAST = 8  # fewer slices take no longer than the kernels that replace them
_MOST_ELEMENTS = 16  # of an array: a program reads one after the other


@verifies_result
def unpack_small_arrays(program: Program) -> Program:
    """Replace slices that are scalars of inputs, or small outputs, and let kernels that round to float8 update maxima.

    Args:
        program: the program of one device. Nested programs are rewritten too.

    Returns:
        The new program; `program` itself if it has few such slices, or if kernels of our own are off.
    """
    if not config.own_kernels:
        return program
    program = rewrite_nested_programs(program, unpack_small_arrays)
    return _with_unpacked_outputs(_with_unpacked_inputs(program))


def _with_unpacked_inputs(program: Program) -> Program:
    scalars = _scalars_of_inputs(program)
    if len(set(scalars.values())) < _LEAST:
        return program
    template = next(equation for equation in program.equations if equation.outputs[0] in scalars)
    rounding = [equation for equation in program.equations if _is_rounding(equation)]
    elements: dict[tuple[Value, int], Value] = {}
    zeros: dict[Equation, Value] = {}
    kernels: list[Equation] = []
    for group in _groups(list(dict.fromkeys(source for source, _ in scalars.values()))):
        places = [(source, index) for source in group for index in range(source.type.size)]
        first = len(zeros)
        starting = rounding[first : first + MOST_RESULTS - len(places)]
        arrays = list(group)
        if starting:
            arrays.append(Value(ArrayType((len(starting),), F32)))
            zero = Full((len(starting),), Scalar.from_value(0, F32))
            kernels.append(template.replace(op=zero, inputs=[], outputs=arrays[-1:]))
        total = Value(ArrayType((len(places) + len(starting),), F32))
        outputs = [Value(ArrayType((), F32)) for _ in range(total.type.size)]
        kernels.append(template.replace(op=Concatenate(0), inputs=arrays, outputs=[total]))
        kernels.append(template.replace(op=Unpack(((),) * total.type.size), inputs=[total], outputs=outputs))
        elements.update(zip(places, outputs, strict=False))
        zeros.update(zip(starting, outputs[len(places) :], strict=True))
    renamed = {value: elements[place] for value, place in scalars.items()}
    rest = [
        _with_zero(equation, zeros.get(equation), [renamed.get(value, value) for value in equation.inputs])
        for equation in program.equations
        if renamed.keys().isdisjoint(equation.outputs)
    ]
    outputs = [renamed.get(value, value) for value in program.outputs]
    return dce(program.with_equations([*kernels, *rest], outputs))


def _is_rounding(equation: Equation) -> bool:
    """Return whether an equation is a kernel that could update its largest magnitude."""
    op = equation.op
    if not isinstance(op, Quantize) or op.updates:
        return False
    return not op.reason_for_plain_ops(*(value.type for value in equation.inputs))


def _with_zero(equation: Equation, zero: Value | None, inputs: Sequence[Value]) -> Equation:
    if zero is None:
        return equation.replace(inputs=inputs)
    assert isinstance(equation.op, Quantize)
    return equation.replace(op=replace(equation.op, updates=True), inputs=[*inputs, zero])


def _scalars_of_inputs(program: Program) -> dict[Value, tuple[Value, int]]:
    """Return the values that are one element of an input of one dim: the input, and the index."""
    inputs, producers = frozenset(program.inputs), program.producers()
    found = {}
    for equation in program.equations:
        if not isinstance(equation.op, Reshape) or equation.op.shape:
            continue
        producer = producers.get(equation.inputs[0])
        if producer is None or not isinstance(producer.op, Slice):
            continue
        (source,) = producer.inputs
        if source in inputs and _is_small(source.type):
            found[equation.outputs[0]] = source, producer.op.start[0]
    return found


def _is_small(type: ArrayType) -> bool:
    return type.ndim == 1 and type.dtype == F32 and type.size <= _MOST_ELEMENTS


def _groups(sources: Sequence[Value]) -> Iterator[list[Value]]:
    """Yield inputs whose elements are at most half of the results of one kernel."""
    group: list[Value] = []
    for source in sources:
        if sum(value.type.size for value in (*group, source)) > MOST_RESULTS // 2:
            yield group
            group = []
        group.append(source)
    yield group


def _with_unpacked_outputs(program: Program) -> Program:
    outputs = frozenset(program.outputs)
    slices: dict[Value, list[tuple[Equation, Slice]]] = defaultdict(list)
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Slice) and equation.outputs[0] in outputs and _is_small(equation.outputs[0].type):
            slices[equation.inputs[0]].append((equation, op))
    kernels: dict[Value, Equation] = {}
    replaced: set[Equation] = set()
    for source, parts in slices.items():
        starts = [(0,), *(op.limit for _, op in parts)]
        follow = all(op.start == start and op.stride == (1,) for start, (_, op) in zip(starts, parts, strict=False))
        if follow and _LEAST <= len(parts) <= MOST_RESULTS:
            results = [equation.outputs[0] for equation, _ in parts]
            unpack = Unpack(tuple(value.type.shape for value in results))
            kernels[source] = parts[0][0].replace(op=unpack, outputs=results)
            replaced.update(equation for equation, _ in parts)
    if not kernels:
        return program
    equations = [*_kernels_of(program.inputs, kernels)]
    for equation in program.equations:
        if equation not in replaced:
            equations += [equation, *_kernels_of(equation.outputs, kernels)]
    return program.with_equations(equations)


def _kernels_of(sources: Sequence[Value], kernels: Mapping[Value, Equation]) -> Iterator[Equation]:
    """Yield the kernels that unpack values, and those that unpack their results."""
    for source in sources:
        if source in kernels:
            yield kernels[source]
            yield from _kernels_of(kernels[source].outputs, kernels)

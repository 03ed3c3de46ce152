"""insert_host_copies: copy arguments from host memory where they are first used, and results to host memory."""

from typing import NamedTuple

from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.placement.memory_space import CopyToDevice, CopyToHost, InMemory


class HostArrays(NamedTuple):
    """The inputs of a program that are in host memory, and the outputs that must be."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


NO_HOST_ARRAYS = HostArrays()


@verifies_result
def insert_host_copies(program: Program, host: HostArrays) -> Program:
    """Return the program with its copies between host memory and device memory.

    Each input is copied to the device before its first use, and each output to the host as soon as it is computed. If
    `in_memory` returns an output, its operand is copied instead, because `in_memory` also copies it back.

    Args:
        program: the program, without calls.
        host: the inputs and outputs in host memory.
    """
    if host == NO_HOST_ARRAYS:
        return program
    offloaded = {e.outputs[0]: e.inputs[0] for e in program.equations if isinstance(e.op, InMemory)}
    sources = {index: offloaded.get(program.outputs[index], program.outputs[index]) for index in host.outputs}
    loaded = {program.inputs[index]: Value(program.inputs[index].type) for index in host.inputs}
    stored = {value: Value(value.type) for value in sources.values()}
    equations: list[Equation] = []
    unused = set(loaded)

    def load(value: Value, source: Source) -> Value:
        if value in unused:
            unused.remove(value)
            equations.append(Equation(CopyToDevice(), [value], [loaded[value]], source))
        return loaded.get(value, value)

    def store(value: Value, source: Source) -> None:
        if value in stored:
            equations.append(Equation(CopyToHost(), [load(value, source)], [stored[value]], source))

    for equation in program.equations:
        operands = [load(value, equation.source) for value in equation.inputs]
        equations.append(equation.replace(inputs=operands))
        for value in equation.outputs:
            store(value, equation.source)
    for value in program.inputs:
        store(value, NOWHERE)
    results = [
        stored[sources[index]] if index in sources else load(value, NOWHERE)
        for index, value in enumerate(program.outputs)
    ]
    return program.with_equations(equations, results)

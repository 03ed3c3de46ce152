"""A program's meaning, in numpy: each op by its `reference`. The oracle for every later stage."""

from collections.abc import Sequence

import numpy as np

from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Program


def evaluate(program: Program, args: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
    """The outputs of `program` on `args`."""
    env = {value: np.asarray(arg, value.type.dtype) for value, arg in zip(program.inputs, args, strict=True)}
    for equation in program.equations:
        operands = [env[value] for value in equation.inputs]
        found = equation.op.reference(*operands)
        results = (found,) if equation.op.single else found
        for value, result in zip(equation.outputs, results, strict=True):
            env[value] = np.asarray(result, value.type.dtype)
    return tuple(env[value] for value in program.outputs)

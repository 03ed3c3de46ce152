"""The tangent of an op at given operands."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.transforms.jvp import jvp_program
from tests.compiler.ops.cases import one_op


def tangent_of(op, operands, tangents):
    """Return the tangent of an op on floats; None if it is zero."""
    types = [parse_type(f"f32[{len(operands[0])}]")] * len(operands)
    program, nonzero = jvp_program(one_op(op, types), (True,) * len(operands))
    arrays = [np.array(array, np.float32) for array in (*operands, *tangents)]
    return evaluate(program, arrays)[1] if any(nonzero) else None

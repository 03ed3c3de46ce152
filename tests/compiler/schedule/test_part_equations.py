"""Equations on parts of their operands: the parts of the result are those of the numpy reference."""

from itertools import chain

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.schedule.part_equations import part_equations
from shardwise.compiler.schedule.split_region import split_dims
from tests.compiler.ops.cases import op_cases

PARTS = 2


def splits():
    """Return the cases of ops and result dims along which the op can be split, the first of every op first."""
    found = {}
    for case in op_cases():
        if case.special or not case.op.single or case.op.effect or case.op.programs:
            continue
        (equation,) = case.program.equations
        for dim, size in enumerate(equation.outputs[0].type.shape):
            if size and split_dims(equation, len(equation.inputs), dim, PARTS) is not None:
                found.setdefault(case.op.name, []).append(pytest.param(case, dim, id=f"{case} {dim}"))
    return [*(cases[0] for cases in found.values()), *chain.from_iterable(cases[1:] for cases in found.values())]


@pytest.mark.table(default=60)
@pytest.mark.parametrize(("case", "dim"), splits())
def test_parts_of_results_are_computed_from_parts_of_operands(case, dim):
    (equation,) = case.program.equations
    dims = split_dims(equation, len(equation.inputs), dim, PARTS)
    parts = []
    for part in range(PARTS):
        args = [
            arg if split is None else np.split(arg, PARTS, split)[part]
            for arg, split in zip(case.args, dims.operands, strict=True)
        ]
        inputs = [Value(value.type.with_shape(arg.shape)) for value, arg in zip(equation.inputs, args, strict=True)]
        equations, result = part_equations(equation, inputs, dims, PARTS, part)
        parts += evaluate(Program(tuple(inputs), tuple(equations), (result,)), args)
    (whole,) = evaluate(case.program, case.args)
    joined = np.concatenate(parts, dims.result)
    assert joined.dtype == whole.dtype
    # numpy may add the terms of sums in another order
    np.testing.assert_allclose(joined.astype(complex), whole.astype(complex), rtol=1e-2, atol=1e-6)

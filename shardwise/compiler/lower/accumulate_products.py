"""accumulate_products: compute sums of a product of float8 numbers and another array in the call of the product.

Biases are such sums, and cotangents of an array that several products read, such as the input of queries, keys and
values. XLA does the same with other products, but not across the barriers with which `ScaledDot` is lowered.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.lower.nested_programs import rewrite_nested_programs
from shardwise.compiler.lower.stored_values import is_stored
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.reduce.broadcast import Broadcast

BF16 = np.dtype(ml_dtypes.bfloat16)


@verifies_result
def accumulate_products(program: Program) -> Program:
    """Add to products of float8 numbers where their results are only added, in nested programs too.

    Args:
        program: the program of one device. Layouts are not planned again: a sum of shards has no collective.

    Returns:
        The new program; `program` itself if there is no such sum.
    """
    program = rewrite_nested_programs(program, accumulate_products)
    uses = Counter(value for equation in program.equations for value in equation.inputs)
    uses.update(program.outputs)
    products = {
        equation.outputs[0]: equation
        for equation in program.equations
        if _is_open(equation) and uses[equation.outputs[0]] == 1
    }
    producers: dict[Value, Equation] = {}
    merged: set[Equation] = set()
    equations: list[Equation] = []
    for equation in program.equations:
        product = _added_product(equation, products, producers)
        if product is not None:
            merged.add(product)
        rewritten = equation if product is None else _accumulated(equation, product)
        producers.update(dict.fromkeys(rewritten.outputs, rewritten))
        equations.append(rewritten)
    kept = [equation for equation in equations if equation not in merged]
    return program if kept == list(program.equations) else program.with_equations(kept)


def _is_open(equation: Equation) -> bool:
    """Return whether an equation is a product to which an array can be added. Sums in float16 are rounded first."""
    op = equation.op
    return isinstance(op, ScaledDot) and not op.adds and op.dtype != np.float16


def _added_product(
    equation: Equation, products: Mapping[Value, Equation], producers: Mapping[Value, Equation]
) -> Equation | None:
    """Return the product that is a term of a sum, the last one of two, if the other term can be added to it.

    That is an array in memory, or a bias. XLA computes any other term in the kernel that reads it, which costs less
    than to write it for the product.
    """
    if not isinstance(equation.op, Add):
        return None
    result = equation.outputs[0].type.plain
    for value, addend in (equation.inputs[::-1], equation.inputs):
        is_known = is_stored(addend, producers) or _is_bias(addend, producers)
        if value in products and addend.type.plain == result and is_known:
            return products[value]
    return None


def _is_bias(value: Value, producers: Mapping[Value, Equation]) -> bool:
    """Return whether a value is one vector for each row, of a dtype for which the library call has an epilogue."""
    producer = producers.get(value)
    is_row = producer is not None and isinstance(producer.op, Broadcast) and producer.op.dims == (value.type.ndim - 1,)
    return is_row and value.type.dtype == BF16


def _accumulated(equation: Equation, product: Equation) -> Equation:
    """Return a sum and one of its terms, a product, as one equation."""
    assert isinstance(product.op, ScaledDot)
    (addend,) = (value for value in equation.inputs if value is not product.outputs[0])
    return equation.replace(op=replace(product.op, adds=True), inputs=(*product.inputs, addend))

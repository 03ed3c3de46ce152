"""product_shape: a contraction as products of matrices."""

import math

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ir.types import ArrayType


@registered_cache(maxsize=4096)  # equal layers have equal products
def product_shape(op: Op, types: tuple[ArrayType, ...]) -> tuple[int, int, int, int]:
    """Return a product of operands of these types as `batch` products of m × k and k × n matrices."""
    rule = factor_rule(op, types)
    left, right = ({factor for dim in dims for factor in dim} for dims in rule.operands[:2])
    result = {factor for dim in rule.results[0] for factor in dim}
    batch = m = n = k = 1
    for factor, size in enumerate(rule.sizes):
        if factor not in result:
            k *= size
        elif factor in left and factor in right:
            batch *= size
        elif factor in left:
            m *= size
        else:
            n *= size
    return batch, m, n, k


def is_outer_product(equation: Equation) -> bool:
    """Return whether an equation multiplies matrices without summing. XLA broadcasts and multiplies instead."""
    op = equation.op
    return op.is_product and product_shape(op, tuple([value.type for value in equation.inputs]))[3] == 1


def is_matrix(equation: Equation, side: int) -> bool:
    """Return whether an operand of a product is a matrix, or a batch of matrices, in the shape that it has."""
    batch, m, n, k = product_shape(equation.op, tuple(value.type for value in equation.inputs))
    sizes = [size for size in equation.inputs[side].type.shape if size > 1]
    for size in (n if side else m, k):
        if size > 1 and size not in sizes:
            return False
        if size > 1:
            sizes.remove(size)
    return math.prod(sizes) == batch

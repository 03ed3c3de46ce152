"""triton_products: which products XLA computes on GPUs with kernels of its own (Triton's), and not with cuBLASLt.

XLA's autotuner measures both. Its own kernels need no workspace, and compute elementwise operands inside.
"""

import math

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.product_shape import is_outer_product, product_shape
from shardwise.compiler.plan.chip import Chip

_BLOCK = 128  # rows and columns of the block of a product that one core computes


def is_triton_product(equation: Equation, chip: Chip) -> bool:
    """Return whether the autotuner selects a kernel of XLA for a product, as far as its shape tells.

    It selects the library for most products whose time is that of computing. Products with fewer blocks than the chip
    has cores are split along k. Of those, the library computes the ones that run longer than a kernel needs to start,
    of others, those whose memory traffic takes less than twice as long as computing.
    """
    if not equation.op.is_product or is_outer_product(equation):
        return False
    types = tuple([value.type for value in equation.inputs])
    batch, m, n, k = shape = product_shape(equation.op, types)
    dtype = types[0].dtype
    if min(m, n) == 1:
        return True
    if batch * math.ceil(m / _BLOCK) * math.ceil(n / _BLOCK) <= chip.cores // 2:
        return 2.0 * batch * m * n * k / chip.product_rate(dtype) <= chip.kernel_gap
    accessed = sum([value.type.nbytes for value in (*equation.inputs, *equation.outputs)])
    return chip.is_bound_by_memory(*shape, accessed / 2, dtype)

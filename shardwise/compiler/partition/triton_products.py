"""triton_products: which products XLA computes on GPUs with kernels of its own (Triton's), and not with cuBLASLt.

XLA's autotuner measures both. Its own kernels need no workspace, and compute elementwise operands inside.
"""

import numpy as np

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.partition.product_shape import is_outer_product, product_shape
from shardwise.compiler.plan.chip import Chip

# Seconds: of kernels that are at most so much slower than the fastest, XLA selects one without a workspace.
_WINDOW = 2e-6
_SLOWDOWN = 0.5  # the share of the library's time by which a kernel of XLA may take longer


def is_triton_product(equation: Equation, chip: Chip) -> bool:
    """Return whether the autotuner selects a kernel of XLA for a product, as far as its shape tells.

    It selects the library for most products whose time is that of computing, unless they are so short that the
    difference is within its tolerance. XLA's kernels have no complex numbers.
    """
    if not equation.op.is_product or is_outer_product(equation):
        return False
    types = tuple([value.type for value in equation.inputs])
    batch, m, n, k = product_shape(equation.op, types)
    dtype = types[0].dtype
    if np.issubdtype(dtype, np.complexfloating):
        return False
    if min(m, n) == 1:
        return True
    return 2.0 * batch * m * n * k / chip.product_rate(dtype) * _SLOWDOWN <= _WINDOW

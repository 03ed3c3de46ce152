"""The estimated time of a kernel on a chip: of a product, of memory traffic, of a launch of collectives, or of a copy
from or to host memory.
"""

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.kernels import Kernel
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.product_shape import product_shape
from shardwise.compiler.plan.chip import Chip


def bytes_sent(local: LocalProgram, kernel: Kernel) -> float:
    """Return the bytes that each device sends when a kernel runs once; 0 if it is not a launch of collectives."""
    if kernel.root.op.launch is None:
        return local.bytes_sent(kernel.root)
    return sum(map(local.bytes_sent, kernel.equations))


def kernel_seconds(local: LocalProgram, kernel: Kernel, chip: Chip) -> float:
    """Return the estimated seconds of a kernel that runs once and holds no programs."""
    return local.expert_slowdown(kernel.root) * _balanced_seconds(local, kernel, chip)


def _balanced_seconds(local: LocalProgram, kernel: Kernel, chip: Chip) -> float:
    """Return the estimated seconds of a kernel if all experts have as many tokens."""
    root, op, accessed = kernel.root, kernel.root.op, kernel.bytes_accessed
    if local.bytes_sent(root):
        return local.launch_seconds(local.launches.get(root, (root,)), chip)
    types = [value.type for value in root.inputs]
    if copied := op.host_bytes(*types):
        return chip.host_time(copied)
    if not op.is_contraction:
        flops = op.flops(*types)  # of a kernel of our own, such as a grouped product
        arithmetic = flops / chip.product_rate(types[0].dtype) if flops else 0.0
        return max(chip.memory_time(accessed), arithmetic)
    keys = op.keys_per_query(*types)
    if keys is not None:
        return chip.attention_time(op.flops(*types), keys, accessed, types[0].dtype, op.is_gradient)
    return _product_seconds(op, tuple(types), accessed, chip)


@registered_cache(maxsize=4096)  # equal layers have equal products
def _product_seconds(op: Op, types: tuple[ArrayType, ...], accessed: int, chip: Chip) -> float:
    return chip.product_time(*product_shape(op, types), accessed, types[0].dtype)

"""product_options: the compiler option that lets libraries compute the products of a program for GPUs.

XLA's GPU compiler compares kernels of its own (Triton's) with cuBLAS's, each alone, with random operands. In a program
whose products are limited by compute, the chip's power limits its clock, and cuBLAS's kernels need less power: such
programs are faster with them alone, and compile sooner. Products that are limited by memory, such as those of decoding,
keep the choice: XLA's kernels read narrow operands without a copy.
"""

from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.product_shape import product_shape
from shardwise.compiler.plan.chip import Chip

OPTION = "xla_gpu_enable_triton_gemm"


def product_options(local: LocalProgram, chip: Chip) -> dict[str, bool]:
    """Return the option of XLA's GPU compiler for the products of a program, by its name; none to let XLA choose."""
    computing = reading = 0.0  # the seconds of products that are limited by compute, and of those limited by memory
    for equation, times in local.times.items():
        if not equation.op.is_product:
            continue
        types = tuple(value.type for value in equation.inputs)
        shape, dtype = product_shape(equation.op, types), types[0].dtype
        accessed = sum(value.type.nbytes for value in (*equation.inputs, *equation.outputs))
        seconds = times * chip.product_time(*shape, accessed, dtype)
        if chip.is_bound_by_memory(*shape, accessed, dtype):
            reading += seconds
        else:
            computing += seconds
    return {OPTION: False} if computing > reading else {}


def triton_chip(local: LocalProgram, chip: Chip | None) -> Chip | None:
    """Return the chip, if it is a GPU and XLA may compute products of a program with its own kernels; else None."""
    return None if chip is None or chip.platform != "gpu" or product_options(local, chip) else chip

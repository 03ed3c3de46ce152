"""platform_memory: what XLA's platforms need in memory beside the values of a program, and in which order kernels run.

On GPUs, libraries compute products, convolutions and attention. They need workspaces, and copies of operands in a form
that they accept. On CPU, XLA multiplies narrow floats as f32, and runs kernels in breadth-first order.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.partition.fused_expressions import FusedExpressions
from shardwise.compiler.partition.kernels import Kernel
from shardwise.compiler.partition.product_shape import is_outer_product, product_shape
from shardwise.compiler.partition.triton_products import is_triton_product
from shardwise.compiler.plan.chip import Chip

CPU, GPU = "cpu", "gpu"
_BLOCK = 128 * 128  # the elements of a result that one core of a GPU computes


class OperandCopy(NamedTuple):
    """A copy of an operand for a library.

    Attributes:
        bytes: its bytes.
        shape, order: if it is transposed, the shape and the order of its dims.
        is_separate: whether a kernel of its own makes it, and never the kernel that computes the operand.
    """

    bytes: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    is_separate: bool = False


def workspace_bytes(equation: Equation, chip: Chip | None, all_in_library: bool = False) -> int:
    """Return the bytes that a platform needs only while an equation runs, beside its operands and results.

    Args:
        equation: the equation.
        chip: the hardware; None for none.
        all_in_library: whether the library computes all products of the program on a GPU (`product_options.py`).
    """
    op = equation.op
    if chip is None or is_outer_product(equation):
        return 0
    if chip.platform == CPU:  # the sums of narrow floats are f32, and then rounded
        return (
            0
            if not op.is_contraction
            else sum(2 * value.type.nbytes for value in equation.outputs if value.type.dtype.itemsize == 2)
        )
    if chip.platform != GPU:
        return 0
    types = tuple(value.type for value in equation.inputs)
    if not op.is_product:
        size = op.workspace_bytes(*types)
        return _partial_results_bytes(equation, chip) if size is None else size
    if all_in_library and min(product_shape(op, types)[1:3]) > 1:
        return chip.product_workspace
    return 0 if is_triton_product(equation, chip) else chip.product_workspace


def _partial_results_bytes(equation: Equation, chip: Chip) -> int:
    """Return the bytes of results in f32 of all cores, which a library adds: each core has at most one block."""
    (result,) = equation.outputs
    return chip.cores * 4 * min(result.type.size, _BLOCK)


def operand_copies(
    equations: Iterable[Equation], expressions: FusedExpressions, platform: str
) -> dict[Value, OperandCopy]:
    """Return the copies that a kernel reads instead of operands of its contractions, by the values that are copied.

    Args:
        equations: the equations of the kernel.
        expressions: the expressions of the program.
        platform: the platform.
    """
    copies = {}
    storage, reshaped = expressions.storage, expressions.reshaped
    for equation in equations if platform else ():
        op, inputs = equation.op, equation.inputs
        if op.is_contraction and not is_outer_product(equation):
            types = [value.type for value in inputs]
            sizes, orders = op.copied_bytes(platform, *types), op.copied_orders(platform, *types)
            if platform == GPU and isinstance(op, Conv) and not expressions.is_reversed(inputs[1]):
                sizes = (op.dilated_bytes(*types) or sizes[0], *sizes[1:])
            for value, size, order in zip(inputs, sizes, orders, strict=True):
                if size:
                    copies[storage.get(value, value)] = OperandCopy(size, value.type.shape if order else (), order)
            for value in inputs:
                if op.is_product and value in expressions.column_major:
                    copies.setdefault(storage.get(value, value), OperandCopy(value.type.nbytes, value.type.shape, ()))
            for value in reshaped.get(equation, ()):
                copies.setdefault(value, OperandCopy(value.type.nbytes, product_shape(op, tuple(types))[:2], ()))
        elif isinstance(op, BatchedMatrixOp) and platform == CPU:
            is_separate = op.loops_on_cpu(*[value.type for value in inputs])
            for value, rank in zip(inputs, op.core_ranks, strict=True):
                if rank == 2 and not expressions.is_column_major(value):
                    copy = OperandCopy(value.type.nbytes, value.type.shape, (), is_separate)
                    copies[storage.get(value, value)] = copy
    return copies


def execution_order(
    kernels: Sequence[Kernel], platform: str, inputs: Sequence[Value] = (), is_body: bool = False
) -> tuple[Sequence[Kernel], Sequence[int]]:
    """Return the kernels of a program in the order in which a platform runs them, and when their consumers are ready.

    On CPU, a consumer that needs nothing else runs after the kernels that are ready before. For each kernel, the second
    result is the index in the order at which such a consumer would be.

    XLA orders them breadth-first on CPU, so that many are ready at the same time. `memory_schedule.py` has the order on
    GPUs.

    Args:
        kernels: the kernels in the order of the program.
        platform: the platform.
        inputs: the inputs of the program.
        is_body: whether the program is the body of a loop.
    """
    if platform != CPU:
        return kernels, ()
    producers = {value: index for index, kernel in enumerate(kernels) for value in kernel.writes}
    missing: list[int] = []
    consumers: list[list[int]] = [[] for _ in kernels]
    for index, kernel in enumerate(kernels):
        needs = {producers[value] for value in kernel.reads if producers.get(value, index) != index}
        missing.append(len(needs))
        for other in needs:
            consumers[other].append(index)
    places = {value: place for place, value in enumerate(inputs)}
    constants = -1 if is_body else len(places)  # the inputs of a body are elements of a tuple, and come later

    def last_input(index: int) -> int:
        return max([places[value] for value in kernels[index].reads if value in places], default=constants)

    order = sorted([index for index, count in enumerate(missing) if not count], key=last_input)
    ready: list[int] = []
    for index in order:  # grows while it is read
        ready.append(len(order))
        # Of the products that read one cotangent, the last is the one that the next layer waits for.
        for consumer in reversed(consumers[index]):
            missing[consumer] -= 1
            if not missing[consumer]:
                order.append(consumer)
    return [kernels[index] for index in order], ready


def is_loop(op: Op) -> bool:
    """Return whether an op runs its program several times."""
    return bool(op.programs) and op.trip_count != 1

"""platform_memory: what XLA's platforms need in memory beside the values of a program, and in which order kernels run.

On GPUs, libraries compute products, convolutions and attention. They need workspaces, and copies of operands in a form
that they accept. On CPU, XLA multiplies narrow floats as f32, and runs kernels in breadth-first order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.partition.fused_expressions import FusedExpressions
from shardwise.compiler.partition.kernels import Kernel, KernelGroups
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


_Copy = tuple[Value, OperandCopy]  # an operand and a copy of it


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
    groups: KernelGroups, platform: str, inputs: Sequence[Value] = (), is_body: bool = False
) -> tuple[Sequence[Kernel], Sequence[int]]:
    """Return the kernels of a program in the order in which a platform runs them, and when their consumers are ready.

    On CPU, a consumer that needs nothing else runs after the kernels that are ready before. For each kernel, the second
    result is the index in the order at which such a consumer would be.

    XLA orders them breadth-first on CPU, so that many are ready at the same time. This order includes copies of
    operands, after the other consumers of the operand. `memory_schedule.py` has the order on GPUs.

    Args:
        groups: the kernels in the order of the program.
        platform: the platform.
        inputs: the inputs of the program.
        is_body: whether the program is the body of a loop.
    """
    kernels = groups.kernels
    if platform != CPU:
        return kernels, ()
    copied = [operand_copies(kernel.equations, groups.expressions, platform) for kernel in kernels]
    copies = list(_separate_copies(groups, copied))
    producers: dict[Value | _Copy, int] = {value: i for i, kernel in enumerate(kernels) for value in kernel.writes}
    producers.update({copy: len(kernels) + i for i, copy in enumerate(copies)})

    def operand(value: Value, own: Mapping[Value, OperandCopy]) -> Value | _Copy:
        """Return what a kernel reads for a value: a separate copy, if it needs one."""
        return (value, own[value]) if value in own and (value, own[value]) in producers else value

    reads = [[operand(value, own) for value in kernel.reads] for kernel, own in zip(kernels, copied, strict=True)]
    reads += [[value] for value, _ in copies]
    missing: list[int] = []
    consumers: list[list[int]] = [[] for _ in reads]
    for index, values in enumerate(reads):
        needs = {producers[value] for value in values if producers.get(value, index) != index}
        missing.append(len(needs))
        for other in needs:
            consumers[other].append(index)
    places: dict[Value | _Copy, int] = {value: place for place, value in enumerate(inputs)}
    constants = -1 if is_body else len(places)  # the inputs of a body are elements of a tuple, and come later

    def last_input(index: int) -> int:
        return max([places[value] for value in reads[index] if value in places], default=constants)

    def consumer_order(index: int) -> int:
        # Of the products that read one cotangent, the last is the one that the next layer waits for.
        return index if index >= len(kernels) else -index

    queue = sorted([index for index, count in enumerate(missing) if not count], key=last_input)
    order: list[Kernel] = []
    ready: list[int] = []
    queued = sum([index < len(kernels) for index in queue])  # the number of kernels in the queue so far
    for index in queue:  # grows while it is read
        if index < len(kernels):
            order.append(kernels[index])
            ready.append(queued)
        for consumer in sorted(consumers[index], key=consumer_order):
            missing[consumer] -= 1
            if not missing[consumer]:
                queue.append(consumer)
                queued += consumer < len(kernels)
    return order, ready


def _separate_copies(groups: KernelGroups, copied: Sequence[Mapping[Value, OperandCopy]]) -> Iterator[_Copy]:
    """Return the copies that kernels of their own make. The kernel of an operand writes its only copy."""
    needed: dict[Value, dict[OperandCopy | None, None]] = {}  # None for kernels that read the operand itself
    for kernel, own in zip(groups.kernels, copied, strict=True):
        for value in kernel.reads:
            needed.setdefault(value, {})[own.get(value)] = None
    producers = {value: kernel for kernel in groups.kernels for value in kernel.writes}
    results = {groups.storage.get(value, value) for value in groups.program.outputs}
    for value, copies in needed.items():
        is_fused = value in producers and groups.expressions.roots[producers[value].root].fuses
        is_only = is_fused and len(copies) == 1 and value not in results
        for copy in reversed(copies):  # in the order of other consumers
            if copy is not None and (copy.is_separate or not is_only):
                yield value, copy


def is_loop(op: Op) -> bool:
    """Return whether an op runs its program several times."""
    return bool(op.programs) and op.trip_count != 1

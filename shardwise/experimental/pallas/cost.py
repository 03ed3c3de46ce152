"""CostEstimate and estimate_cost: the work of a kernel, as its author states it.

The planner counts the ops of interpreted kernels itself, and ignores the statement.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

from shardwise import tree
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.trace.build import build

_TRANSCENDENTAL = {"cos", "erf", "erf_inv", "exp", "expm1", "log", "log1p", "logistic", "pow", "sin", "tan", "tanh"}


@final
@dataclass(frozen=True)
class CostEstimate:
    """The work of a kernel.

    Attributes:
        flops: the number of operations on floats.
        transcendentals: the number of exponentials and the like.
        bytes_accessed: the number of bytes that are read and written.
        remote_bytes_transferred: the number of bytes that are sent to other devices.
    """

    flops: int
    transcendentals: int
    bytes_accessed: int
    remote_bytes_transferred: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int):
                raise TypeError(f"CostEstimate: {name} must be an integer, not {value!r}: round it with `int`")


def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """Count the operations of a function of arrays.

    Args:
        fun: the function.
        args: its arguments: pytrees of arrays, or of types such as `ShapeDtypeStruct`.
        kwargs: its keyword arguments, which are constants.

    Returns:
        The flops of products and element-wise ops, the number of transcendental results, and the bytes of the arguments
        and results.

    Raises:
        AttributeError: if an argument has no shape and dtype.

    Example:
        >>> pallas.estimate_cost(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 4))).flops
        48
    """
    leaves, structure = tree.flatten(args)
    types = [ArrayType(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    program, _ = build(
        lambda *arrays: tree.leaves(fun(*structure.unflatten(arrays), **kwargs)), types, getattr(fun, "__name__", "fun")
    )
    flops, transcendentals = _count(program)
    ends = [*types, *(value.type for value in program.outputs)]
    return CostEstimate(flops, transcendentals, sum(type.size * type.dtype.itemsize for type in ends))


def _count(program: Program) -> tuple[int, int]:
    flops = transcendentals = 0
    for equation in program.equations:
        op = equation.op
        flops += int(op.flops(*(value.type for value in equation.inputs)))
        if isinstance(op, Elementwise):
            size = equation.outputs[0].type.size
            is_transcendental = op.name in _TRANSCENDENTAL
            flops, transcendentals = flops + size, transcendentals + size * is_transcendental
    return flops, transcendentals

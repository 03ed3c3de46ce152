"""unpack: small arrays whose elements follow each other in one array, by one kernel.

XLA slices each of them in a kernel of its own if libraries or users read them, such as the scales of products.
"""

import math
from typing import Any, final

from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import I32, TritonBuilder
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.shardings.factors import FactorRule

MOST_RESULTS = 448  # the addresses of a kernel's arrays have to fit 4 KiB


@final
@record
class Unpack(KernelOp):
    """x [N] → arrays of `shapes`, whose elements are the first ones of x in order."""

    name = "unpack"
    shapes: tuple[tuple[int, ...], ...]

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.ndim != 1 or x.size < sum(map(math.prod, self.shapes)):
            raise TypeError(f"unpack: {x} is no array of one dim with the elements of {self.shapes}")
        return tuple(ArrayType(shape, x.dtype) for shape in self.shapes)

    def obstacle(self, *types: ArrayType) -> str:
        if len(self.shapes) > MOST_RESULTS:
            return f"a kernel has at most {MOST_RESULTS} results"
        return super().obstacle(*types)

    def factors(self, *types: ArrayType) -> FactorRule:
        sizes = [types[0].size]
        results = []
        for shape in self.shapes:
            results.append(tuple((len(sizes) + dim,) for dim in range(len(shape))))
            sizes += shape
        return FactorRule((((0,),),), tuple(results), tuple(sizes), need_replication=frozenset(range(len(sizes))))

    def plain(self, *operands: Any) -> list[Any]:
        (x,) = operands
        results, start = [], 0
        for shape in self.shapes:
            limit = start + math.prod(shape)
            results.append(Reshape(shape)(Slice((start,), (limit,), (1,))(x)))
            start = limit
        return results

    def kernel_launch(self, *types: ArrayType) -> Launch:
        return Launch(1, 1, self.out_types(*types))

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        x, *results = kernel.pointers
        places = [(result, i) for result, type in zip(results, launch.results, strict=True) for i in range(type.size)]
        elements = [kernel.load(x, kernel.full((), index, I32)) for index in range(len(places))]
        for (result, index), element in zip(places, elements, strict=True):
            kernel.store(result, kernel.full((), index, I32), element)

"""adam: the update of one parameter array by Adam, in one pass over memory and in place.

    adam    rate and corrections f32[3] (f64[3] for float64), parameters, gradient, mean, square → new parameters, mean
            and square, and optionally the parameters in a narrower dtype, with which the next step computes

All dims can be sharded: each device updates its shards.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.dtypes import DType, is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I64, Block, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.shardings.factors import FactorRule

_BLOCK_SIZE = 1024  # elements per program


@final
@record
class Adam(KernelOp):
    """(f32[3], parameters, gradient, mean, square) → parameters, mean, square, optionally parameters of `copy_dtype`.

    The operand f32[3] has the learning rate and, for step t, 1 / (1 - decay ** t) and 1 / (1 - square_decay ** t).

    Attributes:
        decay: the decay of the mean of gradients.
        square_decay: the decay of the mean of their squares.
        epsilon: the number that is added to the root of the square.
        weight_decay: the fraction of the parameters that is added to the update.
        copy_dtype: the dtype of the copy; None if there is none.
    """

    name = "adam"
    decay: float
    square_decay: float
    epsilon: float
    weight_decay: float
    copy_dtype: DType | None = None

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        scalars, parameters, *rest = types
        if not is_float(parameters.dtype):
            raise TypeError(f"adam: parameters must be floats, not {parameters}")
        expected = ArrayType((3,), numpy_carrier(parameters.dtype))
        if scalars.plain.strong() != expected:
            raise TypeError(f"adam: the rate and the corrections of {parameters} must be {expected}, not {scalars}")
        for role, type in zip(("gradient", "mean", "square"), rest, strict=True):
            if type.shape != parameters.shape or not is_float(type.dtype):
                raise TypeError(f"adam: the {role} of {parameters} must be floats of their shape, not {type}")
        results = (parameters.strong(), *(type.strong() for type in rest[1:]))
        return results if self.copy_dtype is None else (*results, ArrayType(parameters.shape, self.copy_dtype))

    def factors(self, *types: ArrayType) -> FactorRule:
        ndim = types[1].ndim
        dims = tuple((dim,) for dim in range(ndim))
        return FactorRule(
            (((ndim,),), *(dims,) * 4),
            (dims,) * (3 + (self.copy_dtype is not None)),
            (*types[1].shape, 3),
            need_replication=frozenset({ndim}),
        )

    def plain(self, *operands: Operand) -> list[Any]:
        scalars, *arrays = operands
        type = arrays[0].type
        wide = numpy_carrier(type.dtype)
        rate, correction, square_correction = (
            Expr(Convert(wide)(Broadcast(type.shape, ())(Reshape(())(Slice((i,), (i + 1,), (1,))(scalars)))))
            for i in range(3)
        )
        parameters, gradient, mean, square = (Expr(Convert(wide)(x)) for x in arrays)
        mean = mean * self.decay + gradient * (1 - self.decay)
        square = square * self.square_decay + gradient * gradient * (1 - self.square_decay)
        root = apply(Sqrt(), square * square_correction)
        update = mean * correction / (root + self.epsilon)
        if self.weight_decay:
            update = update + parameters * self.weight_decay
        parameters = parameters - rate * update
        results = [(parameters, type.dtype), (mean, arrays[2].type.dtype), (square, arrays[3].type.dtype)]
        if self.copy_dtype is not None:
            results.append((parameters, self.copy_dtype))
        return [Convert(dtype)(x.array) for x, dtype in results]

    def vmap(self, axis: BatchAxis, operands: Sequence[Operand], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if dims[0] is not None:
            return super().vmap(axis, operands, dims)
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands[1:], dims[1:], strict=True)]
        results = self(operands[0], *batched)
        return results, (0,) * len(results)

    def kernel_launch(self, *types: ArrayType) -> Launch:
        results = self.out_types(*types)
        block = min(_BLOCK_SIZE, next_power_of_two(types[1].size))
        # Parameters, mean and square are updated in place: without it, XLA would copy donated arrays.
        return Launch(-(-types[1].size // block), 4, results, written=((0, 1), (1, 3), (2, 4)))

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        size = types[1].size
        block = min(_BLOCK_SIZE, next_power_of_two(size))
        program = kernel.program_id().to(I64)
        offsets = kernel.range(block)
        mask = None if size % block == 0 else program * block + offsets.to(I64) < size
        scalars, *arrays = kernel.pointers
        rate, correction, square_correction = (
            kernel.load(scalars.advance(kernel.full((), i, I64)), kernel.full((), 0, I64)) for i in range(3)
        )
        operands, results = arrays[:4], arrays[4:]

        def load(index: int) -> Block:
            return kernel.load(operands[index].advance(program * block), offsets, mask).to(F32)

        parameters, gradient, mean, square = (load(index) for index in range(4))
        mean = mean * self.decay + gradient * (1 - self.decay)
        square = square * self.square_decay + gradient * gradient * (1 - self.square_decay)
        update = mean * correction / (kernel.sqrt(square * square_correction) + self.epsilon)
        if self.weight_decay:
            update = update + parameters * self.weight_decay
        parameters = parameters - update * rate
        for pointer, value in zip(results, (parameters, mean, square, parameters), strict=False):
            kernel.store(pointer.advance(program * block), offsets, value, mask)

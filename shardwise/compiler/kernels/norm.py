"""norm: RMS norm and layer norm of rows, with the addition of a residual before, in one pass over memory.

    norm        x [..., D], optionally a delta of the same type, scale [D], optionally bias [D] → optionally x + delta,
                and the normalized rows
    norm_factors    x [..., D], optionally a delta → optionally x + delta, and for each row the mean, if it is
                subtracted, and the factor, from which other kernels compute normalized rows
    norm_grad   the cotangent of the normalized rows, the rows, scale, optionally another cotangent of the rows → the
                cotangents of the rows, of the scale and optionally of the bias

Rows can be sharded along all dims but the last.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, Block, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply
from shardwise.compiler.ops.elementwise.powers import Rsqrt
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

MAX_WIDTH = 2**15  # a program holds one row in registers
_BLOCK_SIZE = 1024  # elements of a block of several short rows
_GRADIENT_PROGRAMS = 512  # each sums the cotangents of the scale of several rows, and loads the next rows meanwhile


@record
class RowNorm(KernelOp):
    """The base class.

    Attributes:
        centred: whether the mean is subtracted (layer norm), or not (RMS norm).
        epsilon: the number that is added to the mean square.
        adds: whether a delta is added to the rows before.
        biased: whether a bias is added to the normalized rows.
    """

    centred: bool
    epsilon: float
    adds: bool = False
    biased: bool = False

    def obstacle(self, *types: ArrayType) -> str:
        width = types[0].shape[-1]
        if width > MAX_WIDTH:
            return f"rows of {width} elements do not fit a program, which holds at most {MAX_WIDTH}"
        return super().obstacle(*types)

    def _rule(self, operands: str, results: str, rows: ArrayType, reduced: bool) -> FactorRule:
        """Return the rule for operands and results: rows ("r"), the width alone ("w"), or an element per row ("f")."""
        width = rows.ndim - 1
        dims = {"r": tuple((dim,) for dim in range(rows.ndim)), "w": ((width,),)}
        dims["f"] = dims["r"][:width]
        return FactorRule(
            tuple(dims[role] for role in operands),
            tuple(dims[role] for role in results),
            rows.shape,
            dict.fromkeys(range(width), SUM) if reduced else {},
            need_replication=frozenset({width}),
        )

    def _blocks(self, rows: ArrayType) -> tuple[int, int, int]:
        """Return the rows per block, the elements per row of a block, and the number of blocks."""
        width = next_power_of_two(rows.shape[-1])
        count = rows.size // rows.shape[-1]
        height = min(max(1, _BLOCK_SIZE // width), next_power_of_two(count))
        return height, width, -(-count // height)


def _warps(elements: int, per_warp: int) -> int:
    return min(16, max(4, elements // per_warp))


class _Rows:
    """The rows of one block in a kernel: their offsets from the first element of the block, and masks."""

    def __init__(self, kernel: TritonBuilder, rows: ArrayType, height: int, width: int, block: Block, blocks: int):
        """Describe a block of rows, one of `blocks` that all programs together have."""
        size, count = rows.shape[-1], rows.size // rows.shape[-1]
        self.kernel, self.start, self.size = kernel, block.to(I64) * (height * size), size
        row, self.columns = kernel.range(height).expand(1), kernel.range(width).expand(0)
        self.offsets = row * size + self.columns
        self.column_mask = None if width == size else self.columns < size
        self.mask = self.column_mask
        if count != blocks * height:
            in_bounds = row + block * height < count
            self.mask = in_bounds if self.mask is None else in_bounds & self.mask

    def load(self, index: int) -> Block:
        return self.load_narrow(index).to(F32)

    def load_narrow(self, index: int) -> Block:
        """Load rows in their dtype."""
        kernel = self.kernel
        return kernel.load(kernel.pointers[index].advance(self.start), self.offsets, self.mask)

    def store(self, index: int, value: Block) -> None:
        self.kernel.store(self.kernel.pointers[index].advance(self.start), self.offsets, value, self.mask)

    def load_row(self, index: int) -> Block:
        """Load an array of one dim, the width."""
        return self.kernel.load(self.kernel.pointers[index], self.columns, self.column_mask).to(F32)

    def normalize(self, x: Block, centred: bool, epsilon: float) -> tuple[Block, Block]:
        """Return the normalized rows, and the factor of each row."""
        kernel = self.kernel
        if centred:
            x = x - (x.sum(1) / float(self.size)).expand(1)
            x = x if self.column_mask is None else kernel.where(self.column_mask, x, 0.0)
        factor = kernel.rsqrt((x * x).sum(1) / float(self.size) + epsilon).expand(1)
        return x * factor, factor


@final
@record
class Norm(RowNorm):
    """(x, optionally delta, scale, optionally bias) → optionally x + delta, and the normalized rows."""

    name = "norm"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        rows, delta, *parameters = types if self.adds else (types[0], types[0], *types[1:])
        function = "layer_norm" if self.centred else "rms_norm"
        if not rows.ndim or not is_float(rows.dtype):
            raise TypeError(f"{function}: needs rows of floats, not {rows}")
        if delta.plain != rows.plain:
            raise TypeError(f"{function}: x and the residual must have one type, not {rows} and {delta}")
        for type in parameters:
            if type.shape != rows.shape[-1:] or not is_float(type.dtype):
                raise TypeError(
                    f"{function}: scale and bias of {rows} must be floats of shape {rows.shape[-1:]}, not {type}"
                )
        return (rows.strong(),) * (2 if self.adds else 1)

    def factors(self, *types: ArrayType) -> FactorRule:
        rows = "rr" if self.adds else "r"
        return self._rule(rows + "w" * (len(types) - len(rows)), rows, types[0], reduced=False)

    def plain(self, *operands: Any) -> list[Any]:
        x, *rest = operands
        if self.adds:
            x = (Expr(x) + Expr(rest.pop(0))).array
        normalized, _ = _normalize(_wide(x), self.centred, self.epsilon)
        result = normalized * _as_rows(rest[0], normalized)
        if self.biased:
            result = result + _as_rows(rest[1], normalized)
        return [*([x] if self.adds else []), Convert(x.type.dtype)(result.array)]

    def split(self, *operands: Any) -> list[Any]:
        """Compute the same by the kernel `norm_factors`, and elementwise ops of its results."""
        rows, parameters = operands[: 1 + self.adds], operands[1 + self.adds :]
        results = NormFactors(self.centred, self.epsilon, self.adds)(*rows)
        x = results[0] if self.adds else rows[0]
        shape, leading = x.type.shape, tuple(range(x.type.ndim - 1))
        *means, factor = (Expr(Broadcast(shape, leading)(each)) for each in results[self.adds :])
        wide = _wide(x)
        for mean in means:
            wide = wide - mean
        # Vectors are broadcast in their dtype: a kernel that computes the rows converts them too.
        scale, *bias = (_wide(Broadcast(shape, (len(leading),))(each)) for each in parameters)
        result = wide * factor * scale
        if bias:
            result = result + bias[0]
        return [*([x] if self.adds else []), Convert(x.type.dtype)(result.array)]

    def gradient(self, operands: Sequence[Any], results: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        rows, scale = (results[0] if self.adds else operands[0]), operands[1 + self.adds]
        op = NormGrad(self.centred, self.epsilon, self.adds, self.biased)
        found = op(cotangents[-1], rows, scale, *cotangents[:-1])
        parameters = [
            ct if ct.type.dtype == operand.type.dtype else Convert(operand.type.dtype)(ct)
            for operand, ct in zip(operands[1 + self.adds :], found[1:], strict=True)
        ]
        return [found[0]] * (1 + self.adds) + parameters

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        rows = 1 + self.adds
        if any(dim is not None for dim in dims[rows:]):
            return super().vmap(axis, operands, dims)
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands[:rows], dims[:rows], strict=True)]
        return self(*batched, *operands[rows:]), (0,) * rows

    def kernel_launch(self, *types: ArrayType) -> Launch:
        height, width, blocks = self._blocks(types[0])
        return Launch(blocks, _warps(height * width, 512), self.out_types(*types))

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        rows = _Rows(kernel, types[0], *self._blocks(types[0])[:2], kernel.program_id(), launch.programs)
        scale, result = 1 + self.adds, len(types)
        x = rows.load(0)
        if self.adds:
            x = (x + rows.load(1)).to(types[0].dtype)
            rows.store(result, x)
            x, result = x.to(F32), result + 1
        normalized, _ = rows.normalize(x, self.centred, self.epsilon)
        normalized = normalized * rows.load_row(scale)
        rows.store(result, normalized + rows.load_row(scale + 1) if self.biased else normalized)


@final
@record
class NormFactors(RowNorm):
    """(x, optionally delta) → optionally x + delta, optionally the mean of each row, and its factor."""

    name = "norm_factors"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        rows = types[0]
        if len(types) != 1 + self.adds or any(type.plain != rows.plain for type in types):
            raise TypeError(f"norm_factors: x and the residual must have one type, not {[*map(str, types)]}")
        if not rows.ndim or not is_float(rows.dtype):
            raise TypeError(f"norm_factors: needs rows of floats, not {rows}")
        factor = ArrayType(rows.shape[:-1], numpy_carrier(rows.dtype))
        return (*([rows.strong()] if self.adds else []), *[factor] * (1 + self.centred))

    def factors(self, *types: ArrayType) -> FactorRule:
        adds = "r" * self.adds
        return self._rule("r" + adds, adds + "f" * (1 + self.centred), types[0], reduced=False)

    def plain(self, *operands: Any) -> list[Any]:
        x = operands[0]
        if self.adds:
            x = (Expr(x) + Expr(operands[1])).array
        wide = _wide(x)
        mean = _mean_of_rows(wide)
        if self.centred:
            wide = wide - _row_mean(wide)
        factor = apply(Rsqrt(), _mean_of_rows(wide * wide) + self.epsilon)
        return [*([x] if self.adds else []), *([mean.array] if self.centred else []), factor.array]

    def kernel_launch(self, *types: ArrayType) -> Launch:
        height, width, blocks = self._blocks(types[0])
        return Launch(blocks, _warps(height * width, 512), self.out_types(*types))

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        height, width, _ = self._blocks(types[0])
        rows = _Rows(kernel, types[0], height, width, kernel.program_id(), launch.programs)
        x, results = rows.load(0), kernel.pointers[len(types) :]
        if self.adds:
            x = (x + rows.load(1)).to(types[0].dtype)
            rows.store(len(types), x)
            x, results = x.to(F32), results[1:]
        first = kernel.program_id().to(I64) * height
        row = kernel.range(height)
        count = types[0].size // rows.size
        mask = None if count == launch.programs * height else kernel.program_id() * height + row < count
        if self.centred:
            kernel.store(results[0].advance(first), row, x.sum(1) / float(rows.size), mask)
        factor = rows.normalize(x, self.centred, self.epsilon)[1]
        kernel.store(results[-1].advance(first), row, factor.reshape((height,)), mask)


@final
@record
class NormGrad(RowNorm):
    """(cotangent of the normalized rows, rows, scale, optionally cotangent of the rows) → cotangents.

    The cotangents are those of the rows, of the scale and, if `biased`, of the bias; the latter two are f32.
    """

    name = "norm_grad"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        ct, rows, _, *rest = types
        if any(type.plain != rows.plain for type in (ct, *rest)):
            raise TypeError(f"norm_grad: cotangents must have the type of the rows, {rows}, not {ct}")
        sums = ArrayType(rows.shape[-1:], numpy_carrier(rows.dtype))
        return rows.strong(), sums, *([sums] if self.biased else [])

    def factors(self, *types: ArrayType) -> FactorRule:
        return self._rule("rrw" + "r" * self.adds, "rw" + "w" * self.biased, types[1], reduced=True)

    def plain(self, *operands: Any) -> list[Any]:
        ct, rows, scale, *rest = operands
        wide_ct = _wide(ct)
        normalized, factor = _normalize(_wide(rows), self.centred, self.epsilon)
        scaled = wide_ct * _as_rows(scale, wide_ct)
        centred = scaled - normalized * _row_mean(scaled * normalized)
        if self.centred:
            centred = centred - _row_mean(scaled)
        result = factor * centred
        if self.adds:
            result = result + _wide(rest[0])
        leading = tuple(range(rows.type.ndim - 1))
        sums = [wide_ct * normalized, *([wide_ct] if self.biased else [])]
        return [Convert(rows.type.dtype)(result.array), *(Sum(leading)(x.array) for x in sums)]

    def kernel_launch(self, *types: ArrayType) -> Launch:
        height, width, blocks = self._blocks(types[1])
        programs = min(blocks, _GRADIENT_PROGRAMS)
        parts = ArrayType((programs, types[1].shape[-1]), F32)
        rows, *sums = self.out_types(*types)
        return Launch(programs, _warps(height * width, 256), (rows, *[parts] * len(sums)))

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        height, width, blocks = self._blocks(types[1])
        per_program = -(-blocks // launch.programs)
        result = len(types)
        program = kernel.program_id()
        first = program * per_program
        arrays = (0, 1, 3) if self.adds else (0, 1)

        def rows_of(index: Block) -> _Rows:
            return _Rows(kernel, types[1], height, width, first + index, per_program * launch.programs)

        def load(index: Block) -> list[Block]:
            return [rows_of(index).load_narrow(array) for array in arrays]

        def add_block(index: Block, *carries: Block) -> list[Block]:
            sums, loaded = carries[: len(zeros)], carries[len(zeros) :]
            # The next rows are loaded while these are computed; the last ones once more, from the cache.
            following = load(kernel.minimum(index + 1, per_program - 1))
            rows = rows_of(index)
            ct, x, *rest = (block.to(F32) for block in loaded)
            normalized, factor = rows.normalize(x, self.centred, self.epsilon)
            scaled = ct * scale
            centred = scaled - normalized * ((scaled * normalized).sum(1) / float(rows.size)).expand(1)
            if self.centred:
                centred = centred - (scaled.sum(1) / float(rows.size)).expand(1)
            cotangent = factor * centred
            rows.store(result, cotangent + rest[0] if self.adds else cotangent)
            terms = [ct * normalized, ct]
            return [*(total + term.sum(0) for total, term in zip(sums, terms, strict=False)), *following]

        start = kernel.full((), 0, I32)
        scale = rows_of(start).load_row(2)
        zeros = [kernel.full((width,), 0.0, F32) for _ in launch.results[1:]]
        sums = kernel.loop(per_program, 1, [*zeros, *load(start)], add_block)[: len(zeros)]
        size = types[1].shape[-1]
        columns = kernel.range(width)
        mask = None if width == size else columns < size
        for index, total in enumerate(sums):
            part = kernel.pointers[result + 1 + index].advance(program.to(I64) * size)
            kernel.store(part, columns, total, mask)

    def finish(self, hlo: Hlo, written: Sequence[HloValue]) -> Sequence[HloValue]:
        return [written[0], *(Sum((0,)).lower(hlo, parts) for parts in written[1:])]


def _wide(x: Any) -> Expr:
    dtype = numpy_carrier(x.type.dtype)
    return Expr(x if x.type.dtype == dtype else Convert(dtype)(x))


def _as_rows(x: Any, rows: Expr) -> Expr:
    """Broadcast an array of one dim, the width, to rows."""
    shape = rows.array.type.shape
    wide = Convert(rows.dtype)(x) if x.type.dtype != rows.dtype else x
    return Expr(Broadcast(shape, (len(shape) - 1,))(wide))


def _row_mean(x: Expr) -> Expr:
    """Return the mean of each row, for each of its elements."""
    type = x.array.type
    return Expr(Broadcast(type.shape, tuple(range(type.ndim - 1)))(_mean_of_rows(x).array))


def _mean_of_rows(x: Expr) -> Expr:
    """Return the mean of each row."""
    type = x.array.type
    return apply(Sum((type.ndim - 1,)), x) / float(type.shape[-1])


def _normalize(x: Expr, centred: bool, epsilon: float) -> tuple[Expr, Expr]:
    """Return the normalized rows, and the factor of each row for each of its elements."""
    x = x - _row_mean(x) if centred else x
    factor = apply(Rsqrt(), _row_mean(x * x) + epsilon)
    return x * factor, factor

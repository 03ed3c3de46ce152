"""cross_entropy: the terms of the loss of a classifier, without a copy of the logits in float32.

    cross_entropy        logits [..., V], targets [...] → the logit of each target, and the logsumexp of each row
    cross_entropy_grad   logits, targets, logsumexp, the cotangent of the target's logit, the cotangent of the logsumexp
                         → the cotangent of the logits

A target that is not in [0, V) has a logit of 0. On a mesh, the logits can be sharded along all dims. Along the
vocabulary, devices exchange two numbers per row.
"""

from collections.abc import Sequence
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, LocalContext
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, Block, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import valid_mask
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.traffic import Traffic, all_gather, one_after_another

_BLOCK_SIZE = 8192  # the logits that a program holds at a time


@record
class RowLoss(KernelOp):
    """The base class: operands and results are logits, or have one element per row."""

    def kernel_launch(self, *types: ArrayType) -> Launch:
        logits = types[0]
        block = min(_BLOCK_SIZE, next_power_of_two(logits.shape[-1]))
        return Launch(logits.size // logits.shape[-1], min(8, max(1, block // 1024)), self.out_types(*types))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)]
        results = self(*batched)
        return results, (0,) * len(results)

    def _local_targets(self, context: LocalContext, logits: Operand, targets: Operand) -> Any:
        """Return the targets as indices of this device's shard of the vocabulary."""
        offset = context.offset(logits.type.ndim - 1, targets.type.dtype, 0)
        return targets if offset is None else Sub()(targets, Broadcast(targets.type.shape, ())(offset))


def _for_each_block(kernel: TritonBuilder, width: int, start: Sequence[Block], body: Any) -> Sequence[Block]:
    """Run `body(columns, mask, *carries)` for each block of a row."""
    block = min(_BLOCK_SIZE, next_power_of_two(width))

    def step(first: Block, *carries: Block) -> Any:
        columns = kernel.range(block) + first
        return body(columns, None if width % block == 0 else columns < width, *carries)

    return kernel.loop(width, block, start, step)


@final
@record
class CrossEntropy(RowLoss):
    """(logits, targets) → the logit of each target, and the logsumexp of each row."""

    name = "cross_entropy"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        logits, targets = types
        if not logits.ndim or not logits.shape[-1] or not is_float(logits.dtype):
            raise TypeError(f"cross_entropy: needs logits of floats, [..., V], not {logits}")
        if targets.shape != logits.shape[:-1] or targets.dtype != I32:
            raise TypeError(
                f"cross_entropy: targets of {logits} must be i32 of shape {logits.shape[:-1]}, not {targets}"
            )
        row = ArrayType(logits.shape[:-1], numpy_carrier(logits.dtype))
        return row, row

    def factors(self, *types: ArrayType) -> FactorRule:
        last = types[0].ndim - 1
        rows = tuple((dim,) for dim in range(last))
        return FactorRule(((*rows, (last,)), rows), (rows, rows), types[0].shape, exchange=frozenset({last}))

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        return one_after_another(*[all_gather(type.nbytes, count) for type in self.out_types(*types)])

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        """Compute both numbers for each shard of the vocabulary, gather them, and combine them."""
        logits, targets = operands
        last = logits.type.ndim - 1
        axes = context.sharding_of(last, 0)[0]
        valid = valid_mask(context, logits.type.shape, last, 0)
        if valid is not None:
            is_word = Compare("LT")(targets, full_like(targets, context.global_types[0].shape[-1]))
            targets = Select()(is_word, targets, full_like(targets, -1))  # not the index of padding
            # Not -inf: the logsumexp of a shard that has only padding would be NaN.
            least = float(ml_dtypes.finfo(logits.type.dtype).min)  # type: ignore[no-untyped-call]
            logits = Select()(valid, logits, full_like(logits, least))
        results = self(logits, self._local_targets(context, logits, targets))
        if not axes:
            return results
        gather = AllGather(0, axes, context.mesh.extent(axes))
        picked, logsumexp = (Expr(gather(Reshape((1, *x.type.shape))(x))) for x in results)
        return apply(Sum((0,)), picked).array, _logsumexp(logsumexp, 0).array

    def plain(self, *operands: Any) -> list[Any]:
        logits, targets = operands
        wide = Expr(Convert(numpy_carrier(logits.type.dtype))(logits))
        last = logits.type.ndim - 1
        picked = where(_is_target(logits.type, targets), wide, 0.0)
        return [apply(Sum((last,)), picked).array, _logsumexp(wide, last).array]

    def gradient(self, operands: Sequence[Any], results: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        return [CrossEntropyGrad()(*operands, results[1], *cotangents)[0], None]

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        width = types[0].shape[-1]
        row = kernel.program_id().to(I64)
        logits, targets, picked, logsumexp = kernel.pointers
        first = kernel.full((), 0, I32)
        target = kernel.load(targets.advance(row), first)
        start = logits.advance(row * width)

        def add_block(columns: Block, mask: Block | None, largest: Block, total: Block, found: Block) -> list[Block]:
            z = kernel.load(start, columns, mask, -np.inf).to(F32)
            new = kernel.maximum(largest, z.max(0))
            total = total * kernel.exp(largest - new) + kernel.exp(z - new).sum(0)
            return [new, total, found + kernel.where(columns.equals(target), z, 0.0).sum(0)]

        numbers = [kernel.full((), number, F32) for number in (-np.inf, 0.0, 0.0)]
        largest, total, found = _for_each_block(kernel, width, numbers, add_block)
        kernel.store(picked.advance(row), first, found)
        kernel.store(logsumexp.advance(row), first, largest + kernel.log(total))


@final
@record
class CrossEntropyGrad(RowLoss):
    """(logits, targets, logsumexp, cotangents of the target's logit and of the logsumexp) → that of the logits."""

    name = "cross_entropy_grad"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return (types[0].strong(),)

    def factors(self, *types: ArrayType) -> FactorRule:
        last = types[0].ndim - 1
        rows = tuple((dim,) for dim in range(last))
        return FactorRule(((*rows, (last,)), rows, rows, rows, rows), ((*rows, (last,)),), types[0].shape)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        logits, targets, *rest = operands
        return self(logits, self._local_targets(context, logits, targets), *rest)

    def plain(self, *operands: Any) -> list[Any]:
        logits, targets, logsumexp, picked_ct, logsumexp_ct = operands
        type = logits.type
        rows = tuple(range(type.ndim - 1))
        per_row = [Expr(Broadcast(type.shape, rows)(x)) for x in (logsumexp, picked_ct, logsumexp_ct)]
        wide = Expr(Convert(per_row[0].dtype)(logits))
        softmax = apply(Exp(), wide - per_row[0]) * per_row[2]
        result = where(_is_target(type, targets), softmax + per_row[1], softmax)
        return [Convert(type.dtype)(result.array)]

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        width = types[0].shape[-1]
        row = kernel.program_id().to(I64)
        first = kernel.full((), 0, I32)
        logits, *per_row, result = kernel.pointers
        target, logsumexp, picked_ct, logsumexp_ct = (kernel.load(x.advance(row), first) for x in per_row)
        source, written = (pointer.advance(row * width) for pointer in (logits, result))

        def write_block(columns: Block, mask: Block | None) -> list[Block]:
            z = kernel.load(source, columns, mask).to(F32)
            softmax = kernel.exp(z - logsumexp) * logsumexp_ct
            value = kernel.where(columns.equals(target), softmax + picked_ct, softmax)
            kernel.store(written, columns, value, mask)
            return []

        _for_each_block(kernel, width, [], write_block)


def _is_target(logits: ArrayType, targets: Any) -> Expr:
    last = logits.ndim - 1
    columns = Expr(Iota(logits.shape, last, targets.type.dtype)())
    return columns == Expr(Broadcast(logits.shape, tuple(range(last)))(targets))


def _logsumexp(x: Expr, dim: int) -> Expr:
    type = x.array.type
    rest = tuple(d for d in range(type.ndim) if d != dim)
    largest = apply(ReduceMax((dim,)), x)
    shifted = x - Expr(Broadcast(type.shape, rest)(largest.array))
    return largest + apply(Log(), apply(Sum((dim,)), apply(Exp(), shifted)))

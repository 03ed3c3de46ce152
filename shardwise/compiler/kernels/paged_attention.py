"""paged_attention: one query per sequence, and keys and values in pages that a table lists.

    q [B, H, D], k_pages and v_pages [K, P, S, D], tables i32[B, N], lengths i32[B] → [B, H, D]

Sequence b has lengths[b] keys: those of the pages tables[b, 0], tables[b, 1], ..., with S keys each. H / K query heads
share a key head. Page numbers are clamped to [0, P). A sequence without keys has a result of 0.

Each program of the kernel visits a part of a sequence's keys once, for the query heads that share a key head. The parts
are combined afterwards. Sequences and key heads can be sharded.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, Launch
from shardwise.compiler.kernels.triton_ir import F32, I32, I64, Block, TritonBuilder, next_power_of_two
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.trace.build import rewrite

_MASKED = -1e30  # the score of a key that a sequence does not have
_KEYS = 64  # that a program visits at a time
_PROGRAMS = 512  # sequences are divided until there are so many programs
_LARGEST_HEAD, _LARGEST_GROUP = 256, 64


@final
@record
class PagedAttention(KernelOp):
    """(q, k_pages, v_pages, tables, lengths) → the attention of each query over its sequence.

    Attributes:
        scale: the number that scores are multiplied by.
    """

    name = "paged_attention"
    scale: float

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        q, k, v, tables, lengths = types
        if q.ndim != 3 or k.ndim != 4 or not is_float(q.dtype) or v.plain != k.plain or q.dtype != k.dtype:
            raise TypeError(
                "paged_attention: needs queries [B, H, D] and pages of keys and values [K, P, S, D] of one dtype, not "
                f"{q}, {k} and {v}"
            )
        if q.shape[2] != k.shape[3] or not k.shape[0] or q.shape[1] % k.shape[0]:
            raise TypeError(
                f"paged_attention: queries {q} and keys {k} must have one size of heads, and a number of query heads "
                "that is a multiple of that of key heads"
            )
        if tables.ndim != 2 or tables.dtype != I32 or lengths.dtype != I32:
            raise TypeError(
                f"paged_attention: tables and lengths must be i32[B, N] and i32[B], not {tables}, {lengths}"
            )
        if not k.shape[1] and tables.size:
            raise TypeError(f"paged_attention: the tables {tables} list pages, and {k} has none")
        if not tables.shape[0] == lengths.shape[0] == q.shape[0]:
            raise TypeError(f"paged_attention: {q}, {tables} and {lengths} have different numbers of sequences")
        return (q.strong(),)

    def obstacle(self, *types: ArrayType) -> str:
        q, k = types[:2]
        if q.dtype.itemsize == 1:
            return f"{q} has a dtype that the kernel does not multiply"
        if q.shape[2] > _LARGEST_HEAD:
            return f"heads of {q.shape[2]} elements do not fit a program, which holds at most {_LARGEST_HEAD}"
        if q.shape[1] // k.shape[0] > _LARGEST_GROUP:
            return f"more than {_LARGEST_GROUP} query heads share a key head"
        return super().obstacle(*types)

    def flops(self, *types: ArrayType) -> float:
        return 4.0 * types[0].size * types[3].shape[1] * types[1].shape[2]

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in (*operands, *results))

    def factors(self, *types: ArrayType) -> FactorRule:
        (sequences, heads, width), (key_heads, pages, size, _), _, (_, listed), _ = (type.shape for type in types)
        b, k, g, d, p, s, n = range(7)
        of_pages = ((k,), (p,), (s,), (d,))
        return FactorRule(
            (((b,), (k, g), (d,)), of_pages, of_pages, ((b,), (n,)), ((b,),)),
            (((b,), (k, g), (d,)),),
            (sequences, key_heads, heads // key_heads, width, pages, size, listed),
            need_replication=frozenset({g, d, p, s, n}),
        )

    def plain(self, *operands: Operand) -> list[Any]:
        q, k, v, tables, lengths = operands
        sequences, heads, width = q.type.shape
        key_heads, pages, size, _ = k.type.shape
        keys = tables.type.shape[1] * size
        dtype = numpy_carrier(q.type.dtype)
        limits = [full(tables.type.shape, bound, I32) for bound in (0, pages - 1)]
        listed = Min()(Max()(tables, limits[0]), limits[1])
        pools: Any = (k, v)  # arrays or tracers, whose index is a gather
        shape = (key_heads, sequences, keys, width)
        # The rest of a page may hold anything, which gradients of scores that are zero must not be multiplied by.
        is_held = Expr(Broadcast(shape, (1, 2))(is_key_of(lengths, keys)))
        k, v = (where(is_held, Expr(Reshape(shape)(pool[:, listed])), 0.0).array for pool in pools)
        queries = Reshape((sequences, key_heads, heads // key_heads, width))(q)
        scores = Expr(Dot(((3,), (3,)), ((0, 1), (1, 0)), dtype=dtype)(queries, k)) * self.scale  # [B, K, G, keys]
        shape = scores.array.type.shape
        is_key = Expr(Iota(shape, 3, I32)()) < Expr(Broadcast(shape, (0,))(lengths))
        scores = where(is_key, scores, _MASKED)
        largest = Expr(Broadcast(shape, (0, 1, 2))(apply(ReduceMax((3,)), scores).array))
        weights = where(is_key, apply(Exp(), scores - largest), 0.0)
        total = apply(Max(), apply(Sum((3,)), weights), Expr(full(shape[:3], np.finfo(np.float32).tiny, dtype)))
        weights = weights / Expr(Broadcast(shape, (0, 1, 2))(total.array))
        narrow = Convert(q.type.dtype)(weights.array)
        result = Dot(((3,), (2,)), ((0, 1), (1, 0)), dtype=dtype)(narrow, v)
        return [Convert(q.type.dtype)(Reshape(q.type.shape)(result))]

    def _parts(self, *types: ArrayType) -> tuple[int, int]:
        """Return the number of parts of a sequence, and the blocks of keys of a part."""
        q, k, _, tables, _ = types
        blocks = -(-tables.shape[1] * k.shape[2] // _KEYS)
        parts = min(blocks, -(-_PROGRAMS // (q.shape[0] * k.shape[0])))
        per_part = -(-blocks // parts)
        return -(-blocks // per_part), per_part

    def kernel_launch(self, *types: ArrayType) -> Launch:
        q, k = types[:2]
        parts, _ = self._parts(*types)
        group = q.shape[1] // k.shape[0]
        sums = (q.shape[0], k.shape[0], parts, group)
        results = ArrayType((*sums, q.shape[2]), F32), ArrayType(sums, F32), ArrayType(sums, F32)
        return Launch(q.shape[0] * k.shape[0] * parts, 4, results, stages=2)

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        (_, heads, width), (key_heads, pages, size, _), _, (_, listed), _ = (type.shape for type in types)
        group = heads // key_heads
        parts, per_part = self._parts(*types)
        q, k_pages, v_pages, tables, lengths, out, largest_out, total_out = kernel.pointers
        program = kernel.program_id()
        part, head, sequence = program % parts, program // parts % key_heads, program // (parts * key_heads)
        rows, columns = max(16, next_power_of_two(group)), max(16, next_power_of_two(width))
        row, column, key = kernel.range(rows), kernel.range(columns), kernel.range(_KEYS)
        mask = (row.expand(1) < group) & (column.expand(0) < width)
        offsets = row.expand(1) * width + column.expand(0)
        queries = kernel.load(q.advance((sequence * key_heads + head).to(I64) * (group * width)), offsets, mask)
        length = kernel.load(lengths.advance(sequence.to(I64)), kernel.full((), 0, I32))
        length = kernel.minimum(length, listed * size)
        table = tables.advance(sequence.to(I64) * listed)
        pool = head.to(I64) * (pages * size * width)
        start = part * (per_part * _KEYS)

        def visit(first: Block, result: Block, largest: Block, total: Block) -> list[Block]:
            index = key + (start + first)
            is_key = index < length
            page = kernel.load(table, index // size, is_key)
            page = kernel.minimum(kernel.maximum(page, 0), pages - 1)
            place = page.to(I64) * (size * width) + ((index % size) * width).to(I64)
            where_keys = place.expand(1) + column.expand(0).to(I64)
            key_mask = is_key.expand(1) & (column.expand(0) < width)
            keys = kernel.load(k_pages.advance(pool), where_keys, key_mask)
            zeros = kernel.full((rows, _KEYS), 0.0, F32)
            scores = kernel.dot(queries, keys.transpose((1, 0)), zeros) * self.scale
            scores = kernel.where(is_key.expand(0), scores, _MASKED)
            new = kernel.maximum(largest, scores.max(1))
            weights = kernel.where(is_key.expand(0), kernel.exp(scores - new.expand(1)), 0.0)
            decay = kernel.exp(largest - new)
            values = kernel.load(v_pages.advance(pool), where_keys, key_mask)
            result = kernel.dot(weights.to(types[2].dtype), values, result * decay.expand(1))
            return [result, new, total * decay + weights.sum(1)]

        limit = kernel.minimum(kernel.maximum(length - start, 0), per_part * _KEYS)
        zeros = [
            kernel.full((rows, columns), 0.0, F32),
            kernel.full((rows,), _MASKED, F32),
            kernel.full((rows,), 0.0, F32),
        ]
        result, largest, total = kernel.loop(limit, _KEYS, zeros, visit)
        written = program.to(I64) * group
        kernel.store(out.advance(written * width), offsets, result, mask)
        for pointer, value in ((largest_out, largest), (total_out, total)):
            kernel.store(pointer.advance(written), row, value, row < group)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        (result,) = super().lower(hlo, *operands)
        dtype = operands[0].type.dtype
        return [result if result.type.dtype == dtype else Convert(dtype).lower(hlo, result)]

    def finish(self, hlo: Hlo, written: Sequence[HloValue]) -> Sequence[HloValue]:
        types = [x.type for x in written]
        return hlo.program(rewrite("combine_parts", types, self.combine), written)

    def combine(self, *written: Operand) -> list[Any]:
        """Return the result from what the kernel writes: sums of values, largest scores and sums of weights by part."""
        result, largest, total = map(Expr, written)
        shape = written[0].type.shape
        whole = apply(ReduceMax((2,)), largest)
        decay = apply(Exp(), largest - Expr(Broadcast(shape[:4], (0, 1, 3))(whole.array)))
        total = apply(Sum((2,)), total * decay)
        total = apply(Max(), total, Expr(full(total.array.type.shape, np.finfo(np.float32).tiny, F32)))
        summed = apply(Sum((2,)), result * Expr(Broadcast(shape, (0, 1, 2, 3))(decay.array)))
        divided = summed / Expr(Broadcast((*shape[:2], *shape[3:]), (0, 1, 2))(total.array))
        return [Reshape((shape[0], shape[1] * shape[3], shape[4]))(divided.array)]


def is_key_of(lengths: Operand, keys: int) -> Any:
    """Return a mask [B, keys]: which keys each sequence has."""
    shape = (lengths.type.shape[0], keys)
    return (Expr(Iota(shape, 1, I32)()) < Expr(Broadcast(shape, (0,))(lengths))).array

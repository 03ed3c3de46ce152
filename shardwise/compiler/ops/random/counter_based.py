"""CounterBased: the base class of ops that compute random bits from a key and the counter of each element.

A key is 32-bit words along the last dim of a u32 array; the dims before are batch dims. The counter of an element is a
function of its index in the unsharded array. Each device therefore generates its own shard, and the bits do not depend
on the sharding.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import BatchAxis, LocalContext, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.factors import FactorRule

WORD, COUNTER = np.dtype(np.uint32), np.dtype(np.uint64)
WIDTHS: dict[int, DType] = {bits: np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}


@record
class CounterBased(Op):
    """Generate the elements of `shape` for each key.

    The operands are the keys and, for each key, the counter of its first element. The counter of another element is the
    first counter plus the sum of index times stride over its dims.
    """

    key_words: ClassVar[int]
    makes_keys: ClassVar[bool] = False  # the last dim of the result holds the words of a key
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def out_dtype(self) -> DType:
        """The dtype of the result."""
        raise self.missing_rule("out_dtype")

    def out_type(self, key: ArrayType, first: ArrayType) -> ArrayType:
        if key.dtype != WORD or key.shape[-1:] != (self.key_words,):
            raise TypeError(
                f"{self.name}: a key must be {self.key_words} words of 32 bits, u32[…,{self.key_words}], not {key}"
            )
        if first != ArrayType(key.shape[:-1], COUNTER):
            raise TypeError(f"{self.name}: needs a counter for each key, u64{list(key.shape[:-1])}, not {first}")
        if len(self.strides) != len(self.shape):
            raise TypeError(f"{self.name}: strides {self.strides} must have one entry per dim of shape {self.shape}")
        words = (self.key_words,) if self.makes_keys else ()
        return ArrayType((*key.shape[:-1], *self.shape, *words), self.out_dtype)

    def factors(self, key: ArrayType, first: ArrayType) -> FactorRule:
        batch = key.ndim - 1
        words = batch + len(self.shape)
        dims = tuple((dim,) for dim in range(words + 1))
        result = dims if self.makes_keys else dims[:-1]
        operands = ((*dims[:batch], dims[words]), dims[:batch])
        sizes = (*key.shape[:-1], *self.shape, self.key_words)
        return FactorRule(operands, (result,), sizes, need_replication=frozenset({words}))

    def localize(self, context: LocalContext, key: Operand, first: Operand) -> Any:
        batch = key.type.ndim - 1
        local_shape = context.out_shapes[0][batch : batch + len(self.shape)]
        return replace(self, shape=local_shape)(key, shard_start_counters(context, first, self.strides))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True))), 0


def constant_counters(key: Operand, start: int) -> Any:
    """Return one counter per key, all equal to `start`."""
    return full(key.type.shape[:-1], start, COUNTER)


def shard_start_counters(context: LocalContext, first: Operand, strides: Sequence[int]) -> Any:
    """Return the counters of the first elements of this device's shard, given the counters of the unsharded array."""
    for dim, stride in enumerate(strides):
        offset = context.offset(first.type.ndim + dim, COUNTER)
        if offset is not None:
            counter_offset = Mul()(offset, full((), stride, COUNTER))
            first = Add()(first, Broadcast(first.type.shape, ())(counter_offset))
    return first


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a shape."""
    if math.prod(shape) > 2**64:
        raise NotImplementedError(
            f"random bits: shape {tuple(shape)} has more elements than the 2**64 counters of one key; split the key"
        )
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))

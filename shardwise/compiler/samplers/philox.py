"""Random bits of `rbg` keys by the Philox4x32-10 hash of a key and a counter, as XLA's RngBitGenerator computes them.

A key is four 32-bit words, low words first: two words of Philox's key, which are also the high half of its first
counter of 128 bits, and the low half of that counter. The hash of each counter is a block of four words. The elements
of an array take their bits from consecutive blocks, in row-major order.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, MulHigh, Or, ShiftLeft, ShiftRightLogical, Xor
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.random.counter_based import (
    COUNTER,
    WIDTHS,
    WORD,
    CounterBased,
    constant_counters,
    row_major_strides,
    shard_start_counters,
)
from shardwise.compiler.ops.random.rng_bit_generator import lower_rng_bit_generator
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.samplers.sampler import Sampler
from shardwise.compiler.shardings.factors import FactorRule

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@final
@record
class PhiloxBits(CounterBased, Sampler):
    """Generate random integers of `width` bits, at the positions that `strides` defines in an array of `extent`.

    Positions count elements. For a single key under `vmap`, as in JAX, the first key of the batch generates the
    elements of all keys; the elements of key i start at position i * `extent`. In a batch of keys, each key generates
    its own elements.
    """

    name = "philox_bits"
    key_words = 4
    width: int
    extent: int

    @property
    def out_dtype(self) -> DType:
        if self.width not in WIDTHS:
            raise TypeError(f"philox_bits: width must be one of {', '.join(map(str, WIDTHS))}, not {self.width}")
        return WIDTHS[self.width]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        key, first = (batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True))
        if key.type.ndim > 2:
            return self(key, first), 0
        op = replace(
            self,
            shape=(axis.size, *self.shape),
            strides=(self.extent, *self.strides),
            extent=axis.size * self.extent,
        )
        return op(_first_row(key), _first_row(first)), 0

    def sample(self, key: Operand, first: Operand) -> list[Any]:
        batch, shape = first.type.ndim, (*first.type.shape, *self.shape)

        def per_element(x: Operand) -> Any:
            return Broadcast(shape, tuple(range(batch)))(x)

        def word(number: int) -> Any:
            return per_element(Reshape(first.type.shape)(slice_along(key, batch, number, number + 1)))

        position = per_element(first)
        for dim, stride in enumerate(self.strides):
            index = Iota(shape, batch + dim, COUNTER)()
            position = (Expr(position) + Expr(index) * stride).array
        block = ShiftRightLogical()(position, full_like(position, 1 if self.width == 64 else 2))
        start = _join_words(word(2), word(3))
        counter = Add()(start, block)
        high = _join_words(word(0), word(1))
        high = Add()(high, Convert(COUNTER)(Compare("LT")(counter, start)))
        words = philox4x32((word(0), word(1)), (*_split_words(counter), *_split_words(high)))
        return [_select_element(words, position, self.width)]


@final
@record
class RbgBits(Op):
    """Generate random integers of `width` bits from one key, with XLA's generator if the result is not sharded."""

    name = "rbg_bits"
    shape: tuple[int, ...]
    width: int

    def out_type(self, key: ArrayType) -> ArrayType:
        return self._at_positions.out_type(key, ArrayType(key.shape[:-1], COUNTER)).with_shape(self.shape)

    @property
    def _at_positions(self) -> PhiloxBits:
        return PhiloxBits(self.shape, row_major_strides(self.shape), self.width, math.prod(self.shape))

    def factors(self, key: ArrayType) -> FactorRule:
        count = len(self.shape)
        dims = tuple((dim,) for dim in range(count))
        return FactorRule((((count,),),), (dims,), (*self.shape, 4), need_replication=frozenset({count}))

    def localize(self, context: LocalContext, key: Operand) -> Any:
        if not any(context.sharding_of(dim)[0] for dim in range(len(self.shape))):
            return self(key)
        op = self._at_positions
        first = shard_start_counters(context, full((), 0, COUNTER), op.strides)
        return replace(op, shape=context.out_shapes[0])(key, first)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        # As in JAX, the first key generates the bits of all keys.
        keys = batch_dim_at(operands[0], dims[0], 0, axis.size)
        return RbgBits((axis.size, *self.shape), self.width)(_first_row(keys)), 0

    def lower(self, hlo: Hlo, key: HloValue) -> Any:
        # Name the algorithm instead of "DEFAULT", because a sharded result must have the same bits on every platform.
        return lower_rng_bit_generator(hlo, key, ArrayType(self.shape, WIDTHS[self.width]), "PHILOX")[1]

    def reference(self, key: NumpyArray) -> NumpyArray:
        return self._at_positions.reference(key, np.zeros((), COUNTER))  # type: ignore[no-any-return]


def philox_bits(key: Operand, shape: tuple[int, ...], width: int) -> Any:
    """Generate random bits: an array of `shape` for each key. `key` has the words of the keys."""
    if key.type.ndim == 1:
        return RbgBits(shape, width)(key)
    op = PhiloxBits(shape, row_major_strides(shape), width, math.prod(shape))
    return op(key, constant_counters(key, 0))


def philox4x32(key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Hash the words of counters with the words of keys, and return the four words of each block."""
    a, b, c, d = counter
    for index in range(_ROUNDS):
        first, second = (
            Add()(word, full_like(word, index * increment % 2**32))
            for word, increment in zip(key, _KEY_INCREMENTS, strict=True)
        )
        low_a, low_c = (Mul()(x, full_like(x, factor)) for x, factor in zip((a, c), _MULTIPLIERS, strict=True))
        high_a, high_c = (MulHigh()(x, full_like(x, factor)) for x, factor in zip((a, c), _MULTIPLIERS, strict=True))
        a, b, c, d = Xor()(Xor()(high_c, b), first), low_c, Xor()(Xor()(high_a, d), second), low_a
    return a, b, c, d


def _select_element(words: Sequence[Any], position: Operand, width: int) -> Any:
    """Return the element of a block at a position: two words, or the low bits of one."""
    if width == 64:
        words = [_join_words(*words[:2]), _join_words(*words[2:])]
    number = Expr(position) & (len(words) - 1)
    element = words[-1]
    for candidate, word in enumerate(words[:-1]):
        element = where(number == candidate, Expr(word), Expr(element)).array
    if width >= 32:
        return element
    return Convert(WIDTHS[width])(And()(element, full_like(element, 2**width - 1)))


def _join_words(low: Operand, high: Operand) -> Any:
    """Join low and high words into 64-bit integers."""
    wide = Convert(COUNTER)(high)
    return Or()(Convert(COUNTER)(low), ShiftLeft()(wide, full_like(wide, 32)))


def _split_words(x: Operand) -> tuple[Any, Any]:
    """Return the low and the high words of 64-bit integers."""
    low = And()(x, full_like(x, 2**32 - 1))
    return Convert(WORD)(low), Convert(WORD)(ShiftRightLogical()(x, full_like(x, 32)))


def _first_row(x: Operand) -> Any:
    return Reshape(x.type.shape[1:])(slice_along(x, 0, 0, 1))

"""Random bits and keys by the threefry2x32 hash of a key and a counter.

A key is two 32-bit words along the last dim of a u32 array; the dims before are batch dims. The hash of a key and a
64-bit counter is a block of two words. The counter of an element is its row-major index in the unsharded array. Each
device therefore generates its own shard, and the bits do not depend on the sharding (JAX's
`jax_threefry_partitionable`).
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.random.counter_based import COUNTER, WIDTHS, WORD, CounterBased
from shardwise.compiler.ops.shape.movement import i64_array_attribute

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@record
class Threefry(CounterBased):
    """Generate one block per key and element of `shape`."""

    key_words = 2

    def lower(self, hlo: Hlo, key: HloValue, first: HloValue) -> Any:
        words = ArrayType((*first.type.shape, *self.shape), WORD)
        counters = _lower_counters(hlo, self.strides, first, words)
        return self.lower_combine(hlo, *lower_threefry2x32(hlo, _key_words(hlo, key, words), counters))

    @ignore_float_errors
    def reference(self, key: NumpyArray, first: NumpyArray) -> NumpyArray:
        per_key = (*first.shape, *(1,) * len(self.shape))
        counts = np.zeros(self.shape, COUNTER)
        for dim, stride in enumerate(self.strides):
            index = np.arange(self.shape[dim], dtype=COUNTER)
            counts += (index * COUNTER.type(stride)).reshape((-1, *(1,) * (len(self.shape) - dim - 1)))
        counts = first.reshape(per_key) + counts
        return self.combine(*threefry2x32(key[..., 0].reshape(per_key), key[..., 1].reshape(per_key), counts))

    def lower_combine(self, hlo: Hlo, high: HloValue, low: HloValue) -> Any:
        """Lower the computation of the result from the two words of each block."""
        raise self.missing_rule("lower_combine")

    def combine(self, high: NumpyArray, low: NumpyArray) -> NumpyArray:
        """Compute the result from the two words of each block, as NumPy arrays."""
        raise self.missing_rule("combine")


@final
@record
class RandomBits(Threefry):
    """Generate random integers of `width` bits: both words of a block, or the low bits of their exclusive or."""

    fusion = Fusion(duplicates="on CPU")
    name = "random_bits"
    makes_keys = False
    width: int

    @property
    def out_dtype(self) -> DType:
        if self.width not in WIDTHS:
            raise TypeError(f"random_bits: width must be one of {', '.join(map(str, WIDTHS))}, not {self.width}")
        return WIDTHS[self.width]

    def lower_combine(self, hlo: Hlo, high: HloValue, low: HloValue) -> Any:
        out = high.type.with_dtype(self.out_dtype)
        if self.width == 64:
            high, low = (hlo.op("stablehlo.convert", (x,), out) for x in (high, low))
            high = hlo.op("stablehlo.shift_left", (high, hlo.constant(32, out)), out)
            return hlo.op("stablehlo.or", (high, low), out)
        bits = hlo.op("stablehlo.xor", (high, low), high.type)
        return bits if self.width == 32 else hlo.op("stablehlo.convert", (bits,), out)

    def combine(self, high: NumpyArray, low: NumpyArray) -> NumpyArray:
        if self.width == 64:
            return np.asarray((high.astype(COUNTER) << COUNTER.type(32)) | low)
        return np.asarray((high ^ low).astype(self.out_dtype))


@final
@record
class RandomKeys(Threefry):
    """Generate new keys: each block is a key."""

    name = "random_keys"
    makes_keys = True

    @property
    def out_dtype(self) -> DType:
        return WORD

    def lower_combine(self, hlo: Hlo, high: HloValue, low: HloValue) -> Any:
        word = ArrayType((*high.type.shape, 1), WORD)
        words = [hlo.op("stablehlo.reshape", (x,), word) for x in (high, low)]
        dim = f"dimension = {word.ndim - 1} : i64"
        return hlo.op("stablehlo.concatenate", words, ArrayType((*high.type.shape, 2), WORD), dim)

    def combine(self, high: NumpyArray, low: NumpyArray) -> NumpyArray:
        return np.stack([high, low], -1)


def threefry2x32(key_high: NumpyArray, key_low: NumpyArray, counter: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Hash counters with a key, given by its two words, and return the two words of each block."""
    schedule = (key_high, key_low, key_high ^ key_low ^ WORD.type(_PARITY))
    high = (counter >> COUNTER.type(32)).astype(WORD) + key_high
    low = counter.astype(WORD) + key_low
    for step in range(5):
        for rotation in _ROTATIONS[step % 2]:
            high = high + low
            low = high ^ ((low << WORD.type(rotation)) | (low >> WORD.type(32 - rotation)))
        high = high + schedule[(step + 1) % 3]
        low = low + schedule[(step + 2) % 3] + WORD.type(step + 1)
    return high, low


def lower_threefry2x32(hlo: Hlo, key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Lower `threefry2x32` for the words of keys and counters.

    The rounds are unrolled, so that XLA fuses them into one loop over the elements.
    """
    words = counter[0].type

    def add(x: HloValue, y: HloValue) -> Any:
        return hlo.op("stablehlo.add", (x, y), words)

    def xor(x: HloValue, y: HloValue) -> Any:
        return hlo.op("stablehlo.xor", (x, y), words)

    def shift(direction: str, x: HloValue, by: int) -> Any:
        return hlo.op(f"stablehlo.shift_{direction}", (x, hlo.constant(by, words)), words)

    schedule = (*key, xor(xor(*key), hlo.constant(_PARITY, words)))
    high, low = (add(count, word) for count, word in zip(counter, key, strict=True))
    for step in range(5):
        for rotation in _ROTATIONS[step % 2]:
            high = add(high, low)
            shifted = (shift("left", low, rotation), shift("right_logical", low, 32 - rotation))
            low = xor(high, hlo.op("stablehlo.or", shifted, words))
        high = add(high, schedule[(step + 1) % 3])
        low = add(add(low, schedule[(step + 2) % 3]), hlo.constant(step + 1, words))
    return high, low


def _key_words(hlo: Hlo, key: HloValue, words: ArrayType) -> tuple[Any, Any]:
    """Return the first and the second word of each key, broadcast to its elements."""
    batch = key.type.shape[:-1]
    dims = f"broadcast_dimensions = {i64_array_attribute(range(len(batch)))}"

    def word(number: int) -> Any:
        start, limit = (0,) * len(batch) + (number,), (*batch, number + 1)
        attributes = (
            f"start_indices = {i64_array_attribute(start)}, limit_indices = {i64_array_attribute(limit)}, "
            f"strides = {i64_array_attribute((1,) * len(start))}"
        )
        part = hlo.op("stablehlo.slice", (key,), ArrayType((*batch, 1), WORD), attributes)
        part = hlo.op("stablehlo.reshape", (part,), ArrayType(batch, WORD))
        return hlo.op("stablehlo.broadcast_in_dim", (part,), words, dims)

    return word(0), word(1)


def _lower_counters(hlo: Hlo, strides: Sequence[int], first: HloValue, words: ArrayType) -> tuple[Any, Any]:
    """Return the high and the low word of the counter of each element."""
    batch = first.type.ndim
    max_offset = sum((size - 1) * stride for size, stride in zip(words.shape[batch:], strides, strict=True))
    if max_offset >= 2**32:
        wide = words.with_dtype(COUNTER)
        return _split_words(hlo, _add_offsets(hlo, strides, _broadcast_per_key(hlo, first, wide), wide))
    # Offsets within the shard fit in 32 bits, which is faster. Add them to the low word and propagate the carry.
    start = [_broadcast_per_key(hlo, word, words) for word in _split_words(hlo, first)]
    low = _add_offsets(hlo, strides, start[1], words)
    carry = hlo.op("stablehlo.convert", (lower_compare(hlo, "LT", low, start[1]),), words)
    return hlo.op("stablehlo.add", (start[0], carry), words), low


def _split_words(hlo: Hlo, counter: HloValue) -> tuple[Any, Any]:
    """Split 64-bit counters into their high and low words."""
    wide, word = counter.type, counter.type.with_dtype(WORD)
    high = hlo.op("stablehlo.shift_right_logical", (counter, hlo.constant(32, wide)), wide)
    return hlo.op("stablehlo.convert", (high,), word), hlo.op("stablehlo.convert", (counter,), word)


def _broadcast_per_key(hlo: Hlo, x: HloValue, out: ArrayType) -> Any:
    """Broadcast an array with one number per key to the elements of each key."""
    dims = f"broadcast_dimensions = {i64_array_attribute(range(x.type.ndim))}"
    return hlo.op("stablehlo.broadcast_in_dim", (x,), out, dims)


def _add_offsets(hlo: Hlo, strides: Sequence[int], first: HloValue, out: ArrayType) -> Any:
    """Add index times stride of each dim to `first`."""
    total = first
    for number, stride in enumerate(strides):
        dim = out.ndim - len(strides) + number
        if out.shape[dim] > 1:
            index = hlo.op("stablehlo.iota", (), out, f"iota_dimension = {dim} : i64")
            if stride != 1:
                index = hlo.op("stablehlo.multiply", (index, hlo.constant(stride, out)), out)
            total = hlo.op("stablehlo.add", (total, index), out)
    return total

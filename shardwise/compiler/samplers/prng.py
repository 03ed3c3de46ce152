"""Operations on typed PRNG keys: seeds, new keys and random bits. The dtype of a key determines its implementation.

- `threefry2x32`: everything by threefry.
- `rbg`: bits by Philox; a key consists of two threefry keys, from which new keys are made.
- `unsafe_rbg`: bits and new keys by Philox.

Under `vmap`, the Philox bits of a batch of keys come from its first key, as in JAX.
"""

import math
from typing import Any

from shardwise.compiler.dtypes import key_impl
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import Or, ShiftLeft, ShiftRightLogical, Xor
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.random.counter_based import COUNTER, WORD, constant_counters, row_major_strides
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.compiler.ops.random.threefry import RandomBits, RandomKeys
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.samplers.philox import PhiloxBits, philox_bits

THREEFRY = "threefry2x32"
_HASH_BLOCKS = 10  # unsafe_rbg takes the words of a new key from one of this many blocks


def seed_key(seed: Operand, impl: str) -> Any:
    """Return the key for an integer seed."""
    return WrapKeyData(impl)(_seed_words(seed, impl))


def _seed_words(seed: Operand, impl: str) -> Any:
    """Return the high and the low word of an integer, twice for a key of four words.

    The high word of a dtype of 32 bits or fewer is 0.
    """
    halves = (ShiftRightLogical()(seed, full_like(seed, 32)), seed)
    words = [Reshape((1,))(Convert(WORD)(half)) for half in halves]
    return Concatenate(0)(*(words if impl == THREEFRY else [*words, *words]))


def random_bits(key: Operand, shape: tuple[int, ...], width: int) -> Any:
    """Generate random bits: an array of `shape` for each key."""
    words = KeyData()(key)
    if key_impl(key.type.dtype) == THREEFRY:
        return RandomBits(shape, row_major_strides(shape), width)(words, constant_counters(words, 0))
    return philox_bits(words, shape, width)


def random_bits_at(key: Operand, first: Operand, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> Any:
    """Generate the random bits of a shard, whose position is given as in `CounterBased`."""
    words = KeyData()(key)
    if key_impl(key.type.dtype) == THREEFRY:
        return RandomBits(shape, strides, width)(words, first)
    return PhiloxBits(shape, strides, width, 1)(words, first)


def random_keys(key: Operand, shape: tuple[int, ...]) -> Any:
    """Generate new keys: an array of `shape` for each key."""
    words, impl = KeyData()(key), key_impl(key.type.dtype)
    strides = row_major_strides(shape)
    if impl == THREEFRY:
        new = RandomKeys(shape, strides)(words, constant_counters(words, 0))
    elif impl == "rbg":
        halves = _halves(words)
        new = RandomKeys(shape, strides)(halves, constant_counters(halves, 0))
        new = move_dim(new, key.type.ndim, key.type.ndim + len(shape))
        new = Reshape((*new.type.shape[:-2], 4))(new)
    else:
        per_key = 4 * _HASH_BLOCKS
        strides = (*(per_key * stride for stride in strides), 1)
        op = PhiloxBits((*shape, 4), strides, 32, per_key * math.prod(shape))
        new = op(words, constant_counters(words, 0))
    return WrapKeyData(impl)(new)


def fold_in(key: Operand, data: Operand) -> Any:
    """Derive a new key from a key and an integer scalar."""
    words, impl = KeyData()(key), key_impl(key.type.dtype)
    data = Convert(WORD)(data)
    if impl == THREEFRY:
        new = RandomKeys((), ())(words, Convert(COUNTER)(data))
    elif impl == "rbg":
        halves = _halves(words)
        counter = Convert(COUNTER)(data)
        new = [RandomKeys((), ())(_row(halves, index), counter) for index in range(2)]
        new = Concatenate(0)(*new)
    else:
        seed = _seed_words(data, impl)
        last = constant_counters(seed, 4 * (_HASH_BLOCKS - 1))
        new = Xor()(words, PhiloxBits((4,), (1,), 32, 4 * _HASH_BLOCKS)(seed, last))
    return WrapKeyData(impl)(new)


def split_key(key: Operand, count: int) -> list[Any]:
    """Split each key into `count` new keys; return a list of `count` arrays of keys."""
    keys = random_keys(key, (count,))
    dim = keys.type.ndim - 1
    return [Reshape(key.type.shape)(slice_along(keys, dim, index, index + 1)) for index in range(count)]


def hash_pairs(keys: Operand, high: Operand, low: Operand) -> Any:
    """Hash pairs of 32-bit numbers with threefry, each with its own key.

    Args:
        keys: the keys, uint32[n, 2].
        high, low: the first and the second number of each pair, uint32[n].

    Returns:
        The hashes, uint32[n, 2].
    """
    # Counters have 64 bits also without `enable_x64`: ops are applied, and not functions of `numpy`.
    wide = Convert(COUNTER)(high)
    counters = Or()(ShiftLeft()(wide, full_like(wide, 32)), Convert(COUNTER)(low))
    return RandomKeys((), ())(keys, counters)


def _halves(words: Operand) -> Any:
    """Return the two threefry keys of each `rbg` key."""
    return Reshape((*words.type.shape[:-1], 2, 2))(words)


def _row(x: Operand, number: int) -> Any:
    return Reshape(x.type.shape[1:])(slice_along(x, 0, number, number + 1))

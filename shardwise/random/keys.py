"""Keys: what random numbers are made from. The same key gives the same numbers each time: split it for others.

A key is an array of a dtype of its own, made by `key`; or, as in older programs, its two words, made by `PRNGKey`. All
functions take both, and those that make keys return what they were given.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import KEY, KeyType, is_integer, is_key
from shardwise.compiler.ops.bitwise import ShiftRightLogical
from shardwise.compiler.ops.elementwise import Convert, like
from shardwise.compiler.ops.keys import KeyData, WrapKeyData
from shardwise.compiler.ops.operands import as_operand, composed, type_of
from shardwise.compiler.ops.random import COUNTER, WORD, RandomKeys, random_keys
from shardwise.compiler.ops.shape import Reshape
from shardwise.compiler.ops.slicing import Concatenate
from shardwise.random.draw import sizes


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """A key from an integer.

    >>> jax.random.key(0)
    Array((), dtype=key<fry>) overlaying:
    [0 0]
    """
    if impl is not None and dtype is not None:
        raise ValueError("key: give impl or dtype, not both")
    key_dtype(dtype if impl is None else impl)
    return WrapKeyData()(_seeded(_seed("key", seed)))


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """A key as an array of its two words, from an integer.

    >>> jax.random.PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    key_dtype(impl)
    return _seeded(_seed("PRNGKey", seed))


def _seed(name: str, seed: Any) -> Any:
    seed = np.int64(seed) if isinstance(seed, int) and not isinstance(seed, bool) else seed
    kind = type_of(seed, name)
    if is_key(kind.dtype) or not is_integer(kind.dtype):
        raise TypeError(f"{name}: seed should be an integer, not {kind}")
    if kind.ndim:
        raise TypeError(f"{name}: seed should be a scalar, not {kind}; use vmap for a batch of seeds")
    return seed


@composed
def _seeded(seed: Any) -> Any:
    """The high and the low word of an integer, of which the high one is 0 where it has no more than 32 bits."""
    seed = as_operand(seed)
    halves = (ShiftRightLogical()(seed, like(seed, 32)), seed)
    return Concatenate(0)(*(Reshape((1,))(Convert(WORD)(half)) for half in halves))


def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """New keys from a key, along new dims: so many, or in the shape given.

    >>> jax.random.split(jax.random.key(0))
    Array((2,), dtype=key<fry>) overlaying:
    [[1797259609 2579123966]
     [ 928981903 3453687069]]
    """
    shape = (num,) if isinstance(num, (int, np.integer)) else num
    return _like(key, _split(words("split", key), shape=sizes("split", shape)))


@composed
def _split(key: Any, *, shape: tuple[int, ...]) -> Any:
    return random_keys(as_operand(key), shape)


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer.

    >>> jax.random.key_data(jax.random.fold_in(jax.random.key(0), 1))
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    if isinstance(data, int) and not isinstance(data, bool):
        data = np.uint32(data)
    kind = type_of(data, "fold_in")
    if kind.ndim:
        raise TypeError(f"fold_in: data should be a scalar, not {kind}; use vmap for a batch")
    return _like(key, _folded(words("fold_in", key), data))


@composed
def _folded(key: Any, data: Any) -> Any:
    counter = Convert(COUNTER)(Convert(WORD)(as_operand(data)))
    return RandomKeys((), ())(as_operand(key), counter)


def clone(key: Any) -> Any:
    """The same key again: a sign that a program uses it twice on purpose.

    >>> jax.random.clone(jax.random.key(0)) == jax.random.key(0)
    Array(True, dtype=bool)
    """
    return as_operand(key, "clone")


def key_data(keys: Any) -> Any:
    """The words of keys, two along a new last dim.

    >>> jax.random.key_data(jax.random.key(7))
    Array([0, 7], dtype=uint32)
    """
    return KeyData()(keys) if is_key(type_of(keys, "key_data").dtype) else _checked("key_data", keys)


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """The keys that have these words, two along the last dim.

    >>> jax.random.wrap_key_data(jnp.array([0, 7], "uint32")) == jax.random.key(7)
    Array(True, dtype=bool)
    """
    if impl is not None and dtype is not None:
        raise ValueError("wrap_key_data: give impl or dtype, not both")
    key_dtype(dtype if impl is None else impl)
    return WrapKeyData()(as_operand(key_bits_array, "wrap_key_data"))


def key_impl(keys: Any) -> str:
    """The name of the algorithm that keys are for.

    >>> jax.random.key_impl(jax.random.key(0))
    'threefry2x32'
    """
    if not is_key(type_of(keys, "key_impl").dtype):
        _checked("key_impl", keys)
    return KEY.impl  # type: ignore[no-any-return]


def key_dtype(impl_spec: Any = None) -> Any:
    """The dtype of the keys of an algorithm, by its name.

    >>> jax.random.key_dtype()
    key<fry>
    """
    wanted = KEY.impl if impl_spec is None else impl_spec
    if isinstance(wanted, KeyType) or wanted == KEY.impl:
        return KEY
    raise ValueError(
        f"random: there is one kind of keys, {KEY.impl!r}, whose bits do not depend on how arrays are laid out; "
        f"{wanted!r} is not here"
    )


def words(name: str, key: Any) -> Any:
    """The two words of a single key."""
    kind = type_of(key, name)
    found = KeyData()(key) if is_key(kind.dtype) else _checked(name, key)
    if found.type.ndim > 1:
        raise ValueError(f"{name}: takes a single key, not an array of them, {kind}; use vmap for a batch of keys")
    return found


def _checked(name: str, key: Any) -> Any:
    """Keys that are given by their words."""
    kind = type_of(key, name)
    if kind.dtype != WORD or kind.shape[-1:] != (2,):
        raise TypeError(f"{name}: a key is made by `random.key` or `random.PRNGKey`; this is {kind}")
    return as_operand(key)


def _like(key: Any, found: Any) -> Any:
    """New words as keys, where a key was given."""
    return WrapKeyData()(found) if is_key(type_of(key).dtype) else found

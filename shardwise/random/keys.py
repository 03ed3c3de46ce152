"""PRNG keys. A key determines the random numbers of a call: split it for each further call.

A key is an array with a key dtype, as `key` returns it; or a raw key, u32[2] or u32[4], as `PRNGKey` returns it. All
functions accept both, and functions that return keys return the form that they were passed. A raw key is one of the
implementation `config.default_prng_impl`.
"""

from collections.abc import Sequence
from typing import Any, NewType

import numpy as np

from shardwise.base.call_site import warn_user
from shardwise.base.config import config
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.dtypes import KEY_DTYPES, KeyDType, is_integer, is_key, key_words
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.random.counter_based import WORD
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.compiler.samplers import prng
from shardwise.random.sampling import canonical_shape
from shardwise.typing import ArrayLike

# The type of keys for annotations: type checkers distinguish it from `Array`, and at run time it is the identity.
Key = NewType("Key", Array)

_NEW_KEY = Family(
    {
        "seed": Parameter("the seed, an integer scalar.", "TypeError: if {} is not an integer scalar."),
        "impl": 'the name of the PRNG implementation: "threefry2x32", "rbg" or "unsafe_rbg"; by default\n'
        "`config.default_prng_impl`.",
        "dtype": Parameter(
            "the key dtype, as an alternative to `impl`.",
            "ValueError: if both `impl` and {} are passed, or if the implementation is not supported.",
        ),
    }
)
_KEYS = Family({"keys": Parameter(error="TypeError: if {} is not an array of keys.")})


@documented(_NEW_KEY, returns="A scalar array with a key dtype.")
def key(seed: ArrayLike, *, impl: str | None = None, dtype: KeyDType | None = None) -> Array:
    """Return a PRNG key with a key dtype, from a seed.

    Example:
        >>> jax.random.key(0)
        Array((), dtype=key<fry>) overlaying:
        [0 0]
    """
    if impl is not None and dtype is not None:
        raise ValueError("key: pass either impl or dtype, not both")
    return _seed_key(_checked_seed("key", seed), impl=key_dtype(dtype if impl is None else impl).impl)


@documented(_NEW_KEY, raises=["ValueError: if the implementation is not supported."])
def PRNGKey(seed: ArrayLike, *, impl: str | None = None) -> Array:
    """Return a raw PRNG key, an array of 32-bit words, from a seed.

    Returns:
        A u32[2] array; u32[4] for the implementations "rbg" and "unsafe_rbg".

    Example:
        >>> jax.random.PRNGKey(42)
        Array([ 0, 42], dtype=uint32)
    """
    typed = _seed_key(_checked_seed("PRNGKey", seed), impl=key_dtype(impl).impl)
    return typed if config.enable_custom_prng else KeyData()(typed)


def _checked_seed(name: str, seed: ArrayLike) -> Any:
    seed = np.int64(seed) if isinstance(seed, int) and not isinstance(seed, bool) else seed
    seed_type = type_of(seed, name)
    if is_key(seed_type.dtype) or not is_integer(seed_type.dtype):
        raise TypeError(f"{name}: seed must be an integer, not {seed_type}")
    if seed_type.ndim:
        raise TypeError(f"{name}: seed must be a scalar, not {seed_type}; use vmap for a batch of seeds")
    return seed


@compiled_function
def _seed_key(seed: ArrayLike, *, impl: str) -> Any:
    operand = as_operand(seed)
    if config.random_seed_offset:
        operand = Add()(operand, full_like(operand, config.random_seed_offset))
    return prng.seed_key(operand, impl)


def split(key: ArrayLike, num: int | Sequence[int] = 2) -> Array:
    """Split a key into new, independent keys.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.
        num: the number of new keys, or the shape of the array of new keys.

    Returns:
        An array of keys of the same form as `key`: with a key dtype, or raw with a last dim for the words.

    Raises:
        TypeError: if `key` is not a PRNG key, or if `num` is neither an integer nor a tuple of integers.
        ValueError: if `key` is an array of keys, or if `num` is negative.

    Example:
        >>> jax.random.split(jax.random.key(0))
        Array((2,), dtype=key<fry>) overlaying:
        [[1797259609 2579123966]
         [ 928981903 3453687069]]
    """
    shape = (num,) if isinstance(num, (int, np.integer)) else num
    return _in_form_of(key, _split(single_key("split", key), shape=canonical_shape("split", shape)))


@compiled_function
def _split(key: ArrayLike, *, shape: tuple[int, ...]) -> Any:
    return prng.random_keys(as_operand(key), shape)


def fold_in(key: ArrayLike, data: ArrayLike) -> Array:
    """Derive a new key from a key and an integer.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.
        data: the integer, a scalar from 0 to 2³² - 1.

    Returns:
        A key of the same form as `key`.

    Raises:
        TypeError: if `key` is not a PRNG key, or if `data` is not a scalar.
        ValueError: if `key` is an array of keys.
        OverflowError: if `data` is a Python integer that does not fit into 32 bits.

    Example:
        >>> jax.random.key_data(jax.random.fold_in(jax.random.key(0), 1))
        Array([ 928981903, 3453687069], dtype=uint32)
    """
    if isinstance(data, int) and not isinstance(data, bool):
        data = np.uint32(data)
    data_type = type_of(data, "fold_in")
    if data_type.ndim:
        raise TypeError(f"fold_in: data must be a scalar, not {data_type}; use vmap for a batch")
    return _in_form_of(key, _fold_in(single_key("fold_in", key, uses=False), data))


@compiled_function
def _fold_in(key: ArrayLike, data: ArrayLike) -> Any:
    return prng.fold_in(as_operand(key), as_operand(data))


def clone(key: ArrayLike) -> Array:
    """Return an equal key, to state that it is reused on purpose; see `debug_key_reuse`.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.

    Returns:
        The key.

    Raises:
        TypeError: if `key` is not an array.

    Example:
        >>> jax.random.clone(jax.random.key(0)) == jax.random.key(0)
        Array(True, dtype=bool)
    """
    operand = as_operand(key, "clone")
    if config.debug_key_reuse and is_key(operand.type.dtype):
        return WrapKeyData(key_impl(operand))(KeyData()(operand))
    return operand


@documented(_KEYS)
def key_data(keys: ArrayLike) -> Array:
    """Return the words of keys as an array of 32-bit integers.

    Args:
        keys: an array of keys, or of raw keys, which is returned unchanged.

    Returns:
        A u32 array with a last dim for the words of each key: two, or four for "rbg" and "unsafe_rbg".

    Example:
        >>> jax.random.key_data(jax.random.key(7))
        Array([0, 7], dtype=uint32)
    """
    return KeyData()(keys) if is_key(type_of(keys, "key_data").dtype) else _checked_raw_keys("key_data", keys)


@documented(_NEW_KEY)
def wrap_key_data(key_bits_array: ArrayLike, *, impl: str | None = None, dtype: KeyDType | None = None) -> Array:
    """Return the keys that have the given words: the inverse of `key_data`.

    Args:
        key_bits_array: a u32 array whose last dim holds the words of each key.

    Returns:
        An array with a key dtype, without the last dim of `key_bits_array`.

    Raises:
        TypeError: if `key_bits_array` is not a u32 array with a last dim for the words.

    Example:
        >>> jax.random.wrap_key_data(jnp.array([0, 7], "uint32")) == jax.random.key(7)
        Array(True, dtype=bool)
    """
    if impl is not None and dtype is not None:
        raise ValueError("wrap_key_data: pass either impl or dtype, not both")
    return WrapKeyData(key_dtype(dtype if impl is None else impl).impl)(as_operand(key_bits_array, "wrap_key_data"))


@documented(_KEYS, returns='The name: "threefry2x32", "rbg" or "unsafe_rbg".')
def key_impl(keys: ArrayLike) -> str:
    """Return the name of the PRNG implementation of keys.

    Args:
        keys: an array of keys, or of raw keys.

    Example:
        >>> jax.random.key_impl(jax.random.key(0))
        'threefry2x32'
    """
    dtype = type_of(keys, "key_impl").dtype
    if is_key(dtype):
        return dtype.impl
    _checked_raw_keys("key_impl", keys)
    return str(config.default_prng_impl)


def key_dtype(impl_spec: str | KeyDType | None = None) -> Any:
    """Return the key dtype of a PRNG implementation.

    Args:
        impl_spec: the name of the implementation, or a key dtype; by default `config.default_prng_impl`.

    Returns:
        The key dtype.

    Raises:
        TypeError: if `impl_spec` is neither a name nor a key dtype.
        ValueError: if the implementation is not supported.

    Example:
        >>> jax.random.key_dtype()
        key<fry>
    """
    if isinstance(impl_spec, KeyDType):
        return impl_spec
    impl = config.default_prng_impl if impl_spec is None else impl_spec
    if not isinstance(impl, str):
        raise TypeError(f"random: unrecognized type {type(impl).__name__} of a PRNG implementation: pass its name")
    if impl not in KEY_DTYPES:
        raise ValueError(
            f"random: the PRNG implementation {impl!r} is not supported; supported: {', '.join(map(repr, KEY_DTYPES))}"
        )
    return KEY_DTYPES[impl]


def single_key(name: str, key: ArrayLike, uses: bool = True) -> Any:
    """Return a single key with a key dtype.

    `uses` tells whether the function uses the key, so that no other may (`debug_key_reuse`).
    """
    if key is None or isinstance(key, (tuple, list)):
        raise TypeError(
            f"{name}: the first argument is a key, such as `random.key(0)`, not {key!r}. Write "
            f"`{name}(key, …)`, with a new key of `random.split` for every call."
        )
    key_type = type_of(key, name)
    typed = as_operand(key)
    if not is_key(key_type.dtype):
        typed = WrapKeyData(key_dtype().impl)(_checked_raw_keys(name, key))
        _check_raw_keys_are_allowed(name, key_type)
    elif config.debug_key_reuse and uses:
        typed = WrapKeyData(key_impl(typed))(KeyData(uses=True)(typed))
    if typed.type.ndim:
        raise ValueError(
            f"{name}: accepts a single key, not an array of keys, {key_type}; use vmap for a batch of keys"
        )
    return typed


def _check_raw_keys_are_allowed(name: str, key_type: ArrayType) -> None:
    """Warn or raise if a raw key is used, as `legacy_prng_key` says."""
    if config.legacy_prng_key == "allow":
        return
    text = (
        f"{name}: the key is a raw key, {key_type}, and the setting legacy_prng_key is {config.legacy_prng_key!r}: "
        "create keys with `random.key`"
    )
    if config.legacy_prng_key == "error":
        raise ValueError(text)
    warn_user(text)


def _checked_raw_keys(name: str, key: ArrayLike) -> Any:
    key_type, dtype = type_of(key, name), key_dtype()
    if key_type.dtype != WORD or key_type.shape[-1:] != (key_words(dtype),):
        raise TypeError(
            f"{name}: key must be a PRNG key, as `random.key` or `random.PRNGKey` returns it, not {key_type}"
        )
    return as_operand(key)


def _in_form_of(key: ArrayLike, typed: Array) -> Any:
    """Return keys with a key dtype in the form of `key`: with a key dtype, or raw."""
    return typed if is_key(type_of(key).dtype) else KeyData()(typed)

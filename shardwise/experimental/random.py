"""jax.experimental.random: a random generator with state, whose counter is a Ref."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.api.ref import new_ref
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.tree_util import register_dataclass
from shardwise.typing import ArrayLike, DTypeLike

Size: TypeAlias = int | Sequence[int] | None


@final
@register_dataclass
@dataclass(frozen=True, slots=True)
class StatefulPRNG:
    """A random generator with state; `stateful_rng` creates it.

    Every draw uses the key of the generator and a counter, and increments the counter. The counter is a Ref: functions
    under `jit` may draw from a generator that they close over or receive as an argument, but not return one.

    Attributes:
        _base_key: a typed PRNG key.
        _counter: a Ref of an integer scalar.

    Example:
        >>> rng = jax.experimental.random.stateful_rng(42)
        >>> bool(rng.uniform() == rng.uniform())
        False
    """

    _base_key: Any
    _counter: Any

    def key(self, shape: int | Sequence[int] = ()) -> Array:
        """Return a new PRNG key, or keys of a shape, and advance the counter."""
        if not is_key(type_of(self._base_key).dtype):
            raise ValueError(f"StatefulPRNG: the base key must be a typed PRNG key, not {self._base_key}")
        if self._base_key.shape:
            raise ValueError("StatefulPRNG: a generator that `split` returned must be vmapped over before it draws")
        key = random.fold_in(self._base_key, self._counter[...])
        self._counter[...] += 1
        keys_shape = _shape(shape)
        return random.split(key, keys_shape) if keys_shape else key

    def random(self, size: Size = None, dtype: DTypeLike = float) -> Array:
        """Draw numbers uniformly from [0, 1)."""
        return random.uniform(self.key(), _shape(size), dtype)

    def uniform(self, low: ArrayLike = 0, high: ArrayLike = 1, size: Size = None, *, dtype: DTypeLike = float) -> Array:
        """Draw numbers uniformly from [low, high)."""
        return random.uniform(self.key(), _shape(size, low, high), dtype, low, high)

    def normal(self, loc: ArrayLike = 0, scale: ArrayLike = 1, size: Size = None, *, dtype: DTypeLike = float) -> Array:
        """Draw numbers from the normal distribution with mean `loc` and standard deviation `scale`."""
        sample = random.normal(self.key(), _shape(size, loc, scale), dtype)
        return (jnp.asarray(loc) + jnp.asarray(scale) * sample).astype(dtype)

    def integers(
        self, low: ArrayLike, high: ArrayLike | None = None, size: Size = None, *, dtype: DTypeLike = int
    ) -> Array:
        """Draw integers uniformly from [low, high), or from [0, low) without `high`."""
        first, end = (0, low) if high is None else (low, high)
        return random.randint(self.key(), _shape(size, first, end), first, end, dtype)

    def split(self, num: int | Sequence[int]) -> "StatefulPRNG":
        """Return independent generators as one whose key and counter have the shape `num`, to vmap over."""
        return StatefulPRNG(self.key(num), new_ref(jnp.zeros(num, int)))

    def spawn(self, n_children: int) -> "list[StatefulPRNG]":
        """Return a list of independent generators."""
        return [StatefulPRNG(key, new_ref(0)) for key in self.key(n_children)]


def _shape(size: Size, *parameters: ArrayLike) -> tuple[int, ...]:
    """Return the shape of a draw; without a size, that of the parameters."""
    if size is None:
        return np.broadcast_shapes(*map(np.shape, parameters))
    return tuple(map(operator.index, size)) if isinstance(size, Sequence) else (operator.index(size),)


def stateful_rng(seed: ArrayLike | None = None, *, impl: Any = None) -> StatefulPRNG:
    """Create a random generator with state, similar to `numpy.random.default_rng`.

    Args:
        seed: an integer. Without it the seed comes from the operating system, which is an error inside of functions
            that are being traced.
        impl: the implementation of the generator, as in `random.key`.

    Returns:
        The generator, with the methods `random`, `uniform`, `normal`, `integers`, `key`, `split` and `spawn`.

    Raises:
        TypeError: if `seed` is None inside of a function that is being traced, or is not an integer.

    Example:
        >>> rng = jax.experimental.random.stateful_rng(0)
        >>> rng.integers(10, size=3).shape
        (3,)
    """
    if seed is None:
        if open_frames():
            raise TypeError("stateful_rng: inside of a function that is being traced, pass a seed: `stateful_rng(0)`")
        entropy = np.random.SeedSequence().entropy
        assert isinstance(entropy, int)
        seed = np.int64(entropy & np.iinfo(np.int64).max)
    return StatefulPRNG(random.key(seed, impl=impl), new_ref(0))


publish(__name__)

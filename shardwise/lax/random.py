"""Random numbers from XLA's generators. Unlike those of `shardwise.random`, they may differ between devices."""

import enum
import operator
from collections.abc import Sequence

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.ops.random.rng_bit_generator import ALGORITHMS, RngBitGenerator, RngUniform
from shardwise.typing import ArrayLike, DTypeLike, OutSharding


class RandomAlgorithm(enum.IntEnum):
    """The algorithm of `rng_bit_generator`. The device chooses the default."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2

    def __str__(self) -> str:
        return self.name


def rng_bit_generator(
    key: ArrayLike,
    shape: Sequence[int],
    dtype: DTypeLike = np.uint32,
    algorithm: RandomAlgorithm = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: OutSharding = None,
) -> tuple[Array, Array]:
    """Generate random bits from a state, with XLA's generator.

    The bits depend on the kind of device. Every device generates all of them.

    Args:
        key: the state, uint32[4] or uint64[2].
        shape: the shape of the bits.
        dtype: the dtype of the bits, an unsigned integer dtype.
        algorithm: the algorithm.
        out_sharding: the sharding to pin the bits to.

    Returns:
        A pair: the next state, and the random bits.

    Raises:
        TypeError: if the state has another type, or `dtype` is not an unsigned integer dtype.
        ValueError: if `algorithm` is unknown.
        ShardingError: if `out_sharding` does not fit the shape of the bits.

    Example:
        >>> state, bits = lax.rng_bit_generator(jnp.arange(4, dtype="uint32"), (2, 3))
        >>> state.shape, bits.shape, bits.dtype
        ((4,), (2, 3), dtype('uint32'))
    """
    sizes = tuple(operator.index(size) for size in shape)
    op = RngBitGenerator(sizes, requested_dtype("rng_bit_generator", dtype), ALGORITHMS[RandomAlgorithm(algorithm)])
    state, bits = op(as_operand(key, "rng_bit_generator"))
    return state, constrain_sharding(bits, out_sharding)


def rng_uniform(a: ArrayLike, b: ArrayLike, shape: Sequence[int]) -> Array:
    """Generate uniform random numbers in [`a`, `b`) from a state that the device keeps.

    Each call returns other numbers.

    Args:
        a: the lower bound, a scalar.
        b: the upper bound, a scalar of the dtype of `a`.
        shape: the shape of the result.

    Returns:
        An array of the dtype of the bounds.

    Raises:
        TypeError: if the bounds are not scalars of the same integer or float dtype.

    Example:
        >>> bool((lax.rng_uniform(0.0, 1.0, (3,)) < 1).all())
        True
    """
    sizes = tuple(operator.index(size) for size in shape)
    return RngUniform(sizes)(as_operand(a, "rng_uniform"), as_operand(b, "rng_uniform"))

"""XLA's own random numbers. `shardwise.random` has those that are the same everywhere."""

import enum
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.api.placement import with_sharding_constraint
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ops.random.rng_bit_generator import ALGORITHMS, RngBitGenerator, RngUniform


class RandomAlgorithm(enum.IntEnum):
    """How `rng_bit_generator` makes bits. The default is the device's own choice."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2

    def __str__(self) -> str:
        return self.name


def rng_bit_generator(
    key: Any,
    shape: Sequence[int],
    dtype: Any = np.uint32,
    algorithm: RandomAlgorithm = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: Any = None,
) -> tuple[Any, Any]:
    """The state after, and random integers of `shape`, from a state: u32[4] or u64[2].

    The bits are XLA's, and other devices may have others. Every device makes all of them.

    >>> state, bits = lax.rng_bit_generator(jnp.arange(4, dtype="uint32"), (2, 3))
    >>> state.shape, bits.shape, bits.dtype
    ((4,), (2, 3), dtype('uint32'))
    """
    sizes = tuple(operator.index(size) for size in shape)
    op = RngBitGenerator(sizes, canonical_dtype(dtype), ALGORITHMS[RandomAlgorithm(algorithm)])
    state, bits = op(as_operand(key, "rng_bit_generator"))
    return state, bits if out_sharding is None else with_sharding_constraint(bits, out_sharding)


def rng_uniform(a: Any, b: Any, shape: Sequence[int]) -> Any:
    """Numbers from `a` to below `b`, others each time: the device keeps a state.

    >>> bool((lax.rng_uniform(0.0, 1.0, (3,)) < 1).all())
    True
    """
    sizes = tuple(operator.index(size) for size in shape)
    return RngUniform(sizes)(as_operand(a, "rng_uniform"), as_operand(b, "rng_uniform"))

"""Random bits of XLA's generators."""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.stablehlo.operation import Operation

_ALGORITHMS = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
}


def _rng_bit_generator(op: Operation, state: Array) -> Any:
    bits = op.out_types[1]
    return lax.rng_bit_generator(state, bits.shape, bits.dtype, _ALGORITHMS[op.enum("rng_algorithm")])


OPS: dict[str, Callable[..., Any]] = {"stablehlo.rng_bit_generator": _rng_bit_generator}

"""XLA's random number generators: rng_bit_generator and rng_uniform.

The bits of rng_bit_generator may differ between platforms, and rng_uniform has a hidden state. Both generate the
unsharded array on every device; if a sharding is required, each device keeps its shard.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_integer
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce, ToPartial
from shardwise.compiler.ops.random.counter_based import COUNTER, WIDTHS, WORD
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

ALGORITHMS = ("DEFAULT", "THREE_FRY", "PHILOX")


def _replicated_rule(*shapes: Sequence[int], operands: int) -> FactorRule:
    """Return the rule of an op without shardable dims. The first `operands` shapes are the operands' shapes."""
    dims: list[tuple[tuple[int, ...], ...]] = []
    sizes: list[int] = []
    for shape in shapes:
        dims.append(tuple((len(sizes) + dim,) for dim in range(len(shape))))
        sizes += shape
    return FactorRule(
        tuple(dims[:operands]), tuple(dims[operands:]), tuple(sizes), need_replication=frozenset(range(len(sizes)))
    )


@final
@record
class RngBitGenerator(Op):
    """Generate random integers of `dtype`. Returns the new state and the integers.

    The state is u64[2], or u32[4] with the low words first.
    """

    name = "rng_bit_generator"
    single = False
    shape: tuple[int, ...]
    dtype: DType
    algorithm: str

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (state,) = types
        if state not in (ArrayType((4,), WORD), ArrayType((2,), COUNTER)):
            raise TypeError(f"rng_bit_generator: the key must be u32[4] or u64[2], not {state}")
        if self.dtype not in WIDTHS.values():
            raise TypeError(
                f"rng_bit_generator: dtype must be one of {', '.join(map(str, WIDTHS.values()))}, not {self.dtype}"
            )
        if self.algorithm not in ALGORITHMS:
            raise TypeError(
                f"rng_bit_generator: algorithm must be one of {', '.join(ALGORITHMS)}, not {self.algorithm!r}"
            )
        return state, ArrayType(self.shape, self.dtype)

    def factors(self, state: ArrayType) -> FactorRule:
        return _replicated_rule(state.shape, state.shape, self.shape, operands=1)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        # The first state generates the bits of all states, as in JAX, and only this state changes.
        states = batch_dim_at(operands[0], dims[0], 0, axis.size)
        first = Reshape(states.type.shape[1:])(slice_along(states, 0, 0, 1))
        new_state, bits = replace(self, shape=(axis.size, *self.shape))(first)
        rest = slice_along(states, 0, 1, axis.size)
        new_states = Concatenate(0)(Reshape((1, *new_state.type.shape))(new_state), rest)
        return (new_states, bits), (0, 0)

    def lower(self, hlo: Hlo, state: HloValue) -> Any:
        return lower_rng_bit_generator(hlo, state, ArrayType(self.shape, self.dtype), self.algorithm)


def lower_rng_bit_generator(hlo: Hlo, state: HloValue, bits_type: ArrayType, algorithm: str) -> tuple[Any, Any]:
    """Lower XLA's generator for a state of u64[2] or u32[4], and return the new state and the bits."""
    state_type, wide, pairs = state.type, ArrayType((2,), COUNTER), ArrayType((2, 2), WORD)
    if state_type != wide:
        state = hlo.op("stablehlo.reshape", (state,), pairs)
        state = hlo.op("stablehlo.bitcast_convert", (state,), wide)
    attributes = f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>"
    new_state, bits = hlo.many("stablehlo.rng_bit_generator", (state,), (wide, bits_type), attributes)
    if state_type != wide:
        new_state = hlo.op("stablehlo.bitcast_convert", (new_state,), pairs)
        new_state = hlo.op("stablehlo.reshape", (new_state,), state_type)
    return new_state, bits


@final
@record
class RngUniform(Op):
    """Generate numbers in [low, high) from a hidden state of the device. Each call returns different numbers."""

    name = "rng_uniform"
    shape: tuple[int, ...]

    def out_type(self, low: ArrayType, high: ArrayType) -> ArrayType:
        if low.strong() != high.strong() or low.ndim:
            raise TypeError(f"rng_uniform: needs two scalars of one dtype, not {low} and {high}")
        if not (is_float(low.dtype) or is_integer(low.dtype)):
            raise TypeError(f"rng_uniform: needs integers or floats, not {low.dtype}")
        return ArrayType(self.shape, low.dtype)

    def factors(self, low: ArrayType, high: ArrayType) -> FactorRule:
        return _replicated_rule((), (), self.shape, operands=2)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        # Each device has its own state, so broadcast the numbers of the first device.
        return AllReduce(context.auto_axes, SUM)(ToPartial(context.auto_axes)(self(*operands)))

    def lower(self, hlo: Hlo, low: HloValue, high: HloValue) -> Any:
        sizes = _shape_operand(hlo, self.shape)
        attributes = "rng_distribution = #stablehlo<rng_distribution UNIFORM>"
        return hlo.op("stablehlo.rng", (low, high, sizes), self.out_type(low.type, high.type), attributes)


def _shape_operand(hlo: Hlo, shape: Sequence[int]) -> Any:
    """Return a shape as an i64 vector."""
    one = ArrayType((1,), np.int64)
    parts = [hlo.constant(size, one) for size in shape]
    out = ArrayType((len(shape),), np.int64)
    if not parts:
        return hlo.constant(0, out)
    return hlo.op("stablehlo.concatenate", parts, out, "dimension = 0 : i64")

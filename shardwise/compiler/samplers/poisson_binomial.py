"""Samplers of the Poisson and the binomial distribution.

`WaitingTimeSampler` is for small expected counts, `RejectionSampler` for large ones. All elements of an array share one
key: iteration i of the loop uses key i of a chain of keys, and each element uses its own counter, which is its index in
the unsharded array. The first two operands are the words of the keys and the counters, as in `CounterBased`.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from shardwise.compiler.control.while_loop import while_any
from shardwise.compiler.dtypes import KEY_DTYPES, is_float
from shardwise.compiler.ir.op import BatchAxis, LocalContext
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Log, Log1p
from shardwise.compiler.ops.random.counter_based import COUNTER, shard_start_counters
from shardwise.compiler.ops.random.key_data import WrapKeyData
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import global_indices
from shardwise.compiler.reduction import MAX
from shardwise.compiler.samplers.distributions import bits_to_uniform, uniform_width, where_leading
from shardwise.compiler.samplers.prng import THREEFRY, random_bits_at, split_key
from shardwise.compiler.samplers.sampler import Sampler
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.special.gamma_erf import Lgamma

PARAMETER_COUNTS = {"poisson": 1, "binomial": 2}  # the rate; the number of trials and the probability of success


@record
class CountSampler(Sampler):
    """A sampler of counts. `strides` defines the counters of the elements, as in `CounterBased`."""

    distribution: str
    strides: tuple[int, ...]
    impl: str = field(default=THREEFRY, repr=False)  # the implementation of the keys

    def check_types(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> ArrayType:
        """Check the operands and return the type of the samples."""
        if self.distribution not in PARAMETER_COUNTS or len(parameters) != PARAMETER_COUNTS[self.distribution]:
            raise TypeError(
                f"{self.name}: {self.distribution!r} with {len(parameters)} parameters is not supported; supported "
                f"distributions and their numbers of parameters: {PARAMETER_COUNTS}"
            )
        (sample_type,) = {type.strong() for type in parameters} if len(set(parameters)) == 1 else (None,)
        if sample_type is None or not is_float(sample_type.dtype):
            raise TypeError(
                f"{self.name}: parameters must be floats of one type, not {', '.join(map(str, parameters))}"
            )
        batch = sample_type.shape[: sample_type.ndim - len(self.strides)]
        if key != ArrayType(batch, KEY_DTYPES[self.impl]).physical or first != ArrayType(batch, COUNTER):
            raise TypeError(
                f"{self.name}: needs one key and one counter per batch index of {sample_type}, not {key} and {first}"
            )
        return sample_type

    def factor_dims(self, sample_type: ArrayType) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Return the factors of the samples' dims, of their batch dims, and of the keys with their words."""
        dims = tuple((dim,) for dim in range(sample_type.ndim))
        batch = dims[: sample_type.ndim - len(self.strides)]
        return dims, batch, (*batch, (sample_type.ndim,))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        results = self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)))
        return results, 0 if self.single else (0,) * len(results)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None  # counts are integers

    def uniform(self, key: Operand, first: Operand, like: Operand) -> Any:
        """Sample uniform floats with the type of `like`, with one key per batch index."""
        shape = like.type.shape[like.type.ndim - len(self.strides) :]
        dtype = like.type.dtype
        return bits_to_uniform(random_bits_at(key, first, shape, self.strides, uniform_width(dtype)), dtype)


@final
@record
class WaitingTimeSampler(CountSampler):
    """Count events by sampling the waiting times between them, until their sum exceeds a limit.

    Poisson (Knuth's method): waiting times are exponential, -log(u) for a uniform u, and the limit is the rate.
    Binomial: waiting times are geometric (the number of trials until the next success), and the limit is the number of
        trials. Iterations after an element has finished do not change it, so devices may run different numbers of
        iterations.
    """

    name = "random_waiting"

    def out_type(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> ArrayType:
        return self.check_types(key, first, *parameters)

    def factors(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> FactorRule:
        sample_type = self.check_types(key, first, *parameters)
        samples, batch, keys = self.factor_dims(sample_type)
        operands = (keys, batch, *(samples for _ in parameters))
        return FactorRule(
            operands, (samples,), (*sample_type.shape, key.shape[-1]), need_replication=frozenset({sample_type.ndim})
        )

    def localize(self, context: LocalContext, key: Operand, first: Operand, *parameters: Operand) -> Any:
        return self(key, shard_start_counters(context, first, self.strides), *parameters)

    def sample(self, key: Operand, first: Operand, *parameters: Operand) -> list[Any]:
        limit = -parameters[0] if self.distribution == "poisson" else parameters[0]

        def is_active(
            key: Operand, first: Operand, events: Operand, time: Operand, limit: Operand, *log_failure: Operand
        ) -> Any:
            return time > limit if self.distribution == "poisson" else time <= limit

        def wait_for_event(
            key: Operand, first: Operand, events: Operand, time: Operand, limit: Operand, *log_failure: Operand
        ) -> list[Any]:
            active = is_active(key, first, events, time, limit)
            # JAX uses the new keys in a different order for each distribution.
            first_key, second_key = split_key(key, 2)
            if self.distribution == "poisson":
                next_key, uniform_key = first_key, second_key
            else:
                next_key, uniform_key = second_key, first_key
            waiting_time = Log()(self.uniform(uniform_key, first, time))
            if self.distribution == "binomial":
                waiting_time = Ceil()(waiting_time / log_failure[0])
            events = Select()(active, events + 1, events)
            return [next_key, first, events, time + waiting_time, limit, *log_failure]

        log_failure = [Log1p()(-parameters[1])] if self.distribution == "binomial" else []
        zero = full_like(parameters[0], 0)
        start = [WrapKeyData(self.impl)(key), first, zero, zero, limit, *log_failure]
        _, _, events, *_ = while_any(self.distribution, start, is_active, wait_for_event)
        return [events - 1]


@final
@record
class RejectionSampler(CountSampler):
    """Transformed rejection: draw proposals until each element has accepted one, and keep the last accepted one.

    An element may accept another proposal while the loop waits for other elements, so its sample depends on the number
    of iterations (as in JAX). Operands after keys and counters: the minimum number of iterations, and a mask of the
    elements to wait for. Results: the samples, and the number of iterations. If the array is sharded, each device first
    determines the number of iterations that its shard needs, an all-reduce computes the maximum, and then each device
    runs that many iterations.
    """

    name = "random_rejection"
    single = False

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        key, first, min_iterations, active, *parameters = types
        sample_type = self.check_types(key, first, *parameters)
        if min_iterations != ArrayType(first.shape, np.int32) or active != sample_type.with_dtype(np.bool_):
            raise TypeError(
                "random_rejection: needs one i32 of min_iterations per key and a mask of the shape of the samples, "
                f"{sample_type}, not {min_iterations} and {active}"
            )
        return sample_type, min_iterations

    def factors(self, *types: ArrayType) -> FactorRule:
        sample_type, _ = self.out_types(*types)
        samples, batch, keys = self.factor_dims(sample_type)
        operands = (keys, batch, batch, samples, *(samples for _ in types[4:]))
        return FactorRule(
            operands,
            (samples, batch),
            (*sample_type.shape, types[0].shape[-1]),
            need_replication=frozenset({sample_type.ndim}),
        )

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        key, first, min_iterations, active, *parameters = operands
        first = shard_start_counters(context, first, self.strides)
        batch, global_shape = first.type.ndim, context.global_types[3].shape
        axes = tuple(axis for dim in range(batch, len(global_shape)) for axis in context.sharding_of(dim)[0])
        # The loop must not wait for padding of elements or of keys.
        active = _zero_padding(context, active, global_shape)
        min_iterations = _zero_padding(context, min_iterations, global_shape)
        if axes:
            _, iterations = self(key, first, min_iterations, active, *parameters)
            min_iterations = AllReduce(axes, MAX)(iterations)
        return self(key, first, min_iterations, active, *parameters)

    def sample(self, *operands: Operand) -> list[Any]:
        key, first, min_iterations, active, *parameters = operands
        batch = first.type.ndim
        propose = _propose_poisson if self.distribution == "poisson" else _propose_binomial

        def needs_iteration(
            key: Operand,
            first: Operand,
            iteration: Operand,
            min_iterations: Operand,
            samples: Operand,
            active: Operand,
            *parameters: Operand,
        ) -> Any:
            return ReduceOr(tuple(range(batch, active.type.ndim)))(active) | (iteration < min_iterations)

        def iterate(
            key: Operand,
            first: Operand,
            iteration: Operand,
            min_iterations: Operand,
            samples: Operand,
            active: Operand,
            *parameters: Operand,
        ) -> list[Any]:
            is_running = needs_iteration(key, first, iteration, min_iterations, samples, active, *parameters)
            next_key, u_key, v_key = split_key(key, 3)
            proposals, accepted = propose(
                self.uniform(u_key, first, samples), self.uniform(v_key, first, samples), *parameters
            )
            new = [next_key, iteration + 1, Select()(accepted, proposals, samples), active & ~accepted]
            key, iteration, samples, active = (
                where_leading(is_running, after, before)
                for after, before in zip(new, (key, iteration, samples, active), strict=True)
            )
            return [key, first, iteration, min_iterations, samples, active, *parameters]

        zero = full_like(min_iterations, 0)
        samples = full_like(parameters[0], -1)
        start = [WrapKeyData(self.impl)(key), first, zero, min_iterations, samples, active, *parameters]
        _, _, iterations, _, samples, *_ = while_any(self.distribution, start, needs_iteration, iterate)
        return [samples, iterations]


def _zero_padding(context: LocalContext, x: Operand, global_shape: Sequence[int]) -> Any:
    """Set the padding of a shard, whose dims are leading dims of the samples, to zero."""
    for dim, size in enumerate(x.type.shape):
        if size * context.sharding_of(dim)[1] != global_shape[dim]:
            is_valid = Compare("LT")(
                global_indices(context, x.type.shape, dim), full(x.type.shape, global_shape[dim], np.int32)
            )
            x = Select()(is_valid, x, full_like(x, 0))
    return x


def _propose_poisson(u: Operand, v: Operand, rate: Operand) -> tuple[Any, Any]:
    """Return Poisson proposals and whether they are accepted, by Hörmann's transformed rejection (PTRS).

    `u` and `v` are uniform samples.
    """
    b = 0.931 + 2.53 * Sqrt()(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    u = u - 0.5
    us = 0.5 - Abs()(u)
    k = Floor()((2 * a / us + b) * u + rate + 0.43)
    score = Log()(v * inverse_alpha / (a / (us * us) + b))
    bound = -rate + k * Log()(rate) - Lgamma()(k + 1)
    is_accepted_early = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    is_rejected_early = (k < 0) | ((us < 0.013) & (v > us))
    return k, is_accepted_early | (~is_rejected_early & (score <= bound))


def _propose_binomial(u: Operand, v: Operand, trials: Operand, probability: Operand) -> tuple[Any, Any]:
    """Return binomial proposals and whether they are accepted, by Hörmann's transformed rejection (BTRS).

    `u` and `v` are uniform samples. The probability of success must be at most 0.5.
    """
    deviation = Sqrt()(trials * probability * (1 - probability))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * probability
    odds = probability / (1 - probability)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = Floor()((trials + 1) * probability)
    u = u - 0.5
    us = 0.5 - Abs()(u)
    is_accepted_early = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    k = Floor()((2 * a / us + b) * u + (trials * probability + 0.5))
    is_rejected_early = (k < 0) | (k > trials)
    score = Log()(v * alpha / (a / (us * us) + b))
    bound = (
        (mode + 0.5) * Log()((mode + 1) / (odds * (trials - mode + 1)))
        + (trials + 1) * Log()((trials - mode + 1) / (trials - k + 1))
        + (k + 0.5) * Log()(odds * (trials - k + 1) / (k + 1))
        + _stirling_correction(mode)
        + _stirling_correction(trials - mode)
        - _stirling_correction(k)
        - _stirling_correction(trials - k)
    )
    return k, is_accepted_early | (~is_rejected_early & (score <= bound))


# log(k!) minus Stirling's approximation of it, for k from 0 to 9.
_STIRLING_CORRECTIONS = (
    0.0810614667953272,
    0.0413406959554092,
    0.0276779256849983,
    0.02079067210376509,
    0.0166446911898211,
    0.0138761288230707,
    0.0118967099458917,
    0.0104112652619720,
    0.00925546218271273,
    0.00833056343336287,
)


def _stirling_correction(k: Operand) -> Any:
    """Return log(k!) minus Stirling's approximation of it: tabulated values up to 9, and the series at 9 above."""
    clamped = Clamp()(full_like(k, 0), k, full_like(k, 9))
    square = (clamped + 1) * (clamped + 1)
    correction = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (clamped + 1)
    for index, tabulated in enumerate(_STIRLING_CORRECTIONS):
        is_number = (k <= 9) & Compare("EQ")(Floor()(clamped), full_like(k, index))
        correction = Select()(is_number, full_like(k, tabulated), correction)
    return correction

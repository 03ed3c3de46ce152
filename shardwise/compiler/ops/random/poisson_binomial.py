"""Samplers of counts: Poisson and binomial draws, by waiting for events where few are expected, else by rejection.

All elements share a key: turn i of the loop takes its uniform numbers from key i of a chain, each element by its own
number in the whole array. Operands begin with the keys and the counters that the ops of `random` take.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.op import BatchAxis, LocalContext
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce
from shardwise.compiler.ops.control.while_loop import while_any
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Log, Log1p
from shardwise.compiler.ops.random.distributions import (
    Sampler,
    bits_to_uniform,
    split_key,
    uniform_width,
    where_leading,
)
from shardwise.compiler.ops.random.threefry import COUNTER, WORD, RandomBits, shard_start_counters
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import global_indices
from shardwise.compiler.ops.special.gamma_erf import Lgamma
from shardwise.compiler.reduction import MAX
from shardwise.compiler.shardings.factors import FactorRule

PARAMETER_COUNTS = {"poisson": 1, "binomial": 2}  # the rate; the number of trials, and the chance of each


@record
class CountSampler(Sampler):
    """Draws of a distribution whose elements are numbered with `strides`, as those of `RandomBits` are."""

    distribution: str
    strides: tuple[int, ...]

    def check_types(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> ArrayType:
        """The type of the draws."""
        if self.distribution not in PARAMETER_COUNTS or len(parameters) != PARAMETER_COUNTS[self.distribution]:
            raise TypeError(
                f"{self.name}: {self.distribution!r} of {len(parameters)} parameters is not one of {PARAMETER_COUNTS}"
            )
        (kind,) = {type.strong() for type in parameters} if len(set(parameters)) == 1 else (None,)
        if kind is None or not is_float(kind.dtype):
            raise TypeError(f"{self.name}: parameters are floats of one type, not {', '.join(map(str, parameters))}")
        batch = kind.shape[: kind.ndim - len(self.strides)]
        if key != ArrayType((*batch, 2), WORD) or first != ArrayType(batch, COUNTER):
            raise TypeError(f"{self.name}: needs a key and a counter for each draw of {kind}, not {key} and {first}")
        return kind

    def factor_dims(self, kind: ArrayType) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """The factors of draws, of the dims that keys have, and of a key with its words, which come last."""
        dims = tuple((dim,) for dim in range(kind.ndim))
        batch = dims[: kind.ndim - len(self.strides)]
        return dims, batch, (*batch, (kind.ndim,))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        found = self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)))
        return found, 0 if self.single else (0,) * len(found)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None  # counts jump

    def uniform(self, key: Any, first: Any, like: Any) -> Any:
        """Uniform numbers for all elements of an array, from one key for each of its batch."""
        shape = like.type.shape[like.type.ndim - len(self.strides) :]
        dtype = like.type.dtype
        return bits_to_uniform(RandomBits(shape, self.strides, uniform_width(dtype))(key, first), dtype)


@final
@record
class WaitingTimeSampler(CountSampler):
    """How many events happen before the time is up, one after the other. What is drawn after that changes nothing.

    Poisson: the product of uniform numbers falls below exp(-rate). Binomial: the trials up to each success are drawn
    until there are more than `trials`.
    """

    name = "random_waiting"

    def out_type(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> ArrayType:
        return self.check_types(key, first, *parameters)

    def factors(self, key: ArrayType, first: ArrayType, *parameters: ArrayType) -> FactorRule:
        kind = self.check_types(key, first, *parameters)
        draws, batch, keys = self.factor_dims(kind)
        operands = (keys, batch, *(draws for _ in parameters))
        return FactorRule(operands, (draws,), (*kind.shape, 2), need_replication=frozenset({kind.ndim}))

    def localize(self, context: LocalContext, key: Any, first: Any, *parameters: Any) -> Any:
        return self(key, shard_start_counters(context, first, self.strides), *parameters)

    def sample(self, key: Any, first: Any, *parameters: Any) -> list[Any]:
        limit = -parameters[0] if self.distribution == "poisson" else parameters[0]

        def goes_on(key: Any, first: Any, events: Any, passed: Any, limit: Any, *logs: Any) -> Any:
            return passed > limit if self.distribution == "poisson" else passed <= limit

        def turn(key: Any, first: Any, events: Any, passed: Any, limit: Any, *logs: Any) -> list[Any]:
            open_ = goes_on(key, first, events, passed, limit)
            one, other = split_key(key, 2)
            onward, here = (one, other) if self.distribution == "poisson" else (other, one)
            step = Log()(self.uniform(here, first, passed))
            if self.distribution == "binomial":
                step = Ceil()(step / logs[0])
            return [onward, first, Select()(open_, events + 1, events), passed + step, limit, *logs]

        logs = [Log1p()(-parameters[1])] if self.distribution == "binomial" else []
        none = full_like(parameters[0], 0)
        found = while_any(self.distribution, [key, first, none, none, limit, *logs], goes_on, turn)
        return [found[2] - 1]


@final
@record
class RejectionSampler(CountSampler):
    """Proposals, drawn until each element has accepted one; of those that an element accepts, the last counts.

    So a draw depends on how many turns the others take. Operands after key and counter: how many turns there are at
    least, and which elements are waited for. Results: the draws, and the turns that there were. Where the array is
    cut, a device counts its own turns, the most of all is found, and then it takes that many: one exchange in all.
    """

    name = "random_rejection"
    single = False

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        key, first, turns, live, *parameters = types
        kind = self.check_types(key, first, *parameters)
        if turns != ArrayType(first.shape, np.int32) or live != kind.with_dtype(np.bool_):
            raise TypeError(f"random_rejection: turns and live are not {turns} and {live} for {kind}")
        return kind, turns

    def factors(self, *types: ArrayType) -> FactorRule:
        kind, _ = self.out_types(*types)
        draws, batch, keys = self.factor_dims(kind)
        operands = (keys, batch, batch, draws, *(draws for _ in types[4:]))
        return FactorRule(operands, (draws, batch), (*kind.shape, 2), need_replication=frozenset({kind.ndim}))

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        key, first, turns, live, *parameters = operands
        first = shard_start_counters(context, first, self.strides)
        batch, whole = first.type.ndim, context.global_types[3].shape
        axes = tuple(axis for dim in range(batch, len(whole)) for axis in context.sharding_of(dim)[0])
        # Nobody waits for padding: of no element, and of no key.
        live, turns = _inside(context, live, whole), _inside(context, turns, whole)
        if axes:
            _, needed = self(key, first, turns, live, *parameters)
            turns = AllReduce(axes, MAX)(needed)
        return self(key, first, turns, live, *parameters)

    def sample(self, *operands: Any) -> list[Any]:
        key, first, turns, live, *parameters = operands
        batch = first.type.ndim
        propose = _poisson if self.distribution == "poisson" else _binomial

        def goes_on(key: Any, first: Any, turn: Any, turns: Any, found: Any, waiting: Any, *parameters: Any) -> Any:
            return ReduceOr(tuple(range(batch, waiting.type.ndim)))(waiting) | (turn < turns)

        def step(key: Any, first: Any, turn: Any, turns: Any, found: Any, waiting: Any, *parameters: Any) -> list[Any]:
            open_ = goes_on(key, first, turn, turns, found, waiting, *parameters)
            onward, one, other = split_key(key, 3)
            proposed, accepted = propose(
                self.uniform(one, first, found), self.uniform(other, first, found), *parameters
            )
            new = [onward, turn + 1, Select()(accepted, proposed, found), waiting & ~accepted]
            key, turn, found, waiting = (
                where_leading(open_, after, before)
                for after, before in zip(new, (key, turn, found, waiting), strict=True)
            )
            return [key, first, turn, turns, found, waiting, *parameters]

        start = [key, first, full_like(turns, 0), turns, full_like(parameters[0], -1), live, *parameters]
        _, _, turn, _, found, *_ = while_any(self.distribution, start, goes_on, step)
        return [found, turn]


def _inside(context: LocalContext, x: Any, whole: Sequence[int]) -> Any:
    """A piece of something that has the first dims of the draws, with zeros in place of its padding."""
    for dim, size in enumerate(x.type.shape):
        if size * context.sharding_of(dim)[1] != whole[dim]:
            is_inside = Compare("LT")(
                global_indices(context, x.type.shape, dim), full(x.type.shape, whole[dim], np.int32)
            )
            x = Select()(is_inside, x, full_like(x, 0))
    return x


def _poisson(u: Any, v: Any, rate: Any) -> tuple[Any, Any]:
    """A proposal for a Poisson draw, and whether it is accepted: Hörmann's transformed rejection (PTRS)."""
    b = 0.931 + 2.53 * Sqrt()(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    u = u - 0.5
    us = 0.5 - Abs()(u)
    found = Floor()((2 * a / us + b) * u + rate + 0.43)
    score = Log()(v * inverse_alpha / (a / (us * us) + b))
    bound = -rate + found * Log()(rate) - Lgamma()(found + 1)
    at_once = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    out = (found < 0) | ((us < 0.013) & (v > us))
    return found, at_once | (~out & (score <= bound))


def _binomial(u: Any, v: Any, trials: Any, chance: Any) -> tuple[Any, Any]:
    """The same for a binomial draw, whose chance is at most a half: BTRS."""
    deviation = Sqrt()(trials * chance * (1 - chance))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * chance
    odds = chance / (1 - chance)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = Floor()((trials + 1) * chance)
    u = u - 0.5
    us = 0.5 - Abs()(u)
    at_once = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    found = Floor()((2 * a / us + b) * u + (trials * chance + 0.5))
    out = (found < 0) | (found > trials)
    score = Log()(v * alpha / (a / (us * us) + b))
    bound = (
        (mode + 0.5) * Log()((mode + 1) / (odds * (trials - mode + 1)))
        + (trials + 1) * Log()((trials - mode + 1) / (trials - found + 1))
        + (found + 0.5) * Log()(odds * (trials - found + 1) / (found + 1))
        + _stirling_rest(mode)
        + _stirling_rest(trials - mode)
        - _stirling_rest(found)
        - _stirling_rest(trials - found)
    )
    return found, at_once | (~out & (score <= bound))


# log(k!) less Stirling's approximation of it, for k from 0.
_STIRLING_RESTS = (
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


def _stirling_rest(k: Any) -> Any:
    """What Stirling's approximation leaves of log(k!). Numbers above 9 take the value that its series has there."""
    clamped = Clamp()(full_like(k, 0), k, full_like(k, 9))
    square = (clamped + 1) * (clamped + 1)
    found = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (clamped + 1)
    for number, rest in enumerate(_STIRLING_RESTS):
        is_here = (k <= 9) & Compare("EQ")(Floor()(clamped), full_like(k, number))
        found = Select()(is_here, full_like(k, rest), found)
    return found

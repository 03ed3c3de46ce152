"""Distributions of counts."""

from typing import Any

import numpy as np

from shardwise.api.control import scan
from shardwise.compiler.ir.types import DType
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.elementwise import Compare, Convert, Div, Select, like
from shardwise.compiler.ops.operands import as_inexact, as_operand, astype_weak, type_of
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.random import counters_at, random_keys, row_major
from shardwise.compiler.ops.rejection import Rejection, Waiting
from shardwise.compiler.ops.rounding import Floor
from shardwise.compiler.ops.shape import full, move_dim
from shardwise.compiler.ops.transcendental import Log, Log1p
from shardwise.lax.cumulative import cumsum
from shardwise.random.draw import Shape, draw, float_dtype, integer_dtype, parameter, shape_with, sizes
from shardwise.random.keys import words


def _waited(kind: str, key: Any, *parameters: Any) -> Any:
    """Counts of few events."""
    strides = row_major(parameters[0].type.shape)
    return Waiting(kind, strides)(key, counters_at(key, 0), *parameters)


def _accepted(kind: str, key: Any, *parameters: Any) -> Any:
    """Counts of many events."""
    shape = parameters[0].type.shape
    turns, live = full((), 0, np.int32), full(shape, True, np.bool_)
    return Rejection(kind, row_major(shape))(key, counters_at(key, 0), turns, live, *parameters)[0]


def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """How many events happen where `lam` are expected.

    >>> jax.random.poisson(jax.random.key(0), 4.0, (4,))
    Array([0, 1, 5, 5], dtype=int32)
    """
    kind, shape = integer_dtype("poisson", dtype), shape_with("poisson", shape, lam)
    return draw(_poisson, words("poisson", key), lam, shape=shape, dtype=kind, out_sharding=out_sharding)


def _poisson(key: Any, lam: Any, *, shape: Shape, dtype: DType) -> Any:
    lam = parameter(as_operand(lam), shape, np.dtype(np.float32))
    is_small = (lam < 10) | (lam != lam)
    few = _waited("poisson", key, Select()(is_small, lam, like(lam, 0)))
    many = _accepted("poisson", key, Select()(is_small, like(lam, 1e5), lam))
    # -1, which stands for no number, is as large as an unsigned integer can be.
    found = Select()(is_small, Convert(dtype)(Convert(np.dtype(np.int32))(few)), Convert(dtype)(many))
    return Select()(Compare("EQ")(lam, like(lam, 0)), like(found, 0), found)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """How many of `n` trials succeed, each with chance `p`, as floats; NaN where there is no such number.

    >>> jax.random.binomial(jax.random.key(0), 10, 0.5, (4,))
    Array([6., 7., 5., 6.], dtype=float32)
    """
    kind, shape = float_dtype("binomial", dtype), shape_with("binomial", shape, n, p)
    return draw(successes, words("binomial", key), n, p, shape=shape, dtype=kind)


def successes(key: Any, trials: Any, chance: Any, *, shape: Shape, dtype: DType) -> Any:
    """Binomial draws."""
    chance = as_inexact(chance, "binomial")
    kind = chance.type.dtype
    chance, trials = parameter(chance, shape, kind), parameter(as_operand(trials), shape, kind)
    is_below_half = chance < 0.5
    lesser = Select()(is_below_half, chance, 1.0 - chance)
    has_no_chance = (lesser < 0) | (lesser != lesser)
    has_no_trials, is_endless = (trials != trials) | (trials < 0), trials == np.inf
    lesser = Select()(has_no_chance, like(lesser, 0.01), lesser)
    is_small = has_no_trials | (trials * lesser <= 10)
    trials = Floor()(trials)
    few = _waited("binomial", key, Select()(is_small, trials, like(trials, 0)), lesser)
    enough = Select()(is_small, like(trials, 1e4), trials), Select()(is_small, like(lesser, 0.5), lesser)
    many = _accepted("binomial", key, *enough)
    found = Convert(dtype)(Select()(is_small, few, many))
    is_wrong = has_no_chance | has_no_trials
    found = Select()(is_wrong, like(found, np.nan), found)
    found = Select()(is_endless & ~is_wrong, like(found, np.inf), found)
    is_itself = is_below_half | has_no_trials | (chance != chance) | is_endless
    return Select()(is_itself, found, Convert(dtype)(trials) - found)


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """How many trials it takes up to the first success, which each has with chance `p`.

    >>> jax.random.geometric(jax.random.key(0), 0.1, (4,))
    Array([ 1,  1, 11,  8], dtype=int32)
    """
    kind, shape = integer_dtype("geometric", dtype), shape_with("geometric", shape, p)
    return draw(_geometric, words("geometric", key), p, shape=shape, dtype=kind, out_sharding=out_sharding)


def _geometric(key: Any, p: Any, *, shape: Shape, dtype: DType) -> Any:
    p = as_inexact(p, "geometric")
    p = parameter(p, shape, p.type.dtype)
    u = draws.uniform(key, shape, p.type.dtype)
    logs = Log()(Select()(u == 0, like(u, 1), u))
    return Convert(dtype)(Floor()(Div()(logs, Log1p()(-p))) + 1)


def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None, unroll: int | bool = 1) -> Any:
    """How many of `n` trials end in each of the ways that the last dim of `p` gives chances for.

    >>> jax.random.multinomial(jax.random.key(0), 10, jnp.array([0.2, 0.3, 0.5]))
    Array([1., 1., 8.], dtype=float32)
    """
    types = [type_of(n, "multinomial"), type_of(p, "multinomial")]
    kind, _ = meet("multinomial", types)
    kind = kind if kind.kind == "f" else default_dtype("float*")
    shape = types[1].shape if shape is None else sizes("multinomial", shape)
    if not shape:
        raise ValueError(f"multinomial: p should have a last dim for the ways, not {types[1]}")
    wanted = float_dtype("multinomial", dtype)
    key = words("multinomial", key)
    return draw(_multinomial, key, n, p, shape=shape, kind=kind, dtype=wanted, unroll=unroll)


def _multinomial(key: Any, n: Any, p: Any, *, shape: Shape, kind: DType, dtype: DType, unroll: int | bool) -> Any:
    left, chances = parameter(as_operand(n), shape[:-1], kind), parameter(as_operand(p), shape, kind)
    chances = move_dim(chances, len(shape) - 1, 0)
    rest = cumsum(chances, 0, reverse=True)
    shares = chances / Select()(rest == 0, like(rest, 1), rest)

    def step(left: Any, given: Any) -> Any:
        share, key = given
        taken = successes(key, left, share.clip(0, 1), shape=shape[:-1], dtype=kind)
        return left - taken, taken

    _, counts = scan(step, left, (shares, random_keys(key, shape[-1:])), unroll=unroll)
    return astype_weak(move_dim(counts, 0, len(shape) - 1), dtype, False)

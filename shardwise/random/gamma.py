"""The gamma distribution, and what is made of it."""

import operator
from typing import Any

from shardwise.compiler.ir.types import DType
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.aggregate import ReduceMax
from shardwise.compiler.ops.draws import RandomGamma, subkeys
from shardwise.compiler.ops.elementwise import Div, Mul, Sub, like
from shardwise.compiler.ops.extremum import Max
from shardwise.compiler.ops.operands import as_operand, type_of
from shardwise.compiler.ops.parts import Abs
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.random import random_keys
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.shape import Broadcast
from shardwise.compiler.ops.transcendental import Exp
from shardwise.random.continuous import waits
from shardwise.random.draw import Shape, converts_safely, draw, fitting, float_dtype, parameter, shape_with, sizes
from shardwise.random.keys import words
from shardwise.random.uniform import signs


def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The sum of `a` waiting times, for any positive `a`.

    >>> jax.random.gamma(jax.random.key(0), 3.0, (2,)).round(3)
    Array([2.569    , 2.7840002], dtype=float32)
    """
    kind, shape = float_dtype("gamma", dtype), shape_with("gamma", shape, a)
    return draw(gammas, words("gamma", key), a, shape=shape, dtype=kind, out_sharding=out_sharding)


def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The logarithm of a draw of `gamma`, which is exact where `a` is small.

    >>> jax.random.loggamma(jax.random.key(0), 3.0, (2,)).round(3)
    Array([0.94400007, 1.024     ], dtype=float32)
    """
    kind, shape = float_dtype("loggamma", dtype), shape_with("loggamma", shape, a)
    return draw(gammas, words("loggamma", key), a, shape=shape, dtype=kind, log=True, out_sharding=out_sharding)


def gammas(key: Any, a: Any, *, shape: Shape, dtype: DType, log: bool = False) -> Any:
    """Gamma draws, or their logarithms: a key for each of them, and no device waits for another."""
    return RandomGamma(log)(random_keys(key, shape), parameter(as_operand(a), shape, dtype))


def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The share that a draw of `gamma(a)` has in its sum with one of `gamma(b)`.

    >>> jax.random.beta(jax.random.key(0), 2.0, 3.0, (2,)).round(3)
    Array([0.23600002, 0.49      ], dtype=float32)
    """
    kind, shape = float_dtype("beta", dtype), shape_with("beta", shape, a, b)
    converts_safely("beta", kind, a, b)
    return draw(_beta, words("beta", key), a, b, shape=shape, dtype=kind, out_sharding=out_sharding)


def _beta(key: Any, a: Any, b: Any, *, shape: Shape, dtype: DType) -> Any:
    logs = [gammas(k, x, shape=shape, dtype=dtype, log=True) for k, x in zip(subkeys(key, 2), (a, b), strict=True)]
    most = Max()(*logs)
    first, second = (Exp()(Sub()(one, most)) for one in logs)
    return first / (first + second)


def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The shares that draws of `gamma` have in their sum along the last dim of `alpha`.

    >>> jax.random.dirichlet(jax.random.key(0), jnp.ones(3)).round(3)
    Array([0.365     , 0.42800003, 0.20700002], dtype=float32)
    """
    kind, given = float_dtype("dirichlet", dtype), type_of(alpha, "dirichlet")
    if not given.ndim:
        raise ValueError(f"dirichlet: alpha should have a last dim along which the shares are 1 together, not {given}")
    shape = (*fitting("dirichlet", shape, given.shape[:-1]), given.shape[-1])
    return draw(_shares, words("dirichlet", key), alpha, shape=shape, dtype=kind, out_sharding=out_sharding)


def _shares(key: Any, alpha: Any, *, shape: Shape, dtype: DType) -> Any:
    logs = gammas(key, alpha, shape=shape, dtype=dtype, log=True)
    last, kept = len(shape) - 1, tuple(range(len(shape) - 1))
    parts = Exp()(Sub()(logs, Broadcast(shape, kept)(ReduceMax((last,))(logs))))
    return Div()(parts, Broadcast(shape, kept)(Sum((last,))(parts)))


def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The sum of `df` squares of normal numbers, for any positive `df`.

    >>> jax.random.chisquare(jax.random.key(0), 3.0, (2,)).round(3)
    Array([2.2050002, 2.49     ], dtype=float32)
    """
    kind, shape = float_dtype("chisquare", dtype), shape_with("chisquare", shape, df)
    converts_safely("chisquare", kind, df)
    return draw(_squares, words("chisquare", key), df, shape=shape, dtype=kind, out_sharding=out_sharding)


def _squares(key: Any, df: Any, *, shape: Shape, dtype: DType) -> Any:
    half = Div()(df := parameter(as_operand(df), shape, dtype), like(df, 2))
    found = Exp()(gammas(key, half, shape=shape, dtype=dtype, log=True))
    return Mul()(found, like(found, 2))


def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The quotient of the means of `dfnum` and of `dfden` squares of normal numbers.

    >>> jax.random.f(jax.random.key(0), 4.0, 6.0, (2,)).round(3)
    Array([2.325, 0.31 ], dtype=float32)
    """
    kind, shape = float_dtype("f", dtype), shape_with("f", shape, dfnum, dfden)
    converts_safely("f", kind, dfnum, dfden)
    return draw(_quotients, words("f", key), dfnum, dfden, shape=shape, dtype=kind, out_sharding=out_sharding)


def _quotients(key: Any, above: Any, below: Any, *, shape: Shape, dtype: DType) -> Any:
    above, below = (parameter(as_operand(x), shape, dtype) for x in (above, below))
    for_below, for_above = subkeys(key, 2)
    means = [Div()(_squares(k, x, shape=shape, dtype=dtype), x) for k, x in ((for_above, above), (for_below, below))]
    return Div()(*means)


def t(key: Any, df: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """A normal number by the root of the mean of `df` squares of others.

    >>> jax.random.t(jax.random.key(0), 3.0, (2,)).round(3)
    Array([ 0.69000006, -3.239     ], dtype=float32)
    """
    kind, shape = float_dtype("t", dtype), shape_with("t", shape, df)
    converts_safely("t", kind, df)
    return draw(_student, words("t", key), df, shape=shape, dtype=kind, out_sharding=out_sharding)


def _student(key: Any, df: Any, *, shape: Shape, dtype: DType) -> Any:
    for_normal, for_gamma = subkeys(key, 2)
    half = Div()(df := parameter(as_operand(df), shape, dtype), like(df, 2))
    spread = Sqrt()(Div()(half, gammas(for_gamma, half, shape=shape, dtype=dtype)))
    return Mul()(draws.normal(for_normal, shape, dtype), spread)


def generalized_normal(key: Any, p: float, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers whose density falls as exp(-abs(x) ** p).

    >>> jax.random.generalized_normal(jax.random.key(0), 2.0, (2,)).round(3)
    Array([0.95400006, 0.09      ], dtype=float32)
    """
    kind, shape = float_dtype("generalized_normal", dtype), sizes("generalized_normal", shape)
    key = words("generalized_normal", key)
    return draw(_powers, key, p, shape=shape, dtype=kind, out_sharding=out_sharding)


def _powers(key: Any, p: Any, *, shape: Shape, dtype: DType) -> Any:
    for_size, for_sign = subkeys(key, 2)
    inverse = 1 / as_operand(p)
    size = gammas(for_size, inverse, shape=shape, dtype=dtype) ** inverse
    return signs(for_sign, shape=shape, dtype=dtype) * size


def ball(key: Any, d: int, p: float = 2, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Points in the ball of `d` dims whose coordinates' powers by `p` add up to at most 1.

    >>> jax.random.ball(jax.random.key(0), 2).round(3)
    Array([0.91700006, 0.393     ], dtype=float32)
    """
    kind, shape = float_dtype("ball", dtype), (*sizes("ball", shape), operator.index(d))
    return draw(_ball, words("ball", key), p, shape=shape, dtype=kind, out_sharding=out_sharding)


def _ball(key: Any, p: Any, *, shape: Shape, dtype: DType) -> Any:
    for_place, for_rest = subkeys(key, 2)
    p, outer = as_operand(p), shape[:-1]
    place = _powers(for_place, p, shape=shape, dtype=dtype)
    total = (Abs()(place) ** p).sum(-1) + waits(for_rest, shape=outer, dtype=dtype)
    return place / Broadcast(shape, tuple(range(len(outer))))(total ** (1 / p))

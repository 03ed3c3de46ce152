"""The normal distribution, and what is made of it."""

import math
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import DType
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.draws import subkeys
from shardwise.compiler.ops.elementwise import Compare, Div, Mul, Select, StopGradient, like
from shardwise.compiler.ops.extremum import Max, Min
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.ops.parts import Complex
from shardwise.compiler.ops.powers import Sqrt, Square
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.rounding import Nextafter
from shardwise.compiler.ops.special import Erf, ErfInv
from shardwise.compiler.ops.transcendental import Exp
from shardwise.random.draw import (
    Shape,
    converts_safely,
    draw,
    float_dtype,
    inexact_dtype,
    parameter,
    shape_with,
    sizes,
)
from shardwise.random.keys import words
from shardwise.random.uniform import between, signs

_ONE = np.float32(1)


def normal(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers with mean 0 and variance 1; complex ones have half of it in each part.

    >>> jax.random.normal(jax.random.key(0), (2,)).round(3)
    Array([1.623, 2.025], dtype=float32)
    """
    kind, shape = inexact_dtype("normal", dtype), sizes("normal", shape)
    return draw(normals, words("normal", key), shape=shape, dtype=kind, out_sharding=out_sharding)


def normals(key: Any, *, shape: Shape, dtype: DType) -> Any:
    """Normal numbers, real or complex."""
    if dtype.kind != "c":
        return draws.normal(key, shape, dtype)
    part = np.zeros((), dtype).real.dtype
    real, imaginary = (draws.normal(one, shape, part) for one in subkeys(key, 2))
    found = Complex()(real, imaginary)
    return Div()(found, like(found, math.sqrt(2)))


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Normal numbers between `lower` and `upper`.

    >>> jax.random.truncated_normal(jax.random.key(0), -1.0, 1.0, (2,)).round(3)
    Array([0.86200005, 0.94100004], dtype=float32)
    """
    kind = float_dtype("truncated_normal", dtype)
    shape = shape_with("truncated_normal", shape, lower, upper)
    key = words("truncated_normal", key)
    return draw(_truncated, key, lower, upper, shape=shape, dtype=kind, out_sharding=out_sharding)


def _truncated(key: Any, lower: Any, upper: Any, *, shape: Shape, dtype: DType) -> Any:
    lower, upper = (parameter(as_operand(end), shape, dtype) for end in (lower, upper))
    root = like(lower, math.sqrt(2))
    ends = [Erf()(Div()(end, root)) for end in (lower, upper)]
    found = Mul()(root, ErfInv()(between(key, *ends, shape=shape, dtype=dtype)))
    # Rounded, it may lie at an end or past it.
    above = Nextafter()(StopGradient()(lower), like(lower, np.inf))
    below = Nextafter()(StopGradient()(upper), like(upper, -np.inf))
    return Min()(below, Max()(above, found))


def lognormal(key: Any, sigma: Any = _ONE, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers whose logarithm is normal with mean 0 and standard deviation `sigma`.

    >>> jax.random.lognormal(jax.random.key(0), 0.5, (2,)).round(3)
    Array([2.2510002, 2.753    ], dtype=float32)
    """
    kind, shape = inexact_dtype("lognormal", dtype), shape_with("lognormal", shape, sigma)
    converts_safely("lognormal", kind, sigma)
    key = words("lognormal", key)
    return draw(_lognormal, key, sigma, shape=shape, dtype=kind, out_sharding=out_sharding)


def _lognormal(key: Any, sigma: Any, *, shape: Shape, dtype: DType) -> Any:
    return Exp()(Mul()(normals(key, shape=shape, dtype=dtype), parameter(as_operand(sigma), shape, dtype)))


def maxwell(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The length of a vector of three normal numbers.

    >>> jax.random.maxwell(jax.random.key(0), (2,)).round(3)
    Array([2.631     , 0.99100006], dtype=float32)
    """
    kind, shape = float_dtype("maxwell", dtype), sizes("maxwell", shape)
    return draw(lengths, words("maxwell", key), shape=shape, dtype=kind, out_sharding=out_sharding)


def lengths(key: Any, *, shape: Shape, dtype: DType) -> Any:
    """Lengths of vectors of three normal numbers."""
    return Sqrt()(Sum((len(shape),))(Square()(draws.normal(key, (*shape, 3), dtype))))


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Draws of `maxwell` with a random sign, times `scale`, plus `loc`. Dims of these two come after `shape`.

    >>> jax.random.double_sided_maxwell(jax.random.key(0), 0.0, 1.0, (2,)).round(3)
    Array([1.5460001, 1.5740001], dtype=float32)
    """
    kind, shape = float_dtype("double_sided_maxwell", dtype), sizes("double_sided_maxwell", shape)
    own = shape_with("double_sided_maxwell", None, loc, scale)
    key = words("double_sided_maxwell", key)
    return draw(_double_sided, key, loc, scale, shape=(shape or own) + own, dtype=kind)


def _double_sided(key: Any, loc: Any, scale: Any, *, shape: Shape, dtype: DType) -> Any:
    for_length, for_sign = subkeys(key, 2)
    length, sign = lengths(for_length, shape=shape, dtype=dtype), signs(for_sign, shape=shape, dtype=dtype)
    return Mul()(sign, length) * as_operand(scale) + as_operand(loc)


def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The time at which a random walk with drift reaches 1 more than it had, `mean` on average.

    >>> jax.random.wald(jax.random.key(0), 1.0, (2,)).round(3)
    Array([0.381, 0.416], dtype=float32)
    """
    kind, shape = float_dtype("wald", dtype), shape_with("wald", shape, mean)
    converts_safely("wald", kind, mean)
    return draw(_wald, words("wald", key), mean, shape=shape, dtype=kind, out_sharding=out_sharding)


def _wald(key: Any, mean: Any, *, shape: Shape, dtype: DType) -> Any:
    mean = parameter(as_operand(mean), shape, dtype)
    for_normal, for_uniform = subkeys(key, 2)
    y = Square()(draws.normal(for_normal, shape, dtype))
    z = draws.uniform(for_uniform, shape, dtype)
    root = Sqrt()(4 * mean * y + Square()(mean) * Square()(y))
    x = mean + Square()(mean) * y / 2 - mean / 2 * root
    return Select()(Compare("LE")(z, mean / (mean + x)), x, Square()(mean) / x)

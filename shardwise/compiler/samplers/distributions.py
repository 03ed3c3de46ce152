"""Samples of the uniform, the normal and the gamma distribution, as functions of random bits."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.control.while_loop import while_any
from shardwise.compiler.dtypes import KEY_DTYPES, DType, is_float
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert, Or, ShiftRightLogical
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.powers import Pow, sqrt
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import exp, log, log1p
from shardwise.compiler.ops.random.counter_based import WIDTHS
from shardwise.compiler.ops.random.key_data import WrapKeyData
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.samplers.prng import THREEFRY, random_bits, split_key
from shardwise.compiler.samplers.sampler import Sampler
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.special.gamma_erf import ErfInv
from shardwise.compiler.special.incomplete import RandomGammaGrad


def mantissa_bits(dtype: DType) -> int:
    """Return the number of explicit mantissa bits of a float dtype."""
    return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


def uniform_width(dtype: DType) -> int:
    """Return the number of random bits that a uniform float of this dtype consumes."""
    return 8 if mantissa_bits(dtype) < 8 else 8 * dtype.itemsize


def bits_to_uniform(bits: Operand, dtype: DType) -> Any:
    """Convert random bits to uniform floats in [0, 1).

    The highest of the `uniform_width` bits become the mantissa of a float in [1, 2), from which 1 is subtracted.
    """
    width, word = uniform_width(dtype), WIDTHS[8 * dtype.itemsize]
    bits = bits if bits.type.dtype == word else Convert(word)(bits)
    fraction = ShiftRightLogical()(bits, full_like(bits, width - mantissa_bits(dtype)))
    one_bits = int(np.asarray(1).astype(dtype).view(word))
    from_one_to_two = BitcastConvert(dtype)(Or()(fraction, full_like(bits, one_bits)))
    return (Expr(from_one_to_two) - 1).array


def uniform(key: Operand, shape: tuple[int, ...], dtype: DType) -> Any:
    """Sample uniform floats in [0, 1): an array of `shape` for each key."""
    return bits_to_uniform(random_bits(key, shape, uniform_width(dtype)), dtype)


def scale_uniform(unit: Operand, low: Operand, high: Operand) -> Any:
    """Scale uniform floats in [0, 1) to the interval [low, high)."""
    scaled = Expr(unit) * (Expr(high) - Expr(low)) + Expr(low)
    return Max()(low, scaled.array)


def normal(key: Operand, shape: tuple[int, ...], dtype: DType) -> Any:
    """Sample floats of the standard normal distribution: an array of `shape` for each key."""
    unit = uniform(key, shape, dtype)
    lowest = np.nextafter(np.asarray(-1).astype(dtype), np.asarray(0).astype(dtype))
    symmetric = scale_uniform(unit, full_like(unit, lowest), full_like(unit, 1))
    return (math.sqrt(2) * Expr(ErfInv()(symmetric))).array


def where_leading(condition: Operand, x: Operand, y: Operand) -> Any:
    """Select `x` or `y` by a condition that has only their leading dims."""
    shape = x.type.shape
    return Select()(Broadcast(shape, tuple(range(condition.type.ndim)))(condition), x, y)


@final
@record
class RandomGamma(Sampler):
    """Sample the gamma distribution: each element has its own key and its own shape parameter `a`.

    With `log`, the result is the logarithm of the sample, which stays accurate where the sample itself underflows to 0.

    The method is Marsaglia and Tsang's ("A simple method for generating gamma variables", 2000), which accepts a
    transformed normal sample with a probability above 95 %. For a shape parameter below 1, the sample for `a + 1` is
    multiplied by a uniform sample to the power of `1 / a`.
    """

    name = "random_gamma"
    log: bool
    impl: str = field(default=THREEFRY, repr=False)  # the implementation of the keys, whose words are the operand

    def out_type(self, key: ArrayType, a: ArrayType) -> ArrayType:
        if key != ArrayType(a.shape, KEY_DTYPES[self.impl]).physical:
            raise TypeError(f"random_gamma: needs a key for each element of {a}, not {key}")
        if not is_float(a.dtype):
            raise TypeError(f"random_gamma: needs a float parameter, not {a}")
        return a.strong()

    def factors(self, key: ArrayType, a: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(a.ndim))
        return FactorRule(((*dims, (a.ndim,)), dims), (dims,), key.shape, need_replication=frozenset({a.ndim}))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*(batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True))), 0

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Differentiate implicitly: the tangent keeps the cumulative distribution function of the sample constant.

        The derivative of the rejection loop itself would be wrong, because it ignores jumps between proposals.
        """
        (_, a), (_, da) = primals, tangents
        result = self(*primals)
        if not self.log:
            return result, Mul()(da, RandomGammaGrad()(a, result))
        sample = exp(Expr(result))
        tiny = float(ml_dtypes.finfo(sample.dtype).tiny)  # type: ignore[no-untyped-call]
        sample = where(sample == 0, tiny, sample)
        return result, (Expr(da) * (apply(RandomGammaGrad(), Expr(a), sample) / sample)).array

    def sample(self, key: Operand, a: Operand) -> list[Any]:
        key = WrapKeyData(self.impl)(key)
        # d, c, x, v and u are the paper's names; a proposal is d * v with v = (1 + c * x)**3.
        dtype = a.type.dtype
        alpha = Expr(a)
        zero, one = alpha.full_like(0), alpha.full_like(1)
        is_large = alpha >= one
        d = where(is_large, alpha, alpha + one) - 1 / 3
        c = 1 / 3 / sqrt(d)

        def is_rejected(key: Operand, *operands: Operand) -> Any:
            x_squared, v, u, d, _ = map(Expr, operands)
            squeeze = 1 - 0.0331 * (x_squared * x_squared)
            bound = x_squared * 0.5 + d * (1 - v + log(v))
            return ((u >= squeeze) & (log(u) >= bound)).array

        def propose(key: Operand, x_squared: Operand, v: Operand, u: Operand, d: Operand, c: Operand) -> list[Any]:
            next_key, normal_key, uniform_key = split_key(key, 3)

            def is_negative(key: Operand, x: Operand, root: Operand, c: Operand) -> Any:
                return Compare("LE")(root, full_like(root, 0))

            def sample_normal(key: Operand, x: Operand, root: Operand, c: Operand) -> list[Any]:
                next_key, normal_key = split_key(key, 2)
                new_x = normal(normal_key, (), dtype)
                new = [next_key, new_x, (1 + Expr(new_x) * Expr(c)).array]
                old = (key, x, root)
                is_active = is_negative(*old, c)
                return [*(where_leading(is_active, y, before) for y, before in zip(new, old, strict=True)), c]

            start = [normal_key, full_like(c, 0), full_like(c, -1), c]
            _, x, root, _ = while_any("positive", start, is_negative, sample_normal)
            new = [next_key, x * x, root * root * root, uniform(uniform_key, (), dtype)]
            old = (key, x_squared, v, u)
            is_active = is_rejected(*old, d, c)
            return [*(where_leading(is_active, y, before) for y, before in zip(new, old, strict=True)), d, c]

        loop_key, boost_key = split_key(key, 2)
        start = [loop_key, *(x.array for x in (zero, one, alpha.full_like(2), d, c))]
        v = Expr(while_any("accepted", start, is_rejected, propose)[2])
        unit = Expr(uniform(boost_key, (), dtype))
        if self.log:
            log_uniform = log1p(-unit)
            log_boost = where(is_large | (log_uniform == zero), zero, log_uniform * (one / alpha))
            return [(log(d) + log(v) + log_boost).array]
        boost = where(is_large, one, apply(Pow(), one - unit, one / alpha))
        return [(d * v * boost).array]

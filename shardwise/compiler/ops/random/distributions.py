"""Draws from distributions, made of random bits: uniform and normal numbers as compositions, and samplers, ops in which
each device draws for its own elements alone.

A sampler's meaning is a program of other ops. Where that loops until all of its elements are accepted, it loops over
one device's piece, and no turn waits for another device.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.caches import registered_cache
from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.while_loop import while_any
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, BitcastConvert, Or, ShiftRightLogical
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.powers import Pow, Sqrt
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log, Log1p
from shardwise.compiler.ops.random.threefry import WIDTHS, WORD, random_bits, random_keys
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.ops.special.gamma_erf import ErfInv
from shardwise.compiler.ops.special.incomplete import RandomGammaGrad
from shardwise.compiler.shardings.factors import FactorRule


def mantissa_bits(dtype: DType) -> int:
    """How many bits of a float stand after the point."""
    return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


def uniform_width(dtype: DType) -> int:
    """How many random bits a uniform float of this dtype takes."""
    return 8 if mantissa_bits(dtype) < 8 else 8 * dtype.itemsize


def bits_to_uniform(bits: Any, dtype: DType) -> Any:
    """Floats from 0 to below 1: the highest of `uniform_width` bits as what stands after the point of 1.…, less 1."""
    width, word = uniform_width(dtype), WIDTHS[8 * dtype.itemsize]
    bits = bits if bits.type.dtype == word else Convert(word)(bits)
    fraction = ShiftRightLogical()(bits, full_like(bits, width - mantissa_bits(dtype)))
    one = int(np.asarray(1).astype(dtype).view(word))
    return Sub()(found := BitcastConvert(dtype)(Or()(fraction, full_like(bits, one))), full_like(found, 1))


def uniform(key: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Floats from 0 to below 1, of `shape` for each key."""
    return bits_to_uniform(random_bits(key, shape, uniform_width(dtype)), dtype)


def scale_uniform(unit: Any, low: Any, high: Any) -> Any:
    """Uniform floats from 0 to 1, stretched to lie between two others."""
    return Max()(low, Add()(Mul()(unit, Sub()(high, low)), low))


def normal(key: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Floats with mean 0 and variance 1, of `shape` for each key."""
    unit = uniform(key, shape, dtype)
    lowest = np.nextafter(np.asarray(-1).astype(dtype), np.asarray(0).astype(dtype))
    between = scale_uniform(unit, full_like(unit, lowest), full_like(unit, 1))
    return Mul()(full_like(unit, math.sqrt(2)), ErfInv()(between))


class Sampler(Op):
    """Draws by a program of other ops over one device's pieces."""

    def sample(self, *operands: Any) -> list[Any]:
        """The results, by applying ops."""
        raise self.missing_rule("sample")

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        found = hlo.program(_drawing(self, tuple(x.type.strong() for x in operands)), operands)
        return found[0] if self.single else found

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        found = evaluate(_drawing(self, tuple(ArrayType(x.shape, x.dtype) for x in operands)), operands)
        return found[0] if self.single else found


@registered_cache(maxsize=4096)
def _drawing(op: Sampler, types: tuple[ArrayType, ...]) -> Program:
    return installed.transforms.rewrite(op.name, types, op.sample)


def where_leading(which: Any, new: Any, old: Any) -> Any:
    """`new` or `old`, of which `which` has the first dims."""
    shape = new.type.shape
    return Select()(Broadcast(shape, tuple(range(which.type.ndim)))(which), new, old)


def split_key(key: Any, count: int) -> list[Any]:
    """So many new keys of each key."""
    new = random_keys(key, (count,))
    dim = new.type.ndim - 2
    return [Reshape(key.type.shape)(slice_along(new, dim, number, number + 1)) for number in range(count)]


@final
@record
class RandomGamma(Sampler):
    """A draw from the gamma distribution for each element, which has a key and a shape parameter of its own; its
    logarithm where `log`, which is exact where the draw itself would vanish.

    Marsaglia and Tsang's method: a squeezed normal number is accepted with a chance of more than 95 %. A parameter
    below 1 is raised by 1, and the draw of that is multiplied by a power of a uniform number.
    """

    name = "random_gamma"
    log: bool

    def out_type(self, key: ArrayType, a: ArrayType) -> ArrayType:
        if key != ArrayType((*a.shape, 2), WORD):
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
        """By how much the draw that has the same rank among all moves with the parameter: not the slope of the method,
        which jumps from one proposal to the next."""
        (_, a), (_, moved) = primals, tangents
        found = self(*primals)
        if not self.log:
            return found, Mul()(moved, RandomGammaGrad()(a, found))
        draw = Exp()(found)
        tiny = full_like(draw, float(ml_dtypes.finfo(draw.type.dtype).tiny))  # type: ignore[no-untyped-call]
        draw = Select()(Compare("EQ")(draw, full_like(draw, 0)), tiny, draw)
        return found, Mul()(moved, Div()(RandomGammaGrad()(a, draw), draw))

    def sample(self, key: Any, a: Any) -> list[Any]:
        dtype = a.type.dtype
        zero, one = full_like(a, 0), full_like(a, 1)
        is_large = Compare("GE")(a, one)
        depth = Sub()(Select()(is_large, a, Add()(a, one)), full_like(a, 1 / 3))
        width = Div()(full_like(a, 1 / 3), Sqrt()(depth))

        def is_rejected(key: Any, square: Any, cube: Any, chance: Any, depth: Any, width: Any) -> Any:
            squeezed = Sub()(full_like(chance, 1), Mul()(full_like(chance, 0.0331), Mul()(square, square)))
            bound = Add()(
                Mul()(square, full_like(square, 0.5)),
                Mul()(depth, Add()(Sub()(full_like(cube, 1), cube), Log()(cube))),
            )
            return And()(Compare("GE")(chance, squeezed), Compare("GE")(Log()(chance), bound))

        def turn(key: Any, square: Any, cube: Any, chance: Any, depth: Any, width: Any) -> list[Any]:
            onward, for_normal, for_chance = split_key(key, 3)
            none, start = full_like(width, 0), full_like(width, -1)

            def is_negative(key: Any, x: Any, v: Any, width: Any) -> Any:
                return Compare("LE")(v, full_like(v, 0))

            def again(key: Any, x: Any, v: Any, width: Any) -> list[Any]:
                onward, here = split_key(key, 2)
                drawn = normal(here, (), dtype)
                new = [onward, drawn, Add()(full_like(drawn, 1), Mul()(drawn, width))]
                open_ = is_negative(key, x, v, width)
                return [*(where_leading(open_, y, before) for y, before in zip(new, (key, x, v), strict=True)), width]

            _, x, v, _ = while_any("positive", [for_normal, none, start, width], is_negative, again)
            new = [onward, Mul()(x, x), Mul()(Mul()(v, v), v), uniform(for_chance, (), dtype)]
            old = (key, square, cube, chance)
            open_ = is_rejected(*old, depth, width)
            return [*(where_leading(open_, y, before) for y, before in zip(new, old, strict=True)), depth, width]

        onward, last = split_key(key, 2)
        start = [onward, zero, one, full_like(a, 2), depth, width]
        _, _, cube, _, _, _ = while_any("accepted", start, is_rejected, turn)
        if self.log:
            log_chance = Log1p()(Neg()(uniform(last, (), dtype)))
            nothing = Or()(is_large, Compare("EQ")(log_chance, zero))
            lowered = Select()(nothing, zero, Mul()(log_chance, Div()(one, a)))
            return [Add()(Add()(Log()(depth), Log()(cube)), lowered)]
        chance = Sub()(one, uniform(last, (), dtype))
        factor = Select()(is_large, one, Pow()(chance, Div()(one, a)))
        return [Mul()(Mul()(depth, cube), factor)]

"""Products whose operands are rounded first: to narrow floats in blocks, each block with a scale of its own.

Two ways: "mxfp8" rounds blocks of 32 to 8 bits, with powers of two as scales; "nvfp4" rounds blocks of 16 to 4 bits,
with scales of 8 bits and one more scale for all. Where hardware has no such products they are made in f32, of the same
numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise.api.custom import custom_vjp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.operands import as_operand, composed, dims_of, type_of
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.lax.choice import optimization_barrier
from shardwise.lax.product import DotDimensionNumbers, dot_general
from shardwise.nn.scaled import scaled_matmul

_F32 = np.dtype(np.float32)
_RESULTS = (_F32, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_LARGEST_8, _LARGEST_4 = 448.0, 6.0  # of float8_e4m3fn and of float4_e2m1fn
_LEAST, _MOST = -126, 127  # exponents of scales that are powers of two
_FLAT = (((2,), (1,)), ((0,), (0,)))  # of [B,M,K] and [B,K,N]


@final
@dataclass
class BlockScaleConfig:
    """How an operand is rounded: see `get_scaled_dot_general_config`."""

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any
    infer_only: bool


def get_scaled_dot_general_config(mode: Literal["nvfp4", "mxfp8"], global_scale: Any | None = None) -> BlockScaleConfig:
    """How `scaled_dot_general` rounds one of its operands: its mode is "mxfp8" or "nvfp4".

    `global_scale`: of "nvfp4", by what all elements are divided first; 1 by default.

    >>> config = jax.nn.get_scaled_dot_general_config("mxfp8")
    >>> config.block_size, config.data_type.__name__, config.scale_type.__name__
    (32, 'float8_e4m3fn', 'float8_e8m0fnu')
    """
    if mode == "mxfp8":
        return BlockScaleConfig(mode, 32, jnp.float8_e4m3fn, jnp.float8_e8m0fnu, None, False)
    if mode != "nvfp4":
        raise ValueError(f"get_scaled_dot_general_config: mode must be 'nvfp4' or 'mxfp8', not {mode!r}")
    scale = jnp.ones((1,), np.float32) if global_scale is None else global_scale
    return BlockScaleConfig(mode, 16, jnp.float4_e2m1fn, jnp.float8_e4m3fn, scale, False)


def scaled_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: Any = np.float32,
    configs: list[BlockScaleConfig] | None = None,
    implementation: Literal["cudnn"] | None = None,
) -> Any:
    """`lax.dot_general` of operands that are rounded first, in blocks along what is contracted.

    `configs`: how `lhs`, `rhs` and, for derivatives, what flows back are rounded; without them nothing is. The elements
    that are contracted, taken as one row, must fall into whole blocks. Of "mxfp8" the derivatives are such products,
    too, so that blocks must fit the other dims as well; of "nvfp4" they are those of a product that does not round, but
    for elements that were too large to be rounded, where they are 0. `implementation` changes nothing.

    >>> x = jnp.full((2, 32), 1.08)
    >>> configs = [jax.nn.get_scaled_dot_general_config("mxfp8")] * 3
    >>> jax.nn.scaled_dot_general(x, x, (((1,), (1,)), ((), ())), configs=configs)
    Array([[40.5, 40.5],
           [40.5, 40.5]], dtype=float32)
    """
    dtype = canonical_dtype(preferred_element_type)
    if dtype not in _RESULTS:
        raise TypeError(f"scaled_dot_general: preferred_element_type must be f32, bf16 or f16, not {dtype}")
    if configs is None:
        return dot_general(lhs, rhs, dimension_numbers, preferred_element_type=dtype)
    rounding = _Rounding.of(configs, dtype)
    types = type_of(lhs, "scaled_dot_general"), type_of(rhs, "scaled_dot_general")
    (left, right), (of_left, of_right) = dimension_numbers
    sides = [
        _Side.of(x, batch, contracting)
        for x, batch, contracting in ((types[0], of_left, left), (types[1], of_right, right))
    ]
    if sides[0].sizes(sides[0].batch) != sides[1].sizes(sides[1].batch) or sides[0].sizes(sides[0].contracted) != sides[
        1
    ].sizes(sides[1].contracted):
        raise TypeError(
            f"scaled_dot_general: {types[0]} and {types[1]} must agree in the dims of {dimension_numbers} that are "
            "contracted, and in those of the batch"
        )
    flat = [side.flat(jnp.asarray(x)) for side, x in zip(sides, (lhs, rhs), strict=True)]
    found = _product(
        rounding, *flat, [as_operand(config.global_scale) for config in configs[:2] if config.mode == "nvfp4"]
    )
    return found.reshape(
        *sides[0].sizes(sides[0].batch), *sides[0].sizes(sides[0].free), *sides[1].sizes(sides[1].free)
    )


@final
@dataclass(frozen=True)
class _Side:
    """An operand and its dims: those of the batch, those that are contracted, and the others."""

    type: ArrayType
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    @classmethod
    def of(cls, type: ArrayType, batch: Sequence[int], contracted: Sequence[int]) -> "_Side":
        return cls(type, dims_of("scaled_dot_general", batch, type), dims_of("scaled_dot_general", contracted, type))

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(dim for dim in range(self.type.ndim) if dim not in (*self.batch, *self.contracted))

    def sizes(self, dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.type.shape[dim] for dim in dims)

    def flat(self, x: Any) -> Any:
        """[B,M,K]: of the batch, of what is free, of what is contracted."""
        groups = (self.batch, self.free, self.contracted)
        ordered = x.transpose([dim for group in groups for dim in group])
        return ordered.reshape([math.prod(self.sizes(group)) for group in groups])


@final
@dataclass(frozen=True)
class _Rounding:
    """What both operands have in common, and the blocks of what flows back (0 where nobody has said)."""

    mode: str
    block: int
    block_back: int
    dtype: Any

    @classmethod
    def of(cls, configs: Sequence[BlockScaleConfig], dtype: Any) -> "_Rounding":
        if len(configs) not in (2, 3) or len({(config.mode, config.block_size) for config in configs}) != 1:
            raise ValueError(
                "scaled_dot_general: configs must be two or three of one mode, for lhs, rhs and what flows back, not "
                f"{[config.mode for config in configs]}"
            )
        return cls(configs[0].mode, configs[0].block_size, configs[2].block_size if len(configs) == 3 else 0, dtype)


@partial(custom_vjp, nondiff_argnums=(0,))
def _product(rounding: _Rounding, lhs: Any, rhs: Any, scales: list[Any]) -> Any:
    """Of [B,M,K] and [B,N,K]."""
    if rounding.mode == "mxfp8":
        return _in_eight_bits(lhs, rhs, block=rounding.block, dtype=rounding.dtype)
    return _in_four_bits(lhs, rhs, *scales, block=rounding.block, dtype=rounding.dtype)


def _forward(rounding: _Rounding, lhs: Any, rhs: Any, scales: list[Any]) -> Any:
    return _product(rounding, lhs, rhs, scales), (lhs, rhs, scales)


def _backward(rounding: _Rounding, residuals: Any, cotangent: Any) -> Any:
    lhs, rhs, scales = residuals
    turned = cotangent.transpose(0, 2, 1)
    if rounding.mode == "mxfp8":
        if not rounding.block_back:
            raise ValueError("scaled_dot_general: a derivative needs a third config, for what flows back")
        for_lhs, for_rhs = (
            _in_eight_bits(ahead, other.transpose(0, 2, 1), block=rounding.block_back, dtype=x.dtype)
            for ahead, other, x in ((cotangent, rhs, lhs), (turned, lhs, rhs))
        )
    else:
        for_lhs, for_rhs = (
            jnp.where(
                jnp.abs(x) <= _LARGEST_4 * _LARGEST_8 * scale,
                dot_general(ahead.astype(other.dtype), other, _FLAT, preferred_element_type=np.float32),
                0,
            ).astype(x.dtype)
            for ahead, other, x, scale in ((cotangent, rhs, lhs, scales[0]), (turned, lhs, rhs, scales[1]))
        )
    return for_lhs, for_rhs, [jnp.zeros_like(scale) for scale in scales]


_product.defvjp(_forward, _backward)


@composed
def _in_eight_bits(lhs: Any, rhs: Any, *, block: int, dtype: Any) -> Any:
    (a, of_a), (b, of_b) = (_with_powers(x, block) for x in (lhs, rhs))
    return scaled_matmul(a, b, of_a, of_b, dtype)


@composed
def _in_four_bits(lhs: Any, rhs: Any, first: Any, second: Any, *, block: int, dtype: Any) -> Any:
    (a, of_a), (b, of_b) = (_with_scales(x, scale, block) for x, scale in ((lhs, first), (rhs, second)))
    return (scaled_matmul(a, b, of_a, of_b) * (first * second)).astype(dtype)


def _blocks(x: Any, block: int) -> Any:
    *lead, size = x.shape
    if size % block:
        raise ValueError(
            f"scaled_dot_general: {size} elements that are contracted do not fall into blocks of {block}: pad them"
        )
    return x.astype(np.float32).reshape(*lead, size // block, block)


def _with_powers(x: Any, block: int) -> tuple[Any, Any]:
    """Elements, and the scale of each block: the least power of two by which its largest element does not overflow."""
    blocks = _blocks(x, block)
    share = jnp.abs(blocks).max(-1) / _LARGEST_8
    mantissa, exponent = jnp.frexp(share)
    power = jnp.clip(jnp.where(mantissa == 0.5, exponent - 1, exponent), _LEAST, _MOST)
    scale = jnp.ldexp(jnp.ones_like(share), power)
    rounded = jnp.clip(blocks / scale[..., None], -_LARGEST_8, _LARGEST_8).astype(jnp.float8_e4m3fn)
    scale = jnp.where(jnp.isfinite(share), scale, np.float32(np.nan))
    return optimization_barrier(rounded.reshape(x.shape)), scale


def _with_scales(x: Any, global_scale: Any, block: int) -> tuple[Any, Any]:
    """Elements, and the scale of each block, rounded to 8 bits; both without the scale of all."""
    blocks = _blocks(x, block) / global_scale.astype(np.float32)
    scale = jnp.clip(jnp.abs(blocks).max(-1) / _LARGEST_4, 0, _LARGEST_8).astype(jnp.float8_e4m3fn)
    scale = optimization_barrier(scale)
    divisor = scale.astype(np.float32)[..., None]
    shares = jnp.where(divisor == 0, 0, blocks / jnp.where(divisor == 0, 1, divisor))
    rounded = jnp.clip(shares, -_LARGEST_4, _LARGEST_4).astype(jnp.float4_e2m1fn)
    return optimization_barrier(rounded.reshape(x.shape)), scale

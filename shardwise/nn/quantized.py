"""Matrix products whose operands are quantized to narrow floats in blocks, each block with its own scale.

There are two formats. "mxfp8" quantizes blocks of 32 elements to 8-bit floats with power-of-two scales. "nvfp4"
quantizes blocks of 16 elements to 4-bit floats with 8-bit scales and one global scale. Hardware without such products
computes them in f32 from the same quantized numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, canonical_axes, compiled_function, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.types import ArrayType
from shardwise.lax.barriers import optimization_barrier
from shardwise.lax.dot_products import DotDimensionNumbers, dot_general
from shardwise.nn.block_scaled import scaled_matmul
from shardwise.typing import ArrayLike, DTypeLike

_F32 = np.dtype(np.float32)
_RESULT_DTYPES = (_F32, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_E4M3_MAX, _E2M1_MAX = 448.0, 6.0  # the largest numbers of float8_e4m3fn and float4_e2m1fn
_MIN_EXPONENT, _MAX_EXPONENT = -126, 127  # of power-of-two scales
_MATMUL_DIMS = (((2,), (1,)), ((0,), (0,)))  # of [B, M, K] and [B, K, N]


@final
@dataclass
class BlockScaleConfig:
    """The quantization of one operand of `scaled_dot_general`, as `get_scaled_dot_general_config` returns it."""

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any
    infer_only: bool


def get_scaled_dot_general_config(mode: Literal["nvfp4", "mxfp8"], global_scale: Any | None = None) -> BlockScaleConfig:
    """Return the quantization config of one operand of `scaled_dot_general`.

    Args:
        mode: the format, "mxfp8" or "nvfp4".
        global_scale: the number by which "nvfp4" divides all elements before quantization, an array of shape (1,); by
            default 1. "mxfp8" ignores it.

    Returns:
        The config: block size, data dtype, scale dtype and global scale.

    Raises:
        ValueError: if `mode` is neither "mxfp8" nor "nvfp4".

    Example:
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
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: DTypeLike = np.float32,
    configs: list[BlockScaleConfig] | None = None,
    implementation: Literal["cudnn"] | None = None,
) -> Array:
    """Compute `lax.dot_general` of operands that are quantized in blocks along the contracting dims.

    The number of elements along the contracting dims must be a multiple of the block size. With "mxfp8" the derivatives
    are quantized products too, so the other dims must be multiples of the block size as well. With "nvfp4" the
    derivatives are those of the product without quantization (straight-through), and 0 for elements outside the range
    of the format.

    Args:
        lhs: the left operand.
        rhs: the right operand.
        dimension_numbers: the contracting and batch dims, as `lax.dot_general` expects them.
        preferred_element_type: the dtype of the result: f32, bf16 or f16.
        configs: the quantization of `lhs`, of `rhs` and, for derivatives, of the cotangent. Without it, nothing is
            quantized.
        implementation: ignored.

    Returns:
        An array with the shape that `lax.dot_general` returns.

    Raises:
        TypeError: if an operand is not an array, if `preferred_element_type` is not f32, bf16 or f16, or if the
            contracting or batch dims of the operands have different sizes.
        ValueError: if `configs` are not two or three of one mode, if a dim does not exist, if the number of contracted
            elements is not a multiple of the block size, or if "mxfp8" is differentiated without a third config.

    Example:
        >>> x = jnp.full((2, 32), 1.08)
        >>> configs = [jax.nn.get_scaled_dot_general_config("mxfp8")] * 3
        >>> jax.nn.scaled_dot_general(x, x, (((1,), (1,)), ((), ())), configs=configs)
        Array([[40.5, 40.5],
               [40.5, 40.5]], dtype=float32)
    """
    dtype = requested_dtype("scaled_dot_general", preferred_element_type)
    if dtype not in _RESULT_DTYPES:
        raise TypeError(f"scaled_dot_general: preferred_element_type must be f32, bf16 or f16, not {dtype}")
    if configs is None:
        return dot_general(lhs, rhs, dimension_numbers, preferred_element_type=dtype)
    quantization = _Quantization.from_configs(configs, dtype)
    types = type_of(lhs, "scaled_dot_general"), type_of(rhs, "scaled_dot_general")
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    left = _OperandDims.from_type(types[0], lhs_batch, lhs_contracting)
    right = _OperandDims.from_type(types[1], rhs_batch, rhs_contracting)
    if left.sizes(left.batch) != right.sizes(right.batch) or left.sizes(left.contracting) != right.sizes(
        right.contracting
    ):
        raise TypeError(
            f"scaled_dot_general: {types[0]} and {types[1]} must have equal sizes along the contracting dims and along "
            f"the batch dims of {dimension_numbers}"
        )
    matrices = [dims.to_matrices(jnp.asarray(x)) for dims, x in ((left, lhs), (right, rhs))]
    global_scales = [as_operand(config.global_scale) for config in configs[:2] if config.mode == "nvfp4"]
    out = _quantized_product(quantization, matrices[0], matrices[1], global_scales)
    return out.reshape(*left.sizes(left.batch), *left.sizes(left.free), *right.sizes(right.free))


@final
@dataclass(frozen=True)
class _OperandDims:
    """The type of an operand, and its batch, contracting and free dims."""

    type: ArrayType
    batch: tuple[int, ...]
    contracting: tuple[int, ...]

    @classmethod
    def from_type(cls, type: ArrayType, batch: Sequence[int], contracting: Sequence[int]) -> "_OperandDims":
        return cls(
            type,
            canonical_axes("scaled_dot_general", batch, type),
            canonical_axes("scaled_dot_general", contracting, type),
        )

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(dim for dim in range(self.type.ndim) if dim not in (*self.batch, *self.contracting))

    def sizes(self, dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.type.shape[dim] for dim in dims)

    def to_matrices(self, x: Array) -> Any:
        """Transpose and reshape the operand to [batch, free, contracting]."""
        groups = (self.batch, self.free, self.contracting)
        ordered = x.transpose([dim for group in groups for dim in group])
        return ordered.reshape([math.prod(self.sizes(group)) for group in groups])


@final
@dataclass(frozen=True)
class _Quantization:
    """The mode, the block size of the operands and of the cotangent (0 without a third config), the result's dtype."""

    mode: str
    block_size: int
    cotangent_block_size: int
    dtype: Any

    @classmethod
    def from_configs(cls, configs: Sequence[BlockScaleConfig], dtype: DTypeLike) -> "_Quantization":
        if len(configs) not in (2, 3) or len({(config.mode, config.block_size) for config in configs}) != 1:
            raise ValueError(
                "scaled_dot_general: configs must be two or three configs of one mode, for lhs, rhs and the cotangent, "
                f"not {[config.mode for config in configs]}"
            )
        return cls(configs[0].mode, configs[0].block_size, configs[2].block_size if len(configs) == 3 else 0, dtype)


@partial(custom_vjp, nondiff_argnums=(0,))
def _quantized_product(quantization: _Quantization, lhs: Array, rhs: Array, global_scales: list[Any]) -> Any:
    """Multiply [B, M, K] and [B, N, K], contracting K, after quantization."""
    if quantization.mode == "mxfp8":
        return _mxfp8_product(lhs, rhs, block_size=quantization.block_size, dtype=quantization.dtype)
    return _nvfp4_product(lhs, rhs, *global_scales, block_size=quantization.block_size, dtype=quantization.dtype)


def _forward(quantization: _Quantization, lhs: Array, rhs: Array, global_scales: list[Any]) -> Any:
    return _quantized_product(quantization, lhs, rhs, global_scales), (lhs, rhs, global_scales)


def _backward(quantization: _Quantization, residuals: Any, cotangent: Array) -> Any:
    lhs, rhs, global_scales = residuals
    transposed = cotangent.transpose(0, 2, 1)
    if quantization.mode == "mxfp8":
        if not quantization.cotangent_block_size:
            raise ValueError("scaled_dot_general: differentiation needs a third config, for the cotangent")
        ct_lhs, ct_rhs = (
            _mxfp8_product(ct, other.transpose(0, 2, 1), block_size=quantization.cotangent_block_size, dtype=x.dtype)
            for ct, other, x in ((cotangent, rhs, lhs), (transposed, lhs, rhs))
        )
    else:
        ct_lhs, ct_rhs = (
            jnp.where(
                jnp.abs(x) <= _E2M1_MAX * _E4M3_MAX * scale,
                dot_general(ct.astype(other.dtype), other, _MATMUL_DIMS, preferred_element_type=np.float32),
                0,
            ).astype(x.dtype)
            for ct, other, x, scale in (
                (cotangent, rhs, lhs, global_scales[0]),
                (transposed, lhs, rhs, global_scales[1]),
            )
        )
    return ct_lhs, ct_rhs, [jnp.zeros_like(scale) for scale in global_scales]


_quantized_product.defvjp(_forward, _backward)


@compiled_function
def _mxfp8_product(lhs: Array, rhs: Array, *, block_size: int, dtype: DType) -> Any:
    (a, a_scales), (b, b_scales) = (_quantize_mxfp8(x, block_size) for x in (lhs, rhs))
    return scaled_matmul(a, b, a_scales, b_scales, dtype)


@compiled_function
def _nvfp4_product(lhs: Array, rhs: Array, lhs_scale: Array, rhs_scale: Array, *, block_size: int, dtype: DType) -> Any:
    (a, a_scales), (b, b_scales) = (
        _quantize_nvfp4(x, scale, block_size) for x, scale in ((lhs, lhs_scale), (rhs, rhs_scale))
    )
    return (scaled_matmul(a, b, a_scales, b_scales) * (lhs_scale * rhs_scale)).astype(dtype)


def _blocks(x: Array, block_size: int) -> Any:
    """Reshape the last dim to [number of blocks, block size], in f32."""
    *lead, size = x.shape
    if size % block_size:
        raise ValueError(
            f"scaled_dot_general: the number of contracted elements, {size}, is not a multiple of the block size "
            f"{block_size}: pad the contracting dims"
        )
    return x.astype(np.float32).reshape(*lead, size // block_size, block_size)


def _quantize_mxfp8(x: Array, block_size: int) -> tuple[Any, Any]:
    """Return the quantized elements and the scale of each block.

    A scale is the smallest power of two for which the largest element of the block does not overflow.
    """
    blocks = _blocks(x, block_size)
    ratio = jnp.abs(blocks).max(-1) / _E4M3_MAX
    mantissa, exponent = jnp.frexp(ratio)
    power = jnp.clip(jnp.where(mantissa == 0.5, exponent - 1, exponent), _MIN_EXPONENT, _MAX_EXPONENT)
    scale = jnp.ldexp(jnp.ones_like(ratio), power)
    quantized = jnp.clip(blocks / scale[..., None], -_E4M3_MAX, _E4M3_MAX).astype(jnp.float8_e4m3fn)
    scale = jnp.where(jnp.isfinite(ratio), scale, np.float32(np.nan))
    return optimization_barrier(quantized.reshape(x.shape)), scale


def _quantize_nvfp4(x: Array, global_scale: Array, block_size: int) -> tuple[Any, Any]:
    """Return the quantized elements and the 8-bit scale of each block, both relative to the global scale."""
    blocks = _blocks(x, block_size) / global_scale.astype(np.float32)
    scale = jnp.clip(jnp.abs(blocks).max(-1) / _E2M1_MAX, 0, _E4M3_MAX).astype(jnp.float8_e4m3fn)
    scale = optimization_barrier(scale)
    divisor = scale.astype(np.float32)[..., None]
    scaled = jnp.where(divisor == 0, 0, blocks / jnp.where(divisor == 0, 1, divisor))
    quantized = jnp.clip(scaled, -_E2M1_MAX, _E2M1_MAX).astype(jnp.float4_e2m1fn)
    return optimization_barrier(quantized.reshape(x.shape)), scale

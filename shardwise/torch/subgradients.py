"""Functions whose gradients at kinks are PyTorch's, such as 0 for the norm of a zero row, and 1 at the bounds of clamp.

torchax 0.0.13 computes them with JAX's functions, whose gradients there are others, or NaN. The results are the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.nn import log_sigmoid
from shardwise.torch._torchax import environment
from shardwise.typing import ArrayLike

Dims = int | Sequence[int] | None

_TORCHAX_ABS = environment()._ops[torch.ops.aten.abs].func
_TORCHAX_CLAMP = environment()._ops[torch.ops.aten.clamp.default].func
_TORCHAX_NORM = environment()._ops[torch.ops.aten.linalg_vector_norm].func


def _abs(x: Array) -> Array:
    return x * jnp.sign(x) if jnp.issubdtype(x.dtype, jnp.floating) else _TORCHAX_ABS(x)


def _clamp(x: Array, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """Bound a tensor. At a bound, the gradient is that of the tensor."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _TORCHAX_CLAMP(x, min, max)
    bounded = x if min is None else jnp.where(x < min, min, x)
    return bounded if max is None else jnp.where(bounded > max, max, bounded)


def _clamp_max(x: Array, max: ArrayLike) -> Array:
    return _clamp(x, None, max)


def _hardtanh(x: Array, min_val: float = -1, max_val: float = 1, inplace: bool = False) -> Array:
    """Bound a tensor. At a bound, the gradient is 0."""
    return jnp.where(x <= min_val, min_val, jnp.where(x >= max_val, max_val, x)).astype(x.dtype)


def _hardsigmoid(x: Array) -> Array:
    return _hardtanh(x + 3, 0, 6) / 6


def _hardswish(x: Array) -> Array:
    return jnp.where(x <= -3, 0, jnp.where(x >= 3, x, x * (x + 3) / 6)).astype(x.dtype)


def _leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, x * negative_slope)


def _sinc(x: Array) -> Array:
    is_zero = x == 0
    return jnp.where(is_zero, 1, jnp.sinc(jnp.where(is_zero, 1, x))).astype(x.dtype)


def _vector_norm(x: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Return the norm along dims. The gradient of a norm of 0 is 0."""
    axis = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
    if ord <= 0 or x.ndim == 0 or 0 in x.shape:
        return _TORCHAX_NORM(x, ord, dim, keepdim, dtype)
    if ord == 1 and dtype is None:
        return _abs(x).sum(axis, keepdims=keepdim)
    is_zero = (x == 0).all(axis, keepdims=True)
    norm = _TORCHAX_NORM(jnp.where(is_zero, 1, x), ord, dim, keepdim, dtype)
    return jnp.where(is_zero.reshape(norm.shape), 0, norm)


def _std(x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """Return the standard deviation. The gradient of equal elements is 0."""
    axis = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
    variance = jnp.var(x, axis, ddof=1 if correction is None else correction, keepdims=keepdim)
    is_zero = variance == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, variance)))


# By the names of ops of ATen, all overloads of which are computed by the function.
SUBGRADIENTS: dict[str, Callable[..., Array]] = {
    "abs": _abs,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "leaky_relu": _leaky_relu,
    "log_sigmoid": log_sigmoid,
    "sinc": _sinc,
    "linalg_vector_norm": _vector_norm,
    "std.correction": _std,
}

"""Elementwise activation functions, `glu` and `one_hot`.

Derivatives at points where a function is not differentiable are the same as in JAX.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.api.transformations.custom import custom_jvp
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.arithmetic import promote_numeric
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    as_strong,
    compiled_function,
    promote_and_broadcast,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.dtypes import DType, is_inexact, is_integer
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Clamp, Relu
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.elementwise.transcendental import Logistic
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.typing import ArrayLike, DTypeLike, NestedArrays, OutSharding

_ACTIVATION = Family(
    {
        "x": "the input, an array or a number.",
        "alpha": "the magnitude of the limit for very negative `x`.",
    },
    returns="An array with the shape of `x`.",
    raises=["TypeError: if `x` is not an array or a number."],
)


@compiled_function
@documented(_ACTIVATION, returns="`x` as an array.")
def identity(x: ArrayLike) -> Array:
    """Return `x` unchanged, as an array.

    Example:
        >>> jax.nn.identity(jnp.array([1.0, -2.0]))
        Array([ 1., -2.], dtype=float32)
    """
    return as_operand(x, "identity")


@compiled_function
@documented(_ACTIVATION)
def relu(x: ArrayLike) -> Array:
    """Compute the rectified linear unit: `max(x, 0)`.

    The derivative at 0 is 0.

    Returns:
        An array with the shape and dtype of `x`; booleans become integers.

    Raises:
        TypeError: if `x` is not an array or a number, or if it is complex.

    Example:
        >>> jax.nn.relu(jnp.array([-1.0, 0.0, 2.0]))
        Array([0., 0., 2.], dtype=float32)
    """
    return Relu()(*promote_numeric("relu", x))


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape of `x` and a floating-point dtype.")
def relu6(x: ArrayLike) -> Array:
    """Compute the rectified linear unit bounded by 6: `min(max(x, 0), 6)`.

    The derivative at 0 and at 6 is 0.

    Raises:
        TypeError: if `x` is not an array or a number, or if it is complex.

    Example:
        >>> jax.nn.relu6(jnp.array([-1.0, 2.0, 7.0]))
        Array([0., 2., 6.], dtype=float32)
    """
    low, x, high = promote_and_broadcast("relu6", (0.0, x, 6.0))
    return Clamp()(low, x, high)


@compiled_function
def sigmoid(x: ArrayLike) -> Array:
    """Compute the logistic function `1 / (1 + exp(-x))`.

    Args:
        x: the input, an array or a number of a floating-point or complex dtype.

    Returns:
        An array with the shape of `x` and values from 0 to 1.

    Raises:
        TypeError: if `x` is not an array or a number, or does not have a floating-point or complex dtype.

    Example:
        >>> jax.nn.sigmoid(jnp.array([-1.0, 0.0, 1.0]))
        Array([0.26894..., 0.5 ..., 0.73105...], dtype=float32)
    """
    return Logistic()(as_operand(x, "sigmoid"))


@documented(_ACTIVATION)
def silu(x: ArrayLike) -> Array:
    """Compute the sigmoid linear unit `x · sigmoid(x)`, also known as swish.

    Args:
        x: the input, an array or a number of a floating-point or complex dtype.

    Raises:
        TypeError: if `x` is not an array or a number, or does not have a floating-point or complex dtype.

    Example:
        >>> jax.nn.silu(jnp.array([-1.0, 0.0, 1.0]))
        Array([-0.26894...,  0. ...,  0.73105...], dtype=float32)
    """
    return _silu(as_operand(x, "silu"))


@custom_jvp
@compiled_function
def _silu(x: Array) -> Any:
    return x * Logistic()(x)


@compiled_function
def _silu_derivative(x: Array) -> Any:
    wide = _in_float32(x)
    gate = Logistic()(wide)
    return (gate + gate * (1.0 - gate) * wide).astype(x.dtype)


_silu.defjvps(lambda tangent, result, x: tangent * _silu_derivative(x))
swish = silu


@custom_jvp
@documented(_ACTIVATION)
def softplus(x: ArrayLike) -> Array:
    """Compute `log(1 + exp(x))`, a smooth approximation of `relu`.

    The computation does not overflow for large `x`.

    Example:
        >>> jax.nn.softplus(jnp.array([-100.0, 0.0, 100.0]))
        Array([  0. ...,   0.693147..., 100. ...], dtype=float32)
    """
    return _softplus(x)


@compiled_function
def _softplus(x: ArrayLike) -> Any:
    x = as_inexact(x, "softplus")
    return Relu()(x) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, result, x: tangent * Logistic()(x))


@compiled_function
@documented(_ACTIVATION)
def log_sigmoid(x: ArrayLike) -> Array:
    """Compute `log(sigmoid(x))` without underflow for very negative `x`.

    Example:
        >>> jax.nn.log_sigmoid(jnp.array([-100.0, 0.0]))
        Array([-100. ...,   -0.69314...], dtype=float32)
    """
    return -softplus(-as_operand(x, "log_sigmoid"))


@compiled_function
def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """Compute `(x + sqrt(x² + b)) / 2`, a smooth approximation of `relu` without exponentials.

    Args:
        x: the input, an array or a number.
        b: the smoothness, at least 0; with 0 the result is `relu(x)`.

    Returns:
        An array with the shape that `x` and `b` broadcast to.

    Raises:
        TypeError: if `x` or `b` is not an array or a number, or if their shapes do not broadcast.

    Example:
        >>> jax.nn.squareplus(jnp.array([-3.0, 0.0]), 16.0)
        Array([1., 2.], dtype=float32)
    """
    x, b = as_operand(x, "squareplus"), as_operand(b, "squareplus")
    return (x + jnp.sqrt(jnp.square(x) + b)) / 2


@compiled_function
@documented(_ACTIVATION)
def sparse_plus(x: ArrayLike) -> Array:
    """Compute the sparse plus function, a smooth approximation of `relu` with finite support.

    The result is 0 for `x <= -1`, `(x + 1)² / 4` for `-1 < x < 1`, and `x` for `x >= 1`.

    Example:
        >>> jax.nn.sparse_plus(jnp.array([-2.0, 0.0, 2.0]))
        Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    x = as_operand(x, "sparse_plus")
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape of `x` and values from 0 to 1.")
def sparse_sigmoid(x: ArrayLike) -> Array:
    """Compute the sparse sigmoid function `clip((x + 1) / 2, 0, 1)`.

    It is the derivative of `sparse_plus`.

    Example:
        >>> jax.nn.sparse_sigmoid(jnp.array([-2.0, 0.0, 2.0]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return 0.5 * jnp.clip(as_operand(x, "sparse_sigmoid") + 1.0, 0.0, 2.0)


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape of `x` and values between -1 and 1.")
def soft_sign(x: ArrayLike) -> Array:
    """Compute the soft-sign function `x / (|x| + 1)`.

    Example:
        >>> jax.nn.soft_sign(jnp.array([-1.0, 3.0]))
        Array([-0.5 ,  0.75], dtype=float32)
    """
    x = as_operand(x, "soft_sign")
    return x / (jnp.abs(x) + 1)


@compiled_function
@documented(_ACTIVATION)
def mish(x: ArrayLike) -> Array:
    """Compute the mish function `x · tanh(softplus(x))`.

    Example:
        >>> jax.nn.mish(jnp.array([-1.0, 0.0, 1.0]))
        Array([-0.3034...,  0. ...,  0.86509...], dtype=float32)
    """
    x = as_operand(x, "mish")
    return x * jnp.tanh(softplus(x))


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape that `x` and `alpha` broadcast to.")
def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Compute the exponential linear unit.

    The result is `x` for `x > 0` and `alpha · (exp(x) - 1)` elsewhere.

    Raises:
        TypeError: if `x` is not an array or a number, or if the shapes of `x` and `alpha` do not broadcast.

    Example:
        >>> jax.nn.elu(jnp.array([-1.0, 2.0]))
        Array([-0.63212...,  2. ...], dtype=float32)
    """
    x = as_operand(x, "elu")
    # `where` also differentiates the branch that is not selected: without the inner `where`, an overflow of `expm1`
    # there would make the derivative NaN.
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0.0, x)))


@compiled_function
@documented(_ACTIVATION)
def selu(x: ArrayLike) -> Array:
    """Compute the scaled exponential linear unit.

    It is `elu` with the constants of self-normalizing networks, which keep activations at mean 0 and variance 1.

    Example:
        >>> jax.nn.selu(jnp.array([-1.0, 1.0]))
        Array([-1.11133...,  1.0507...], dtype=float32)
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape that `x` and `alpha` broadcast to.")
def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Compute the continuously differentiable exponential linear unit.

    The result is `x` for `x > 0` and `alpha · (exp(x / alpha) - 1)` elsewhere. Its derivative is continuous for every
    `alpha`.

    Raises:
        TypeError: if `x` is not an array or a number, or if the shapes of `x` and `alpha` do not broadcast.

    Example:
        >>> jax.nn.celu(jnp.array([-1.0, 2.0]), 2.0)
        Array([-0.7869...,  2. ...], dtype=float32)
    """
    return jnp.maximum(x, 0.0) + alpha * jnp.expm1(jnp.minimum(x, 0.0) / alpha)


@compiled_function
def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Array:
    """Compute the leaky rectified linear unit.

    The result is `x` for `x >= 0` and `negative_slope · x` elsewhere.

    Args:
        x: the input, an array or a number.
        negative_slope: the slope for negative `x`.

    Returns:
        An array with the shape that `x` and `negative_slope` broadcast to.

    Raises:
        TypeError: if `x` is not an array or a number, or if the shapes of `x` and `negative_slope` do not broadcast.

    Example:
        >>> jax.nn.leaky_relu(jnp.array([-1.0, 2.0]))
        Array([-0.01,  2.  ], dtype=float32)
    """
    x = as_operand(x, "leaky_relu")
    return jnp.where(x >= 0, x, negative_slope * x)


@compiled_function
@documented(_ACTIVATION)
def hard_tanh(x: ArrayLike) -> Array:
    """Compute the hard tanh function: clip `x` to the interval from -1 to 1.

    Example:
        >>> jax.nn.hard_tanh(jnp.array([-3.0, 0.5, 3.0]))
        Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = as_operand(x, "hard_tanh")
    return jnp.where(x > 1, 1, jnp.where(x < -1, -1, x))


@compiled_function
@documented(_ACTIVATION, returns="An array with the shape of `x` and values from 0 to 1.")
def hard_sigmoid(x: ArrayLike) -> Array:
    """Compute the hard sigmoid function `relu6(x + 3) / 6`.

    Example:
        >>> jax.nn.hard_sigmoid(jnp.array([-3.0, 0.0, 3.0]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(as_operand(x, "hard_sigmoid") + 3.0) / 6.0


@compiled_function
@documented(_ACTIVATION)
def hard_silu(x: ArrayLike) -> Array:
    """Compute the hard SiLU function `x · hard_sigmoid(x)`, also known as hard swish.

    Example:
        >>> jax.nn.hard_silu(jnp.array([-3.0, 1.0, 3.0]))
        Array([-0.       ,  0.6666667,  3.       ], dtype=float32)
    """
    x = as_operand(x, "hard_silu")
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@documented(_ACTIVATION)
def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """Compute the Gaussian error linear unit `x · Φ(x)`.

    Φ is the cumulative distribution function of the standard normal distribution.

    Args:
        approximate: if True, use the approximation of Φ by tanh; if False, use `erfc`.

    Example:
        >>> jax.nn.gelu(jnp.array([-1.0, 1.0]), approximate=False)
        Array([-0.15865...,  0.84134...], dtype=float32)
    """
    x = as_strong(as_inexact(x, "gelu"))
    return _approximate_gelu(x) if approximate else _exact_gelu(x)


@custom_jvp
@compiled_function
def _exact_gelu(x: Array) -> Any:
    return 0.5 * x * lax.erfc(-x * math.sqrt(0.5))


@compiled_function
def _exact_gelu_derivative(x: Array) -> Any:
    wide = _in_float32(x)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return (0.5 * lax.erfc(-wide * math.sqrt(0.5)) + wide * density).astype(x.dtype)


_exact_gelu.defjvps(lambda tangent, result, x: tangent * _exact_gelu_derivative(x))


@custom_jvp
@compiled_function
def _approximate_gelu(x: Array) -> Any:
    return x * (0.5 * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@compiled_function
def _approximate_gelu_derivative(x: Array) -> Any:
    """Return the derivative of `_approximate_gelu`, which is `x · σ(2z)` with `z = √(2/π) (x + 0.044715 x³)`."""
    wide, slope = _in_float32(x), 2 * math.sqrt(2 / math.pi)
    squared = wide * wide
    gate = Logistic()(slope * wide * (1.0 + 0.044715 * squared))
    derivative = gate + gate * (1.0 - gate) * wide * (slope * (1.0 + 3 * 0.044715 * squared))
    return derivative.astype(x.dtype)


_approximate_gelu.defjvps(lambda tangent, result, x: tangent * _approximate_gelu_derivative(x))


def _in_float32(x: Array) -> Array:
    """Return the input of a derivative, of 16-bit floats in float32, because terms of the derivative cancel.

    These derivatives share no value but `x` with their functions: XLA computes them where they are used, and saves no
    other array for them.
    """
    return x.astype(jnp.float32) if type_of(x).dtype.itemsize < 4 else x


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """Compute the gated linear unit: the first half of `x` times the sigmoid of the second half.

    Args:
        x: the input, an array with an even size along `axis`.
        axis: the axis along which `x` is split into halves.

    Returns:
        An array with the shape of `x`, except for half the size along `axis`.

    Raises:
        TypeError: if `x` is not an array or a number.
        ValueError: if `axis` does not exist in `x`, or if the size of `x` along it is odd.

    Example:
        >>> jax.nn.glu(jnp.array([4.0, 0.0]))
        Array([2.], dtype=float32)
    """
    x_type = type_of(x, "glu")
    dim = canonical_axis("glu", axis, x_type.ndim)
    if x_type.shape[dim] % 2:
        raise ValueError(f"glu: axis {axis} of {x_type} must have an even size, to be split into halves")
    return _glu(x, dim=dim)


@compiled_function
def _glu(x: ArrayLike, *, dim: int) -> Any:
    x = as_operand(x)
    size = x.type.shape[dim]
    return slice_along(x, dim, 0, size // 2) * sigmoid(slice_along(x, dim, size // 2, size))


@custom_jvp
@documented(_ACTIVATION)
def log1mexp(x: ArrayLike) -> Array:
    """Compute `log(1 - exp(-x))` without cancellation for small or large `x`.

    Args:
        x: the input, an array or a number; all elements should be positive.

    Example:
        >>> jax.nn.log1mexp(jnp.array([1e-8, 1.0]))
        Array([-18.4206...,  -0.45867...], dtype=float32)
    """
    return _log1mexp(x)


@compiled_function
def _log1mexp(x: ArrayLike) -> Any:
    x = as_inexact(x, "log1mexp")
    return jnp.where(x < math.log(2.0), jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


log1mexp.defjvps(lambda tangent, result, x: tangent / jnp.expm1(x))


@documented(_ACTIVATION)
def tanh(x: ArrayLike, /) -> Array:
    """Compute the hyperbolic tangent.

    Example:
        >>> jax.nn.tanh(jnp.array([0.0, 1.0]))
        Array([0. ..., 0.76159...], dtype=float32)
    """
    return jnp.tanh(x)


def one_hot(
    x: NestedArrays,
    num_classes: int,
    *,
    dtype: DTypeLike | None = None,
    axis: int | str = -1,
    out_sharding: OutSharding = None,
) -> Array:
    """One-hot encode class indices.

    An index outside the range from 0 to `num_classes - 1` is encoded as zeros.

    Args:
        x: the class indices, an array, a number or a sequence of numbers.
        num_classes: the number of classes.
        dtype: the dtype of the result; by default the default float dtype.
        axis: the position of the new axis of size `num_classes` in the result; or the name of an axis bound by `vmap`
            or `shard_map`, along which each member holds the encoding of one class.
        out_sharding: the sharding to pin the result to.

    Returns:
        An array of zeros and ones with the shape of `x` and the new axis; with a named axis, with the shape of `x`.

    Raises:
        TypeError: if `x` is not an array, a number or a sequence of numbers.
        ValueError: if `axis` does not exist in the result, or if `num_classes` is not the size of the named axis.
        UnboundAxisError: if `axis` is a name that is not bound.
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> jax.nn.one_hot(jnp.array([0, 2]), 3)
        Array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    index_type = type_of(x, "one_hot") if not isinstance(x, Sequence) else type_of(np.asarray(x), "one_hot")
    indices = np.asarray(x) if isinstance(x, Sequence) else x
    if not (is_integer(index_type.dtype) or index_type.dtype == np.bool_ or is_inexact(index_type.dtype)):
        raise TypeError(f"one_hot: the indices must be integers, not {index_type}")
    out_dtype = default_dtype("float*") if dtype is None else requested_dtype("one_hot", dtype)
    if not isinstance(axis, int):
        size = lax.axis_size(axis)
        if size != num_classes:
            raise ValueError(f"one_hot: num_classes is {num_classes}, but the named axis {axis!r} has size {size}")
        return constrain_sharding((as_operand(indices) == lax.axis_index(axis)).astype(out_dtype), out_sharding)
    dim = canonical_axis("one_hot", axis, index_type.ndim + 1)
    encoded: Array = _one_hot(indices, num_classes=int(num_classes), dim=dim, dtype=out_dtype)
    return constrain_sharding(encoded, out_sharding)


@compiled_function
def _one_hot(x: ArrayLike, *, num_classes: int, dim: int, dtype: DType) -> Any:
    classes = as_operand(x)
    if classes.type.dtype == np.bool_:
        classes = Convert(np.dtype(np.int32))(classes)
    shape = (*classes.type.shape[:dim], num_classes, *classes.type.shape[dim:])
    indices = Broadcast(shape, tuple(d + (d >= dim) for d in range(classes.type.ndim)))(classes)
    return Convert(dtype)(Compare("EQ")(indices, Iota(shape, dim, classes.type.dtype)()))

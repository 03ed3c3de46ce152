"""Functions on each element that networks put between their layers. Derivatives at kinks are JAX's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.custom import custom_jvp
from shardwise.compiler.ir.types import is_inexact, is_integer
from shardwise.compiler.ops.elementwise import Compare, Convert
from shardwise.compiler.ops.extremum import Clamp, Relu
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.numeric import numbers
from shardwise.compiler.ops.operands import aligned, as_inexact, as_operand, composed, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import Broadcast, Iota
from shardwise.compiler.ops.slicing import along
from shardwise.compiler.ops.transcendental import Logistic


@composed
def identity(x: Any) -> Any:
    """`x` itself, as an array.

    >>> jax.nn.identity(jnp.array([1.0, -2.0]))
    Array([ 1., -2.], dtype=float32)
    """
    return as_operand(x, "identity")


@composed
def relu(x: Any) -> Any:
    """`x` where it is above 0, else 0. At 0 its derivative is 0.

    >>> jax.nn.relu(jnp.array([-1.0, 0.0, 2.0]))
    Array([0., 0., 2.], dtype=float32)
    """
    return Relu()(*numbers("relu", x))


@composed
def relu6(x: Any) -> Any:
    """`x`, but no less than 0 and no more than 6. At 0 and at 6 its derivative is 0.

    >>> jax.nn.relu6(jnp.array([-1.0, 2.0, 7.0]))
    Array([0., 2., 6.], dtype=float32)
    """
    low, x, high = aligned("relu6", (0.0, x, 6.0))
    return Clamp()(low, x, high)


@composed
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> jax.nn.sigmoid(jnp.array([-1.0, 0.0, 1.0]))
    Array([0.26894..., 0.5 ..., 0.73105...], dtype=float32)
    """
    return Logistic()(as_operand(x, "sigmoid"))


@composed
def silu(x: Any) -> Any:
    """x · sigmoid(x); also known as swish.

    >>> jax.nn.silu(jnp.array([-1.0, 0.0, 1.0]))
    Array([-0.26894...,  0. ...,  0.73105...], dtype=float32)
    """
    x = as_operand(x, "silu")
    return x * Logistic()(x)


swish = silu


@custom_jvp
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), a smooth relu.

    >>> jax.nn.softplus(jnp.array([-100.0, 0.0, 100.0]))
    Array([  0. ...,   0.693147..., 100. ...], dtype=float32)
    """
    return _softplus(x)


@composed
def _softplus(x: Any) -> Any:
    x = as_inexact(x, "softplus")
    return Relu()(x) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, result, x: tangent * Logistic()(x))


@composed
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)), exact where that is small.

    >>> jax.nn.log_sigmoid(jnp.array([-100.0, 0.0]))
    Array([-100. ...,   -0.69314...], dtype=float32)
    """
    return -softplus(-as_operand(x, "log_sigmoid"))


@composed
def _squareplus(x: Any, b: Any) -> Any:
    x, b = as_operand(x, "squareplus"), as_operand(b, "squareplus")
    return (x + jnp.sqrt(jnp.square(x) + b)) / 2


def squareplus(x: Any, b: Any = 4) -> Any:
    """(x + √(x² + b)) / 2, a smooth relu without powers of e.

    >>> jax.nn.squareplus(jnp.array([-3.0, 0.0]), 16.0)
    Array([1., 2.], dtype=float32)
    """
    return _squareplus(x, b)


@composed
def sparse_plus(x: Any) -> Any:
    """0 up to -1, (x + 1)² / 4 up to 1, and from there on x.

    >>> jax.nn.sparse_plus(jnp.array([-2.0, 0.0, 2.0]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    x = as_operand(x, "sparse_plus")
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0) ** 2 / 4))


@composed
def sparse_sigmoid(x: Any) -> Any:
    """0 up to -1, 1 from 1 on, and a straight line between.

    >>> jax.nn.sparse_sigmoid(jnp.array([-2.0, 0.0, 2.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return 0.5 * jnp.clip(as_operand(x, "sparse_sigmoid") + 1.0, 0.0, 2.0)


@composed
def soft_sign(x: Any) -> Any:
    """x / (|x| + 1).

    >>> jax.nn.soft_sign(jnp.array([-1.0, 3.0]))
    Array([-0.5 ,  0.75], dtype=float32)
    """
    x = as_operand(x, "soft_sign")
    return x / (jnp.abs(x) + 1)


@composed
def mish(x: Any) -> Any:
    """x · tanh(softplus(x)).

    >>> jax.nn.mish(jnp.array([-1.0, 0.0, 1.0]))
    Array([-0.3034...,  0. ...,  0.86509...], dtype=float32)
    """
    x = as_operand(x, "mish")
    return x * jnp.tanh(softplus(x))


@composed
def _elu(x: Any, alpha: Any) -> Any:
    x = as_operand(x, "elu")
    # The power of an element that is not taken could overflow, and its derivative is asked for too.
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0.0, x)))


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """`x` above 0, and alpha · (exp(x) - 1) below.

    >>> jax.nn.elu(jnp.array([-1.0, 2.0]))
    Array([-0.63212...,  2. ...], dtype=float32)
    """
    return _elu(x, alpha)


@composed
def selu(x: Any) -> Any:
    """A scaled elu, which keeps the mean 0 and the variance 1.

    >>> jax.nn.selu(jnp.array([-1.0, 1.0]))
    Array([-1.11133...,  1.0507...], dtype=float32)
    """
    return 1.0507009873554804934193349852946 * _elu(x, 1.6732632423543772848170429916717)


@composed
def _celu(x: Any, alpha: Any) -> Any:
    return jnp.maximum(x, 0.0) + alpha * jnp.expm1(jnp.minimum(x, 0.0) / alpha)


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """`x` above 0, and alpha · (exp(x / alpha) - 1) below, without a kink for any alpha.

    >>> jax.nn.celu(jnp.array([-1.0, 2.0]), 2.0)
    Array([-0.7869...,  2. ...], dtype=float32)
    """
    return _celu(x, alpha)


@composed
def _leaky_relu(x: Any, slope: Any) -> Any:
    x = as_operand(x, "leaky_relu")
    return jnp.where(x >= 0, x, slope * x)


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """`x` from 0 on, and negative_slope · x below.

    >>> jax.nn.leaky_relu(jnp.array([-1.0, 2.0]))
    Array([-0.01,  2.  ], dtype=float32)
    """
    return _leaky_relu(x, negative_slope)


@composed
def hard_tanh(x: Any) -> Any:
    """`x`, but no less than -1 and no more than 1.

    >>> jax.nn.hard_tanh(jnp.array([-3.0, 0.5, 3.0]))
    Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    x = as_operand(x, "hard_tanh")
    return jnp.where(x > 1, 1, jnp.where(x < -1, -1, x))


@composed
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6.

    >>> jax.nn.hard_sigmoid(jnp.array([-3.0, 0.0, 3.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(as_operand(x, "hard_sigmoid") + 3.0) / 6.0


@composed
def hard_silu(x: Any) -> Any:
    """x · hard_sigmoid(x); also known as hard_swish.

    >>> jax.nn.hard_silu(jnp.array([-3.0, 1.0, 3.0]))
    Array([-0.       ,  0.6666667,  3.       ], dtype=float32)
    """
    x = as_operand(x, "hard_silu")
    return x * hard_sigmoid(x)


hard_swish = hard_silu


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the probability that a standard normal number is below x; `approximate` takes a tanh for it.

    >>> jax.nn.gelu(jnp.array([-1.0, 1.0]), approximate=False)
    Array([-0.15865...,  0.84134...], dtype=float32)
    """
    return _gelu(x, approximate=bool(approximate))


@composed
def _gelu(x: Any, *, approximate: bool) -> Any:
    x = as_inexact(x, "gelu")
    if approximate:
        return x * (0.5 * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return 0.5 * x * lax.erfc(-x * math.sqrt(0.5))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half of `x` along `axis`, times the sigmoid of the second.

    >>> jax.nn.glu(jnp.array([4.0, 0.0]))
    Array([2.], dtype=float32)
    """
    kind = type_of(x, "glu")
    dim = dim_of("glu", axis, kind.ndim)
    if kind.shape[dim] % 2:
        raise ValueError(f"glu: axis {axis} of {kind} must have an even size, to be cut in halves")
    return _glu(x, dim=dim)


@composed
def _glu(x: Any, *, dim: int) -> Any:
    x = as_operand(x)
    size = x.type.shape[dim]
    return along(x, dim, 0, size // 2) * sigmoid(along(x, dim, size // 2, size))


@custom_jvp
def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for x above 0, exact near 0 and far from it.

    >>> jax.nn.log1mexp(jnp.array([1e-8, 1.0]))
    Array([-18.4206...,  -0.45867...], dtype=float32)
    """
    return _log1mexp(x)


@composed
def _log1mexp(x: Any) -> Any:
    x = as_inexact(x, "log1mexp")
    return jnp.where(x < math.log(2.0), jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


log1mexp.defjvps(lambda tangent, result, x: tangent / jnp.expm1(x))


def tanh(x: Any, /) -> Any:
    """The hyperbolic tangent.

    >>> jax.nn.tanh(jnp.array([0.0, 1.0]))
    Array([0. ..., 0.76159...], dtype=float32)
    """
    return jnp.tanh(x)


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: Any = -1) -> Any:
    """For each integer a row of zeros with a one at its place, along a new dim `axis`; outside of the classes, zeros.

    `axis` may be the name of an axis that `vmap` has bound: each member of it has one place.

    >>> jax.nn.one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    kind = type_of(x, "one_hot") if not isinstance(x, Sequence) else type_of(np.asarray(x), "one_hot")
    index = np.asarray(x) if isinstance(x, Sequence) else x
    if not (is_integer(kind.dtype) or kind.dtype == np.bool_ or is_inexact(kind.dtype)):
        raise TypeError(f"one_hot: needs integers, not {kind}")
    wanted = default_dtype("float*") if dtype is None else canonical_dtype(dtype)
    if not isinstance(axis, int):
        size = lax.axis_size(axis)
        if size != num_classes:
            raise ValueError(f"one_hot: num_classes is {num_classes}, and the axis {axis!r} has {size} members")
        return (as_operand(index) == lax.axis_index(axis)).astype(wanted)
    return _one_hot(index, count=int(num_classes), dim=dim_of("one_hot", axis, kind.ndim + 1), dtype=wanted)


@composed
def _one_hot(x: Any, *, count: int, dim: int, dtype: Any) -> Any:
    x = as_operand(x)
    if x.type.dtype == np.bool_:
        x = Convert(np.dtype(np.int32))(x)
    shape = (*x.type.shape[:dim], count, *x.type.shape[dim:])
    spread = Broadcast(shape, tuple(d + (d >= dim) for d in range(x.type.ndim)))(x)
    return Convert(dtype)(Compare("EQ")(spread, Iota(shape, dim, x.type.dtype)()))

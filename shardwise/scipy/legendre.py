"""Associated Legendre functions of the first kind, by recurrences in the order and in the degree.

The functions are elementwise along the points, and the loop has a static length, so sharded points keep their sharding.
"""

import math
import operator
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import scan
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, compiled_list_function, type_of
from shardwise.typing import ArrayLike


def lpmn(m: int, n: int, z: ArrayLike) -> tuple[Array, Array]:
    """Compute the associated Legendre functions Pₗᵏ and their derivatives, for the orders k and degrees l from 0 to n.

    Args:
        m: the highest order, which must be `n`.
        n: the highest degree.
        z: a vector of float32 or float64 points between -1 and 1.

    Returns:
        The values and the derivatives, each of shape `(n + 1, n + 1, len(z))`: order, degree, point. Both are 0 where
        the order exceeds the degree. The values have the Condon-Shortley phase (-1)ᵏ.

    Raises:
        TypeError: if `z` is not float32 or float64, or if `m` or `n` is not an integer.
        ValueError: if `z` is not a vector, or if `n` is negative.
        NotImplementedError: if `m` is not `n`.

    Example:
        >>> values, derivatives = jax.scipy.special.lpmn(1, 1, jnp.array([0.6]))
        >>> values[..., 0]
        Array([[ 1. ,  0.6],
               [ 0. , -0.8]], dtype=float32)
    """
    degree = _check("lpmn", m, n, z)
    values, derivatives = _values_and_derivatives(z, degree=degree)
    return values, derivatives


def lpmn_values(m: int, n: int, z: ArrayLike, is_normalized: bool) -> Array:
    """Compute the associated Legendre functions Pₗᵏ for the orders k and degrees l from 0 to n.

    Args:
        m: the highest order, which must be `n`.
        n: the highest degree.
        z: a vector of float32 or float64 points between -1 and 1.
        is_normalized: whether to scale the values, so that those of the colatitude's cosine times exp(ikφ) are
            orthonormal spherical harmonics. Scaled values of high degrees do not overflow.

    Returns:
        The values, of shape `(n + 1, n + 1, len(z))`: order, degree, point. They have the Condon-Shortley phase (-1)ᵏ,
        and are 0 where the order exceeds the degree.

    Raises:
        TypeError: if `z` is not float32 or float64, or if `m` or `n` is not an integer.
        ValueError: if `z` is not a vector, or if `n` is negative.
        NotImplementedError: if `m` is not `n`.

    Example:
        >>> jax.scipy.special.lpmn_values(1, 1, jnp.array([0.6]), is_normalized=False)[..., 0]
        Array([[ 1. ,  0.6],
               [ 0. , -0.8]], dtype=float32)
    """
    degree = _check("lpmn_values", m, n, z)
    return _values(z, degree=degree, is_normalized=bool(is_normalized))


def _check(function: str, m: int, n: int, z: ArrayLike) -> int:
    """Return the highest degree. Raises an error if an argument is not supported."""
    type = type_of(z, function)
    if type.dtype not in (np.float32, np.float64):
        raise TypeError(f"{function}: z must be float32 or float64, not {type.dtype}")
    if type.ndim != 1:
        raise ValueError(f"{function}: z must be a vector, not {type}")
    order, degree = operator.index(m), operator.index(n)
    if order != degree:
        raise NotImplementedError(f"{function}: m and n must be equal, not {order} and {degree}")
    if degree < 0:
        raise ValueError(f"{function}: n must be 0 or more, not {degree}")
    return degree


@compiled_function
def _values(z: ArrayLike, *, degree: int, is_normalized: bool) -> Any:
    z = jnp.asarray(z)
    recurrence = _normalized if is_normalized else _unnormalized
    return _recur(z, _sine(z), recurrence(jnp.arange(degree + 1, dtype=z.dtype)))


@compiled_list_function
def _values_and_derivatives(z: ArrayLike, *, degree: int) -> Any:
    """Use Pₗᵏ = sᵏ Qₗᵏ with s = √(1-z²) and polynomials Qₗᵏ, of which Qₗᵏ⁺¹ is minus the derivative.

    No term is singular, except at z = ±1 for k = 1, where the derivative is infinite.
    """
    z = jnp.asarray(z)
    sine, k = _sine(z), jnp.arange(degree + 1, dtype=z.dtype)
    polynomials = _recur(z, jnp.ones_like(z), _unnormalized(k))
    order = k[:, None, None]
    power = sine**order
    next_order = jnp.pad(polynomials[1:], ((0, 1), (0, 0), (0, 0)))
    slope = -order * z * sine ** (order - 2)  # the derivative of sᵏ
    is_varying = (order > 0) & (order <= k[:, None])
    return [power * polynomials, jnp.where(is_varying, slope * polynomials, 0) - power * next_order]


def _sine(z: Array) -> Any:
    return jnp.sqrt(1 - z * z)


class _Recurrence(NamedTuple):
    """Coefficients of functions Fₗᵏ: Fₗᵏ(z) = currentₗᵏ z Fₗ₋₁ᵏ(z) - previousₗᵏ Fₗ₋₂ᵏ(z) for k < l.

    Attributes:
        first: F₀⁰.
        diagonal: the ratios of Fₖᵏ to √(1-z²) Fₖ₋₁ᵏ⁻¹, for k from 1.
        current: indexed by degree and order.
        previous: indexed by degree and order.
    """

    first: float
    diagonal: Array
    current: Array
    previous: Array


def _unnormalized(k: Array) -> _Recurrence:
    """Return the coefficients of Pₗᵏ for the orders and degrees `k`."""
    degree = k[:, None]
    difference = jnp.maximum(degree - k, 1)
    return _Recurrence(1.0, 1 - 2 * k[1:], (2 * degree - 1) / difference, (degree + k - 1) / difference)


def _normalized(k: Array) -> _Recurrence:
    """Return the coefficients of the normalized Pₗᵏ for the orders and degrees `k`."""
    degree = k[:, None]
    last = degree - 1
    current = jnp.sqrt(jnp.maximum(4 * degree**2 - 1, 0) / jnp.maximum(degree**2 - k**2, 1))
    previous = current * jnp.sqrt(jnp.maximum(last**2 - k**2, 0) / jnp.maximum(4 * last**2 - 1, 1))
    return _Recurrence(math.sqrt(0.25 / math.pi), -jnp.sqrt(1 + 0.5 / k[1:]), current, previous)


def _recur(z: Array, sine: Array, recurrence: _Recurrence) -> Any:
    """Return the functions at the points z, indexed by order, degree and point."""
    first = jnp.full((1, *z.shape), recurrence.first, z.dtype)
    diagonal = jnp.cumprod(jnp.concatenate([first, recurrence.diagonal[:, None] * sine]), axis=0)
    degrees = jnp.arange(len(diagonal))
    order = degrees[:, None]

    def step(last_two: Any, inputs: Any) -> Any:
        before, last = last_two
        degree, current, previous = inputs
        recurred = current[:, None] * z * last - previous[:, None] * before
        values = jnp.where(order < degree, recurred, jnp.where(order == degree, diagonal, 0))
        return (last, values), values

    zeros = jnp.zeros_like(diagonal)
    _, by_degree = scan(step, (zeros, zeros), (degrees, recurrence.current, recurrence.previous))
    return by_degree.swapaxes(0, 1)


publish(__name__)

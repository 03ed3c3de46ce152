"""Functions that fill weights before training. All but `zeros` and `ones` return the function that does it:
`init(key, shape, dtype, out_sharding)`. The same key gives the same numbers as JAX's.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.compiler.ir.types import is_float
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.errors import not_here
from shardwise.lax.shape import laid_out

Axes = int | Sequence[int]

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


@runtime_checkable
class Initializer(Protocol):
    """What fills weights of a shape: the key says with which random numbers."""

    def __call__(self, key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any: ...


def _initializer(fill: Callable[[Any, tuple[int, ...], Any, Any], Any], dtype: Any) -> Initializer:
    """An initializer by a function of key, shape, dtype and where the result lies."""
    usual = dtype

    def init(key: Any, shape: Any, dtype: Any = usual, out_sharding: Any = None) -> Any:
        return fill(key, tuple(map(operator.index, shape)), _dtype(dtype), out_sharding)

    return init


def _dtype(dtype: Any) -> Any:
    return default_dtype("float*") if dtype is None else canonical_dtype(dtype)


def zeros(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Zeros; the key is ignored.

    >>> jax.nn.initializers.zeros(None, (2,))
    Array([0., 0.], dtype=float32)
    """
    return jnp.zeros(shape, _dtype(dtype), device=out_sharding)


def ones(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Ones; the key is ignored.

    >>> jax.nn.initializers.ones(None, (2,))
    Array([1., 1.], dtype=float32)
    """
    return jnp.ones(shape, _dtype(dtype), device=out_sharding)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """One value everywhere, or an array that is repeated to the shape.

    >>> jax.nn.initializers.constant(-7)(None, (2,))
    Array([-7., -7.], dtype=float32)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        return jnp.full(shape, value, dtype, device=out_sharding)

    return _initializer(fill, dtype)


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Numbers from 0 to `scale`, all equally likely.

    >>> jax.nn.initializers.uniform(10.0)(jax.random.PRNGKey(0), (2,)).shape
    (2,)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        return random.uniform(key, shape, dtype, out_sharding=out_sharding) * jnp.array(scale, dtype)

    return _initializer(fill, dtype)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal numbers around 0.

    >>> jax.nn.initializers.normal(5.0)(jax.random.PRNGKey(0), (2,)).shape
    (2,)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        return random.normal(key, shape, dtype, out_sharding=out_sharding) * jnp.array(stddev, dtype)

    return _initializer(fill, dtype)


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0) -> Initializer:
    """Normal numbers around 0, of those between `lower` and `upper` times `stddev`.

    >>> jax.nn.initializers.truncated_normal(5.0)(jax.random.PRNGKey(0), (2,)).shape
    (2,)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        found = random.truncated_normal(key, lower, upper, shape, dtype, out_sharding=out_sharding)
        return found * jnp.array(stddev, dtype)

    return _initializer(fill, dtype)


def variance_scaling(
    scale: Any,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: Any = None,
) -> Initializer:
    """Numbers whose variance is `scale` over the number of inputs (`mode` "fan_in"), of outputs ("fan_out"), or their
    mean ("fan_avg", "fan_geo_avg"), so that signals neither grow nor fade.

    `distribution` is "truncated_normal" (within two standard deviations), "normal" or "uniform". Dims that are neither
    `in_axis`, `out_axis` nor `batch_axis` count as both inputs and outputs.

    >>> jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        inputs, outputs = _fans(shape, in_axis, out_axis, batch_axis)
        counts = {
            "fan_in": inputs,
            "fan_out": outputs,
            "fan_avg": (inputs + outputs) / 2,
            "fan_geo_avg": (inputs * outputs) ** 0.5,
        }
        if mode not in counts:
            raise ValueError(f"variance_scaling: mode is one of {', '.join(counts)}, not {mode!r}")
        if distribution not in _DRAWS:
            raise ValueError(f"variance_scaling: distribution is one of {', '.join(_DRAWS)}, not {distribution!r}")
        variance = jnp.array(scale / counts[mode], dtype)
        draw = _DRAWS[distribution][0 if is_float(dtype) else 1]
        return draw(key, shape, dtype, variance, out_sharding)

    return _initializer(fill, dtype)


def _fans(shape: tuple[int, ...], in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """How many inputs and outputs weights of this shape connect."""
    if len(shape) <= 1 and in_axis == -2:
        raise ValueError(f"variance_scaling: shape {shape} has no dim -2 of inputs: say in_axis, or give two dims")
    ins, outs, batches = (
        math.prod(shape[axis] for axis in ((axes,) if isinstance(axes, int) else axes))
        for axes in (in_axis, out_axis, batch_axis)
    )
    field = math.prod(shape) / ins / outs / batches
    return ins * field, outs * field


# Standard deviations of a standard normal number within 2 of 0, and of a complex one.
_WITHIN_TWO, _COMPLEX_WITHIN_TWO = 0.87962566103423978, 0.95311164380491208


def _truncated(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any, out_sharding: Any) -> Any:
    deviation = jnp.sqrt(variance) / jnp.array(_WITHIN_TWO, dtype)
    return random.truncated_normal(key, -2, 2, shape, dtype, out_sharding=out_sharding) * deviation


def _normal(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any, out_sharding: Any) -> Any:
    return random.normal(key, shape, dtype, out_sharding=out_sharding) * jnp.sqrt(variance)


def _uniform(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any, out_sharding: Any) -> Any:
    return random.uniform(key, shape, dtype, -1, out_sharding=out_sharding) * jnp.sqrt(3 * variance)


def _complex_truncated(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any, out_sharding: Any) -> Any:
    def radius(share: Any) -> Any:
        return jnp.sqrt(-jnp.log(1 - (1 - jnp.exp(jnp.array(-4, dtype))) * share.astype(dtype)))

    deviation = jnp.sqrt(variance) / jnp.array(_COMPLEX_WITHIN_TWO, dtype)
    return laid_out(_around(key, shape, dtype, radius), out_sharding) * deviation


def _complex_uniform(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any, out_sharding: Any) -> Any:
    found = _around(key, shape, dtype, lambda share: jnp.sqrt(2 * share).astype(dtype))
    return laid_out(found, out_sharding) * jnp.sqrt(variance)


def _around(key: Any, shape: tuple[int, ...], dtype: Any, radius: Callable[[Any], Any]) -> Any:
    """Complex numbers with any angle, and a radius by a share from 0 to 1."""
    part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
    first, second = random.split(key)
    away = radius(random.uniform(first, shape, part))
    angle = 2 * np.pi * random.uniform(second, shape, part).astype(dtype)
    return away * jnp.exp(1j * angle)


# By name: how real, and how complex numbers are drawn.
_DRAWS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "truncated_normal": (_truncated, _complex_truncated),
    "normal": (_normal, _normal),
    "uniform": (_uniform, _complex_uniform),
}


def glorot_uniform(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Uniform numbers of variance 1 over the mean of inputs and outputs; also known as xavier_uniform.

    >>> jax.nn.initializers.glorot_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


def glorot_normal(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Truncated normal numbers of variance 1 over the mean of inputs and outputs; also known as xavier_normal.

    >>> jax.nn.initializers.glorot_normal()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def lecun_uniform(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Uniform numbers of variance 1 over the inputs.

    >>> jax.nn.initializers.lecun_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def lecun_normal(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Truncated normal numbers of variance 1 over the inputs.

    >>> jax.nn.initializers.lecun_normal()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def he_uniform(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Uniform numbers of variance 2 over the inputs; also known as kaiming_uniform.

    >>> jax.nn.initializers.he_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def he_normal(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
    """Truncated normal numbers of variance 2 over the inputs; also known as kaiming_normal.

    >>> jax.nn.initializers.he_normal()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """A random matrix whose columns (or rows, if these are fewer) are orthogonal, times `scale`. Dims other than
    `column_axis` are rows.

    >>> jax.nn.initializers.orthogonal()(jax.random.PRNGKey(0), (4, 3)).shape
    (4, 3)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        if len(shape) < 2:
            raise ValueError(f"orthogonal: needs two dims or more, not shape {shape}")
        if not all(shape):
            return jnp.zeros(shape, dtype, device=out_sharding)
        columns = shape[column_axis]
        rest = [size for dim, size in enumerate(shape) if dim != column_axis % len(shape)]
        found: Any = random.orthogonal(key, math.prod(rest), (), dtype, columns).reshape(*rest, columns)
        return laid_out(jnp.array(scale, dtype) * jnp.moveaxis(found, -1, column_axis), out_sharding)

    return _initializer(fill, dtype)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """For kernels of convolutions in 1, 2 or 3 dims: zeros, but an orthogonal matrix in the middle.

    >>> jax.nn.initializers.delta_orthogonal()(jax.random.PRNGKey(0), (3, 2, 4)).shape
    (3, 2, 4)
    """

    def fill(key: Any, shape: tuple[int, ...], dtype: Any, out_sharding: Any) -> Any:
        if len(shape) not in (3, 4, 5):
            raise ValueError(f"delta_orthogonal: needs 3, 4 or 5 dims, not shape {shape}")
        if shape[-1] < shape[-2]:
            raise ValueError(f"delta_orthogonal: shape {shape} must not have fewer outputs than inputs, its last dims")
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        middle = tuple((size - 1) // 2 for size in shape[:-2])
        return laid_out(jnp.zeros(shape, dtype).at[middle].set(matrix), out_sharding)

    return _initializer(fill, dtype)


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.nn.initializers", name, __all__)

"""Weight initializers.

An initializer is a function `init(key, shape, dtype, out_sharding)`. `zeros` and `ones` are initializers; the other
functions return one. The same key generates the same numbers as in JAX.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsIndex, cast, runtime_checkable

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.dtypes import DType, is_float, is_inexact
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape

Axes = int | Sequence[int]


@runtime_checkable
class Initializer(Protocol):
    """A function that returns initial weights of a shape, random or not."""

    def __call__(
        self, key: ArrayLike | None, shape: Shape, dtype: DTypeLike | None = None, out_sharding: OutSharding = None
    ) -> Any: ...


def _initializer(
    fill: Callable[[Any, tuple[int, ...], DType, OutSharding], Any], dtype: DTypeLike | None
) -> Initializer:
    """Return an initializer that normalizes shape and dtype and calls `fill(key, shape, dtype, out_sharding)`."""
    default = dtype

    def init(
        key: ArrayLike | None, shape: Shape, dtype: DTypeLike | None = default, out_sharding: OutSharding = None
    ) -> Any:
        return fill(key, tuple(map(operator.index, cast(Sequence[SupportsIndex], shape))), _dtype(dtype), out_sharding)

    return init


def _dtype(dtype: DTypeLike | None) -> Any:
    return default_dtype("float*") if dtype is None else requested_dtype("initializer", dtype)


_INITIALIZER = Family(
    {
        "key": "ignored; initializers have a key as first parameter.",
        "shape": "the shape of the result.",
        "dtype": "the dtype of the result; by default the default float dtype.",
        "out_sharding": "the sharding of the result.",
    },
    raises=[
        "TypeError: if `shape` does not consist of integers, or if `dtype` is not a dtype.",
        "ValueError: if a size in `shape` is negative.",
    ],
)


@documented(_INITIALIZER, returns="An array of zeros.")
def zeros(key: object, shape: Shape, dtype: DTypeLike | None = None, out_sharding: OutSharding = None) -> Array:
    """Initialize weights with zeros.

    Example:
        >>> jax.nn.initializers.zeros(None, (2,))
        Array([0., 0.], dtype=float32)
    """
    return jnp.zeros(shape, _dtype(dtype), device=out_sharding)


@documented(_INITIALIZER, returns="An array of ones.")
def ones(key: object, shape: Shape, dtype: DTypeLike | None = None, out_sharding: OutSharding = None) -> Array:
    """Initialize weights with ones.

    Example:
        >>> jax.nn.initializers.ones(None, (2,))
        Array([1., 1.], dtype=float32)
    """
    return jnp.ones(shape, _dtype(dtype), device=out_sharding)


def constant(value: ArrayLike, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer that fills weights with a constant.

    Args:
        value: the value, a number or an array that broadcasts to the shape of the weights.
        dtype: the default dtype of the initializer; if None, the default float dtype.

    Returns:
        The initializer, which ignores its key.

    Raises:
        TypeError: when the initializer is called, if `value` is not a number or an array, or does not broadcast to the
            shape.

    Example:
        >>> jax.nn.initializers.constant(-7)(None, (2,))
        Array([-7., -7.], dtype=float32)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        return jnp.full(shape, value, dtype, device=out_sharding)

    return _initializer(fill, dtype)


_INITIALIZER_FACTORY = Family(
    {
        "dtype": "the default dtype of the initializer; if None, the default float dtype.",
        "in_axis": Parameter(
            "the axis or axes of the inputs.",
            "ValueError: when the initializer is called, if the shape has fewer than two dims and `in_axis`\nis -2.",
        ),
        "out_axis": "the axis or axes of the outputs.",
        "batch_axis": Parameter(
            "the axis or axes that count neither as inputs nor as outputs.",
            "IndexError: when the initializer is called, if an axis does not exist in the shape.",
        ),
    },
    returns="The initializer.",
)


@documented(_INITIALIZER_FACTORY)
def uniform(scale: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer that samples from the uniform distribution from 0 to `scale`.

    Args:
        scale: the upper bound.

    Raises:
        TypeError: when the initializer is called, if its key is not a PRNG key.
        ValueError: when the initializer is called, if its dtype is not a floating-point dtype.

    Example:
        >>> jax.nn.initializers.uniform(10.0)(jax.random.PRNGKey(0), (2,)).shape
        (2,)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        return random.uniform(key, shape, dtype, out_sharding=out_sharding) * jnp.array(scale, dtype)

    return _initializer(fill, dtype)


@documented(_INITIALIZER_FACTORY)
def normal(stddev: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer that samples from the normal distribution with mean 0.

    Args:
        stddev: the standard deviation.

    Raises:
        TypeError: when the initializer is called, if its key is not a PRNG key.
        ValueError: when the initializer is called, if its dtype is neither a floating-point nor a complex dtype.

    Example:
        >>> jax.nn.initializers.normal(5.0)(jax.random.PRNGKey(0), (2,)).shape
        (2,)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        return random.normal(key, shape, dtype, out_sharding=out_sharding) * jnp.array(stddev, dtype)

    return _initializer(fill, dtype)


@documented(_INITIALIZER_FACTORY)
def truncated_normal(
    stddev: ArrayLike = 1e-2, dtype: DTypeLike | None = None, lower: ArrayLike = -2.0, upper: ArrayLike = 2.0
) -> Initializer:
    """Return an initializer that samples from the truncated normal distribution with mean 0.

    Args:
        stddev: the standard deviation of the distribution before truncation.
        lower: the lower bound, in multiples of `stddev`.
        upper: the upper bound, in multiples of `stddev`.

    Raises:
        TypeError: when the initializer is called, if its key is not a PRNG key.
        ValueError: when the initializer is called, if its dtype is not a floating-point dtype.

    Example:
        >>> jax.nn.initializers.truncated_normal(5.0)(jax.random.PRNGKey(0), (2,)).shape
        (2,)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        sample = random.truncated_normal(key, lower, upper, shape, dtype, out_sharding=out_sharding)
        return sample * jnp.array(stddev, dtype)

    return _initializer(fill, dtype)


@documented(_INITIALIZER_FACTORY)
def variance_scaling(
    scale: ArrayLike,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Return an initializer whose variance depends on the shape of the weights.

    The variance is `scale / n`, where n is the number of inputs or outputs of a unit, so that the variance of
    activations or gradients is preserved from layer to layer. Dims that are neither `in_axis`, `out_axis` nor
    `batch_axis` are the receptive field, which multiplies both numbers.

    Args:
        scale: the numerator of the variance.
        mode: what n is: the number of inputs ("fan_in"), of outputs ("fan_out"), or their arithmetic or geometric mean
            ("fan_avg", "fan_geo_avg").
        distribution: "truncated_normal" (at two standard deviations), "normal" or "uniform".

    Raises:
        ValueError: when the initializer is called, if `mode` or `distribution` is unknown, or if the shape has fewer
            than two dims and `in_axis` is -2.

    Example:
        >>> jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        fans = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": (fan_in * fan_out) ** 0.5,
        }
        if mode not in fans:
            raise ValueError(f"variance_scaling: mode must be one of {', '.join(fans)}, not {mode!r}")
        if distribution not in _SAMPLERS:
            raise ValueError(
                f"variance_scaling: distribution must be one of {', '.join(_SAMPLERS)}, not {distribution!r}"
            )
        if not is_inexact(dtype):
            raise ValueError(f"variance_scaling: dtype must be a floating or complex dtype, not {dtype}")
        variance = jnp.array(scale / fans[mode], dtype)
        sampler = _SAMPLERS[distribution][0 if is_float(dtype) else 1]
        return sampler(key, shape, dtype, variance, out_sharding)

    return _initializer(fill, dtype)


def _fans(shape: tuple[int, ...], in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """Return fan_in and fan_out, the numbers of inputs and outputs that weights of this shape connect."""
    if len(shape) <= 1 and in_axis == -2:
        raise ValueError(
            f"variance_scaling: shape {shape} has no axis -2 for the inputs: pass in_axis, or a shape of rank 2 or more"
        )
    inputs, outputs, batch = (
        math.prod(shape[axis] for axis in ((axes,) if isinstance(axes, int) else axes))
        for axes in (in_axis, out_axis, batch_axis)
    )
    receptive_field = math.prod(shape) / inputs / outputs / batch
    return inputs * receptive_field, outputs * receptive_field


# Standard deviations of the standard normal distribution, real and complex, truncated at absolute value 2.
_TRUNCATED_STDDEV, _COMPLEX_TRUNCATED_STDDEV = 0.87962566103423978, 0.95311164380491208


def _truncated_normal(
    key: Array, shape: tuple[int, ...], dtype: DType, variance: Array, out_sharding: OutSharding
) -> Any:
    stddev = jnp.sqrt(variance) / jnp.array(_TRUNCATED_STDDEV, dtype)
    return random.truncated_normal(key, -2, 2, shape, dtype, out_sharding=out_sharding) * stddev


def _normal(key: Array, shape: tuple[int, ...], dtype: DType, variance: Array, out_sharding: OutSharding) -> Any:
    return random.normal(key, shape, dtype, out_sharding=out_sharding) * jnp.sqrt(variance)


def _uniform(key: Array, shape: tuple[int, ...], dtype: DType, variance: Array, out_sharding: OutSharding) -> Any:
    return random.uniform(key, shape, dtype, -1, out_sharding=out_sharding) * jnp.sqrt(3 * variance)


def _complex_truncated_normal(
    key: Array, shape: tuple[int, ...], dtype: DType, variance: Array, out_sharding: OutSharding
) -> Any:
    def radius(u: Array) -> Any:
        return jnp.sqrt(-jnp.log(1 - (1 - jnp.exp(jnp.array(-4, dtype))) * u.astype(dtype)))

    stddev = jnp.sqrt(variance) / jnp.array(_COMPLEX_TRUNCATED_STDDEV, dtype)
    return constrain_sharding(_isotropic(key, shape, dtype, radius), out_sharding) * stddev


def _complex_uniform(
    key: Array, shape: tuple[int, ...], dtype: DType, variance: Array, out_sharding: OutSharding
) -> Any:
    sample = _isotropic(key, shape, dtype, lambda u: jnp.sqrt(2 * u).astype(dtype))
    return constrain_sharding(sample, out_sharding) * jnp.sqrt(variance)


def _isotropic(key: Array, shape: tuple[int, ...], dtype: DType, radius: Callable[[Any], Any]) -> Any:
    """Sample complex numbers with a uniform angle, and a radius that is a function of a uniform number."""
    real_dtype = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
    radius_key, angle_key = random.split(key)
    magnitude = radius(random.uniform(radius_key, shape, real_dtype))
    angle = 2 * np.pi * random.uniform(angle_key, shape, real_dtype).astype(dtype)
    return magnitude * jnp.exp(1j * angle)


# For each distribution, the samplers of real and of complex numbers.
_SAMPLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "truncated_normal": (_truncated_normal, _complex_truncated_normal),
    "normal": (_normal, _normal),
    "uniform": (_uniform, _complex_uniform),
}


@documented(_INITIALIZER_FACTORY)
def glorot_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a Glorot uniform initializer, also known as Xavier uniform.

    The variance is `1 / fan_avg`, the mean number of inputs and outputs: see `variance_scaling`.

    Example:
        >>> jax.nn.initializers.glorot_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


@documented(_INITIALIZER_FACTORY)
def glorot_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a Glorot normal initializer, also known as Xavier normal.

    The distribution is a truncated normal with variance `1 / fan_avg`, the mean number of inputs and outputs: see
    `variance_scaling`.

    Example:
        >>> jax.nn.initializers.glorot_normal()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


@documented(_INITIALIZER_FACTORY)
def lecun_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a LeCun uniform initializer.

    The variance is `1 / fan_in`, the number of inputs: see `variance_scaling`.

    Example:
        >>> jax.nn.initializers.lecun_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


@documented(_INITIALIZER_FACTORY)
def lecun_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a LeCun normal initializer.

    The distribution is a truncated normal with variance `1 / fan_in`, the number of inputs: see `variance_scaling`.

    Example:
        >>> jax.nn.initializers.lecun_normal()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


@documented(_INITIALIZER_FACTORY)
def he_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a He uniform initializer, also known as Kaiming uniform.

    The variance is `2 / fan_in`, where fan_in is the number of inputs: see `variance_scaling`.

    Example:
        >>> jax.nn.initializers.he_uniform()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


@documented(_INITIALIZER_FACTORY)
def he_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return a He normal initializer, also known as Kaiming normal.

    The distribution is a truncated normal with variance `2 / fan_in`, where fan_in is the number of inputs: see
    `variance_scaling`.

    Example:
        >>> jax.nn.initializers.he_normal()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


@documented(_INITIALIZER_FACTORY)
def orthogonal(scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer that samples uniformly distributed orthogonal matrices.

    The columns are orthonormal if there are at most as many columns as rows; otherwise the rows are. Weights of rank
    above 2 are such a matrix, reshaped: `column_axis` indexes its columns, all other dims together its rows.

    Args:
        scale: the factor of the matrix.
        column_axis: the axis of the columns.

    Raises:
        ValueError: when the initializer is called, if the shape has fewer than two dims, or if its dtype is neither a
            floating-point nor a complex dtype.
        IndexError: when the initializer is called, if `column_axis` does not exist in the shape.

    Example:
        >>> jax.nn.initializers.orthogonal()(jax.random.PRNGKey(0), (4, 3)).shape
        (4, 3)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        if len(shape) < 2:
            raise ValueError(f"orthogonal: the shape must have at least two dims, not {shape}")
        if not all(shape):
            return jnp.zeros(shape, dtype, device=out_sharding)
        columns = shape[column_axis]
        rows = [size for dim, size in enumerate(shape) if dim != column_axis % len(shape)]
        matrix: Any = random.orthogonal(key, math.prod(rows), (), dtype, columns).reshape(*rows, columns)
        return constrain_sharding(jnp.array(scale, dtype) * jnp.moveaxis(matrix, -1, column_axis), out_sharding)

    return _initializer(fill, dtype)


@documented(_INITIALIZER_FACTORY)
def delta_orthogonal(scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer for convolution kernels that are orthogonal at their center and 0 elsewhere.

    The last two dims of a kernel are its inputs and outputs; the one, two or three dims before them are spatial.

    Args:
        scale: the factor of the orthogonal matrix.
        column_axis: the axis of the columns in the matrix of inputs and outputs.

    Raises:
        ValueError: when the initializer is called, if the rank of the shape is not 3, 4 or 5, or if there are fewer
            outputs than inputs.

    Example:
        >>> jax.nn.initializers.delta_orthogonal()(jax.random.PRNGKey(0), (3, 2, 4)).shape
        (3, 2, 4)
    """

    def fill(key: Array, shape: tuple[int, ...], dtype: DType, out_sharding: OutSharding) -> Any:
        if len(shape) not in (3, 4, 5):
            raise ValueError(f"delta_orthogonal: the shape must have 3, 4 or 5 dims, not {shape}")
        if shape[-1] < shape[-2]:
            raise ValueError(
                f"delta_orthogonal: shape {shape} must not have fewer outputs (dim -1) than inputs (dim -2)"
            )
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        center = tuple((size - 1) // 2 for size in shape[:-2])
        return constrain_sharding(jnp.zeros(shape, dtype).at[center].set(matrix), out_sharding)

    return _initializer(fill, dtype)


publish(__name__)

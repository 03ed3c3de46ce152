"""jax.image: resampling of images along any of their dims.

Every dim is resampled by one matrix product. The matrix has a column of weights for each pixel of the result: the
kernel of the method, evaluated at the distances of the input pixels, and normalized to the sum 1. A sharded dim that is
not resampled stays sharded; along one that is, the product is a contraction like any other.
"""

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, canonical_axes
from shardwise.lax.precision import Precision, PrecisionLike
from shardwise.typing import ArrayLike


class ResizeMethod(enum.Enum):
    """The methods of `resize`.

    Attributes:
        NEAREST: the nearest pixel.
        LINEAR: linear interpolation, whose kernel is a triangle.
        LANCZOS3: Lanczos' kernel of radius 3.
        LANCZOS5: Lanczos' kernel of radius 5.
        CUBIC: Keys' cubic kernel.

    Example:
        >>> jax.image.ResizeMethod.from_string("bilinear")
        <ResizeMethod.LINEAR: 1>
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4

    @staticmethod
    def from_string(s: str) -> "ResizeMethod":
        """Return the method with a name such as "linear", "bilinear", "triangle" or "bicubic"."""
        if s not in _METHOD_NAMES:
            raise ValueError(f"{s!r} is not a method of resize; the methods are {', '.join(_METHOD_NAMES)}")
        return _METHOD_NAMES[s]


_METHOD_NAMES = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(("linear", "bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR),
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), ResizeMethod.CUBIC),
}


def resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = Precision.HIGHEST,
) -> Array:
    """Resize an image to a shape.

    Args:
        image: the array. Integers become floats, except with the method "nearest".
        shape: the shape of the result, of the same rank. Dims of equal size are not resampled.
        method: "nearest", "linear", "cubic", "lanczos3", "lanczos5" or another name of a `ResizeMethod`.
        antialias: whether the kernel is widened where the image becomes smaller; not used by "nearest".
        precision: the precision of the products.

    Returns:
        The resized image.

    Raises:
        ValueError: if `shape` has another rank, if `method` is unknown, or if pixels are requested of an empty dim.
        TypeError: if `image` is not an array.

    Example:
        >>> jax.image.resize(jnp.array([0.0, 4.0]), (4,), "linear")
        Array([0., 1., 3., 4.], dtype=float32)
    """
    x = as_operand(image, "resize")
    sizes = _checked_shape("resize", x, shape)
    kind = method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)
    dims = [dim for dim in range(x.ndim) if x.shape[dim] != sizes[dim]]
    if empty := [dim for dim in dims if not x.shape[dim]]:
        raise ValueError(
            f"resize: dim {empty[0]} of {x.type} is empty, and cannot be resized to {sizes[empty[0]]} pixels"
        )
    if kind is ResizeMethod.NEAREST:
        for dim in dims:
            step = x.shape[dim] / max(sizes[dim], 1)
            positions = np.floor((np.arange(sizes[dim]) + 0.5) * step).astype(np.int32)
            x = jnp.take(x, np.clip(positions, 0, x.shape[dim] - 1), axis=dim)
        return x
    x = as_inexact(x, "resize")
    scales = [jnp.asarray(sizes[dim] / x.shape[dim], jnp.float32) for dim in dims]
    return _resample(x, sizes, dims, scales, [0.0] * len(dims), KERNELS[kind], antialias, precision)


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = Precision.HIGHEST,
) -> Array:
    """Scale and shift an image: the pixel at position p moves to `p * scale + translation`.

    Positions are those of pixel edges, so that the center of the first pixel is 0.5. The result is differentiable with
    respect to the image, the scale and the translation. Pixels whose position lies outside of the image are 0.

    Args:
        image: the array. Integers become floats.
        shape: the shape of the result, of the same rank.
        spatial_dims: the dims that are resampled. The others keep their size.
        scale: a vector of one factor for each of them.
        translation: a vector of one shift for each of them, in pixels of the result.
        method: "linear", "cubic", "lanczos3", "lanczos5" or another name of a `ResizeMethod` other than "nearest".
        antialias: whether the kernel is widened where the image becomes smaller.
        precision: the precision of the products.

    Returns:
        The resampled image.

    Raises:
        ValueError: if shapes do not fit, a dim repeats or does not exist, or `method` is unknown or "nearest".
        TypeError: if `image` is not an array.

    Example:
        >>> jax.image.scale_and_translate(jnp.array([1.0, 2.0, 3.0]), (3,), (0,), jnp.ones(1), jnp.ones(1), "linear")
        Array([0., 1., 2.], dtype=float32)
    """
    x = as_inexact(image, "scale_and_translate")
    sizes = _checked_shape("scale_and_translate", x, shape)
    dims = canonical_axes("scale_and_translate", tuple(spatial_dims), x.type)
    if fixed := [dim for dim in range(x.ndim) if dim not in dims and x.shape[dim] != sizes[dim]]:
        raise ValueError(
            f"scale_and_translate: dim {fixed[0]} changes its size from {x.shape[fixed[0]]} to {sizes[fixed[0]]}, but "
            f"is not among the spatial dims {tuple(spatial_dims)}"
        )
    kind = method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)
    if kind is ResizeMethod.NEAREST:
        raise ValueError("scale_and_translate: the method 'nearest' is not supported; use 'linear'")
    factors, shifts = (as_inexact(vector, "scale_and_translate") for vector in (scale, translation))
    for name, vector in (("scale", factors), ("translation", shifts)):
        if vector.shape != (len(dims),):
            raise ValueError(
                f"scale_and_translate: {name} must have one number for each of {len(dims)} spatial dims, not the shape "
                f"{vector.shape}"
            )
    numbers = range(len(dims))
    kernel = KERNELS[kind]
    return _resample(
        x, sizes, dims, [factors[i] for i in numbers], [shifts[i] for i in numbers], kernel, antialias, precision
    )


def _checked_shape(name: str, x: Array, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(map(operator.index, shape))
    if len(sizes) != x.ndim:
        raise ValueError(f"{name}: shape must have the rank of the image, {x.ndim}, not {len(sizes)}: {sizes}")
    return sizes


def _resample(
    x: Array,
    shape: Sequence[int],
    dims: Sequence[int],
    scales: Sequence[Any],
    translations: Sequence[Any],
    kernel: Callable[[Any], Any],
    antialias: bool,
    precision: PrecisionLike,
) -> Any:
    """Multiply every one of `dims` by the matrix of its weights."""
    for dim, scale, translation in zip(dims, scales, translations, strict=True):
        weights = _weights(x.shape[dim], shape[dim], scale, translation, kernel, antialias).astype(x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, weights, (dim, 0), precision=precision), -1, dim)
    return x


def _weights(
    size: int, new_size: int, scale: Array, translation: Array, kernel: Callable[[Any], Any], antialias: bool
) -> Any:
    """Return the weights of the input pixels (rows) for each pixel of the result (columns)."""
    stretch = 1 / jnp.asarray(scale, jnp.result_type(scale, jnp.float32))
    width = jnp.maximum(stretch, 1) if antialias else 1
    # Centers of the new pixels, in the coordinates of the old ones, where the first center is 0.
    centers = (jnp.arange(new_size) + 0.5 - translation) * stretch - 0.5
    weights = kernel(jnp.abs(centers[None, :] - jnp.arange(size)[:, None]) / width)
    total = weights.sum(axis=0, keepdims=True)
    is_valid = jnp.abs(total) > 1000 * float(np.finfo(np.float32).eps)
    weights = jnp.where(is_valid, weights / jnp.where(is_valid, total, 1), 0)
    is_inside = (centers >= -0.5) & (centers <= size - 0.5)
    return jnp.where(is_inside[None, :], weights, 0)


def _triangle(distance: Array) -> Any:
    return jnp.maximum(0, 1 - distance)


def _keys_cubic(distance: Array) -> Any:
    """Keys' cubic convolution kernel with a = -1/2."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return jnp.where(distance < 1, near, jnp.where(distance < 2, far, 0))


def _lanczos(radius: int) -> Callable[[Any], Any]:
    def kernel(distance: Array) -> Any:
        return jnp.where(distance < radius, jnp.sinc(distance) * jnp.sinc(distance / radius), 0)

    return kernel


KERNELS: dict[ResizeMethod, Callable[[Any], Any]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.CUBIC: _keys_cubic,
    ResizeMethod.LANCZOS3: _lanczos(3),
    ResizeMethod.LANCZOS5: _lanczos(5),
}

publish(__name__)

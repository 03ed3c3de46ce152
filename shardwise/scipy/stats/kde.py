"""Gaussian kernel density estimation."""

import math
from collections.abc import Callable
from typing import Any, NoReturn, final

import shardwise.numpy as jnp
from shardwise import random
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.scipy import linalg, special
from shardwise.scipy.stats import multivariate_normal
from shardwise.tree_util import register_pytree_node_class
from shardwise.typing import ArrayLike

_FIELDS = ("neff", "dataset", "weights", "covariance", "inv_cov")


@register_pytree_node_class
@final
class gaussian_kde:
    """Kernel density estimate with a Gaussian kernel around each point of a dataset.

    The covariance of a kernel is the weighted covariance of the dataset times the square of the bandwidth factor. An
    instance is a pytree of its five arrays.

    Args:
        dataset: the points, as columns of a matrix, or as a vector for one-dimensional data.
        bw_method: the bandwidth factor: "scott" (the default), "silverman", a number, or a function of this instance
            that returns a number.
        weights: the weight of each point, normalized to sum to 1. All weights are equal by default.

    Raises:
        NotImplementedError: if the dataset is complex.
        ValueError: if there are fewer than two points, if there is not one weight per point, or if `bw_method` is an
            unknown name.
        TypeError: if the dataset is not an array or a number.

    Example:
        >>> f"{jax.scipy.stats.gaussian_kde(jnp.array([1.0, 2.0, 4.0])).evaluate(2.0)[0]:.4f}"
        '0.2149'
    """

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    def __init__(
        self,
        dataset: ArrayLike,
        bw_method: str | float | Callable[[Any], Any] | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        if (dataset_type := type_of(dataset, "gaussian_kde")).dtype.kind == "c":
            raise NotImplementedError(f"gaussian_kde: complex datasets are not supported: {dataset_type}")
        data = jnp.atleast_2d(dataset)
        self.dataset = data if jnp.issubdtype(data.dtype, jnp.inexact) else data.astype(jnp.float_)
        if self.n < 2:
            raise ValueError(f"gaussian_kde: the dataset needs at least two points (columns), not {dataset_type}")
        if weights is None:
            self.weights = jnp.full(self.n, 1 / self.n, self.dataset.dtype)
        else:
            weights = jnp.asarray(weights, self.dataset.dtype)
            if weights.shape != (self.n,):
                raise ValueError(
                    f"gaussian_kde: weights must have shape ({self.n},), one per point, not {weights.type}"
                )
            self.weights = weights / jnp.sum(weights)
        self.neff = 1 / jnp.sum(self.weights * self.weights)
        data_covariance = jnp.atleast_2d(jnp.cov(self.dataset, aweights=self.weights))
        factor = self._bandwidth_factor(bw_method)
        self.covariance = data_covariance * factor**2
        self.inv_cov = jnp.linalg.inv(data_covariance) / factor**2

    def _bandwidth_factor(self, method: Any) -> Any:
        if method is None or method == "scott":
            return jnp.power(self.neff, -1 / (self.d + 4))
        if method == "silverman":
            return jnp.power(self.neff * (self.d + 2) / 4, -1 / (self.d + 4))
        if callable(method):
            return method(self)
        if isinstance(method, str):
            raise ValueError(
                f"gaussian_kde: bw_method must be 'scott', 'silverman', a number or a function, not {method!r}"
            )
        return method

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(self, name) for name in _FIELDS), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> "gaussian_kde":
        kde = object.__new__(cls)
        for name, child in zip(_FIELDS, children, strict=True):
            setattr(kde, name, child)
        return kde

    def __repr__(self) -> str:
        return f"gaussian_kde({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"

    @property
    def d(self) -> int:
        """The dimension of the points."""
        return int(self.dataset.shape[0])

    @property
    def n(self) -> int:
        """The number of points in the dataset."""
        return int(self.dataset.shape[1])

    def evaluate(self, points: ArrayLike) -> Any:
        """Compute the estimated probability density function.

        Args:
            points: the points, as columns.

        Returns:
            The density at each point.

        Raises:
            ValueError: if the dimension of the points is not that of the dataset.
        """
        return jnp.exp(self.logpdf(points))

    __call__ = evaluate

    def pdf(self, x: ArrayLike) -> Any:
        """Compute the estimated probability density function; the same as `evaluate`.

        Args:
            x: the points, as columns.

        Returns:
            The density at each point.

        Raises:
            ValueError: if the dimension of the points is not that of the dataset.
        """
        return self.evaluate(x)

    def logpdf(self, x: ArrayLike) -> Any:
        """Compute the logarithm of the estimated probability density function.

        Args:
            x: the points, as columns.

        Returns:
            The log density at each point.

        Raises:
            ValueError: if the dimension of the points is not that of the dataset.
        """
        points = jnp.atleast_2d(jnp.asarray(x, self.dataset.dtype))
        if points.shape[0] != self.d and points.shape == (1, self.d):  # a single point, passed as a vector
            points = points.T
        if points.shape[0] != self.d:
            raise ValueError(
                f"gaussian_kde: the points have dimension {points.shape[0]}, but the dataset has dimension {self.d}"
            )
        return self._log_kernel_sum(points, self.dataset, self.covariance, self.weights)

    @staticmethod
    def _log_kernel_sum(points: Array, centers: Array, covariance: Array, weights: Array) -> Any:
        """Return the logarithm, at each point, of the weighted sum of the Gaussian kernels around `centers`."""
        factor = jnp.linalg.cholesky(covariance)
        white_points, white_centers = (
            linalg.solve_triangular(factor, columns, lower=True) for columns in (points, centers)
        )
        difference = white_points[:, :, None] - white_centers[:, None, :]
        log_normalizer = 0.5 * len(white_points) * math.log(2 * math.pi) + jnp.sum(jnp.log(jnp.diagonal(factor)))
        exponents = -0.5 * jnp.sum(difference * difference, axis=0) - log_normalizer
        return special.logsumexp(exponents, axis=1, b=weights)

    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Any:
        """Integrate the product of the estimate and a normal density.

        Args:
            mean: the mean vector of the normal distribution.
            cov: its covariance matrix.

        Returns:
            The integral, a scalar.

        Raises:
            ValueError: if the shape of `mean` or `cov` does not match the dimension of the dataset.
        """
        mean, cov = jnp.atleast_1d(jnp.squeeze(mean)), jnp.atleast_2d(cov)
        if mean.shape != (self.d,):
            raise ValueError(f"gaussian_kde: the mean must have shape ({self.d},), not {mean.type}")
        if cov.shape != (self.d, self.d):
            raise ValueError(f"gaussian_kde: the covariance must have shape ({self.d}, {self.d}), not {cov.type}")
        log_density = multivariate_normal.logpdf(self.dataset.T, mean, self.covariance + cov)
        return jnp.sum(self.weights * jnp.exp(log_density))

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Any:
        """Integrate a one-dimensional estimate over an interval.

        Args:
            low, high: the bounds of the interval, scalars.

        Returns:
            The probability of the interval.

        Raises:
            ValueError: if the dataset is not one-dimensional, or if a bound is not a scalar.
        """
        if self.d != 1:
            raise ValueError(f"gaussian_kde: integrate_box_1d needs a dataset of dimension 1, not {self.d}")
        if jnp.ndim(low) or jnp.ndim(high):
            raise ValueError("gaussian_kde: the bounds of integrate_box_1d must be scalars")
        deviation = jnp.sqrt(self.covariance[0, 0])
        below_low, below_high = (special.ndtr((bound - self.dataset[0]) / deviation) for bound in (low, high))
        return jnp.sum(self.weights * (below_high - below_low))

    def integrate_kde(self, other: "gaussian_kde") -> Any:
        """Integrate the product of two estimates.

        Args:
            other: the other estimate.

        Returns:
            The integral, a scalar.

        Raises:
            ValueError: if the two datasets differ in dimension.
        """
        if other.d != self.d:
            raise ValueError(
                f"gaussian_kde: the dimensions of the two datasets must be equal, not {self.d} and {other.d}"
            )
        covariance = self.covariance + other.covariance
        log_sums = self._log_kernel_sum(other.dataset, self.dataset, covariance, self.weights)
        return jnp.sum(other.weights * jnp.exp(log_sums))

    def resample(self, key: ArrayLike, shape: tuple[int, ...] = ()) -> Any:
        """Draw points from the estimated density.

        Args:
            key: the PRNG key.
            shape: the shape of the batch of points.

        Returns:
            The points, with their components along the first axis: an array of shape `(d, *shape)`.

        Raises:
            TypeError: if `key` is not a PRNG key.
        """
        center_key, noise_key = random.split(key)
        centers = random.choice(center_key, self.n, shape=shape, replace=True, p=self.weights)
        noise = random.multivariate_normal(
            noise_key, jnp.zeros(self.d, self.covariance.dtype), self.covariance, shape=shape, dtype=self.dataset.dtype
        )
        return jnp.moveaxis(noise, -1, 0) + self.dataset[:, centers]

    def integrate_box(self, low_bounds: ArrayLike, high_bounds: ArrayLike, maxpts: Any = None) -> NoReturn:
        """Not supported; use `integrate_box_1d` for one-dimensional data."""
        raise NotImplementedError(
            "gaussian_kde: integrate_box is not supported; use integrate_box_1d for one-dimensional data"
        )

    def set_bandwidth(self, bw_method: Any = None) -> NoReturn:
        """Not supported because instances are immutable; create a new one with another `bw_method`."""
        raise NotImplementedError(
            "gaussian_kde: set_bandwidth is not supported because instances are immutable; "
            "create a new gaussian_kde with this bw_method"
        )

"""Densities estimated from samples: a normal bump around each."""

import math
from collections.abc import Callable
from typing import Any, NoReturn, final

import shardwise.numpy as jnp
from shardwise import random
from shardwise.compiler.ops.operands import type_of
from shardwise.scipy import linalg, special
from shardwise.scipy.stats import multivariate_normal
from shardwise.tree_util import register_pytree_node_class

_FIELDS = ("neff", "dataset", "weights", "covariance", "inv_cov")


@register_pytree_node_class
@final
class gaussian_kde:
    """The density of which `dataset` is a sample: one number a column of each of its rows, or a row of numbers.

    `weights`: how much each column counts. `bw_method`: by what the spread of the sample is multiplied to be that of a
    bump: "scott" (as is None), "silverman", a number, or a function of this object.

    >>> f"{jax.scipy.stats.gaussian_kde(jnp.array([1.0, 2.0, 4.0])).evaluate(2.0)[0]:.4f}"
    '0.2149'
    """

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    def __init__(
        self, dataset: Any, bw_method: str | float | Callable[[Any], Any] | None = None, weights: Any = None
    ) -> None:
        if type_of(dataset, "gaussian_kde").dtype.kind == "c":
            raise NotImplementedError("gaussian_kde: complex numbers have no density here")
        data = jnp.atleast_2d(dataset)
        self.dataset = data if jnp.issubdtype(data.dtype, jnp.inexact) else data.astype(jnp.float_)
        if self.n < 2:
            raise ValueError(f"gaussian_kde: needs several columns, not {type_of(dataset)}")
        if weights is None:
            self.weights = jnp.full(self.n, 1 / self.n, self.dataset.dtype)
        else:
            given = jnp.asarray(weights, self.dataset.dtype)
            if given.shape != (self.n,):
                raise ValueError(f"gaussian_kde: needs a weight for each of {self.n} columns, not {given.type}")
            self.weights = given / jnp.sum(given)
        self.neff = 1 / jnp.sum(self.weights * self.weights)
        spread = jnp.atleast_2d(jnp.cov(self.dataset, aweights=self.weights))
        factor = self._factor(bw_method)
        self.covariance = spread * factor**2
        self.inv_cov = jnp.linalg.inv(spread) / factor**2

    def _factor(self, method: Any) -> Any:
        if method is None or method == "scott":
            return jnp.power(self.neff, -1 / (self.d + 4))
        if method == "silverman":
            return jnp.power(self.neff * (self.d + 2) / 4, -1 / (self.d + 4))
        if callable(method):
            return method(self)
        if isinstance(method, str):
            raise ValueError(f"gaussian_kde: bw_method must be scott, silverman, a number or a function: {method!r}")
        return method

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(self, name) for name in _FIELDS), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> "gaussian_kde":
        made = object.__new__(cls)
        for name, child in zip(_FIELDS, children, strict=True):
            setattr(made, name, child)
        return made

    def __repr__(self) -> str:
        return f"gaussian_kde({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"

    @property
    def d(self) -> int:
        """How many numbers a point has."""
        return int(self.dataset.shape[0])

    @property
    def n(self) -> int:
        """How many points the sample has."""
        return int(self.dataset.shape[1])

    def evaluate(self, points: Any) -> Any:
        """The density at each of `points`, which are columns."""
        return jnp.exp(self.logpdf(points))

    __call__ = evaluate

    def pdf(self, x: Any) -> Any:
        """The density at each column of `x`."""
        return self.evaluate(x)

    def logpdf(self, x: Any) -> Any:
        """The logarithm of the density at each column of `x`."""
        points = jnp.atleast_2d(jnp.asarray(x, self.dataset.dtype))
        if points.shape[0] != self.d and points.shape == (1, self.d):  # one point, in a row
            points = points.T
        if points.shape[0] != self.d:
            raise ValueError(f"gaussian_kde: points have {points.shape[0]} numbers each, the sample {self.d}")
        return self._log_bumps(points, self.dataset, self.covariance, self.weights)

    @staticmethod
    def _log_bumps(points: Any, centers: Any, covariance: Any, weights: Any) -> Any:
        """The logarithm, at each point, of the sum of bumps."""
        factor = jnp.linalg.cholesky(covariance)
        here, there = (linalg.solve_triangular(factor, columns, lower=True) for columns in (points, centers))
        apart = here[:, :, None] - there[:, None, :]
        height = 0.5 * len(here) * math.log(2 * math.pi) + jnp.sum(jnp.log(jnp.diagonal(factor)))
        return special.logsumexp(-0.5 * jnp.sum(apart * apart, axis=0) - height, axis=1, b=weights)

    def integrate_gaussian(self, mean: Any, cov: Any) -> Any:
        """The integral of the density times that of a normal distribution."""
        center, spread = jnp.atleast_1d(jnp.squeeze(mean)), jnp.atleast_2d(cov)
        if center.shape != (self.d,):
            raise ValueError(f"gaussian_kde: the mean must have {self.d} numbers, not {center.type}")
        if spread.shape != (self.d, self.d):
            raise ValueError(f"gaussian_kde: the covariance must be a matrix of size {self.d}, not {spread.type}")
        logs = multivariate_normal.logpdf(self.dataset.T, center, self.covariance + spread)
        return jnp.sum(self.weights * jnp.exp(logs))

    def integrate_box_1d(self, low: Any, high: Any) -> Any:
        """The share between two numbers, of a density of numbers."""
        if self.d != 1:
            raise ValueError(f"gaussian_kde: integrate_box_1d is for points of one number, not of {self.d}")
        if jnp.ndim(low) or jnp.ndim(high):
            raise ValueError("gaussian_kde: the bounds of integrate_box_1d are two numbers")
        width = jnp.sqrt(self.covariance[0, 0])
        shares = [special.ndtr((bound - self.dataset[0]) / width) for bound in (low, high)]
        return jnp.sum(self.weights * (shares[1] - shares[0]))

    def integrate_kde(self, other: "gaussian_kde") -> Any:
        """The integral of the product of two densities."""
        if other.d != self.d:
            raise ValueError(f"gaussian_kde: the other's points have {other.d} numbers, these {self.d}")
        spread = self.covariance + other.covariance
        return jnp.sum(other.weights * jnp.exp(self._log_bumps(other.dataset, self.dataset, spread, self.weights)))

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """So many points drawn from the density, as columns."""
        for_place, for_noise = random.split(key)
        places = random.choice(for_place, self.n, shape=shape, replace=True, p=self.weights)
        noise = random.multivariate_normal(
            for_noise, jnp.zeros(self.d, self.covariance.dtype), self.covariance, shape=shape, dtype=self.dataset.dtype
        )
        return jnp.moveaxis(noise, -1, 0) + self.dataset[:, places]

    def integrate_box(self, low_bounds: Any, high_bounds: Any, maxpts: Any = None) -> NoReturn:
        """Only of numbers: see `integrate_box_1d`."""
        raise NotImplementedError("gaussian_kde: boxes of more than one dim are not here; use `integrate_box_1d`")

    def set_bandwidth(self, bw_method: Any = None) -> NoReturn:
        """An object does not change: make another."""
        raise NotImplementedError("gaussian_kde: an object does not change; make another with this bw_method")

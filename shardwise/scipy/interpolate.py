"""scipy.interpolate: interpolation of values on a rectangular grid."""

import itertools
from collections.abc import Sequence
from typing import Any, final

import shardwise.numpy as jnp
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike


@final
class RegularGridInterpolator:
    """Interpolation of values on a rectangular grid, whose points need not be equidistant.

    The interpolator is a pytree. Its results are differentiable with respect to the values and, with the method
    "linear", to the positions.

    Args:
        points: one ascending vector for each axis of the grid.
        values: the values on the grid. Further axes are axes of the results.
        method: "linear" or "nearest".
        bounds_error: False; an error for positions outside is not supported.
        fill_value: the result outside of the grid; None extrapolates.

    Raises:
        ValueError: if `method` is unknown, or the points do not fit to the values.
        NotImplementedError: if `bounds_error` is true.

    Example:
        >>> points, values = (jnp.array([0.0, 1.0, 3.0]),), jnp.array([0.0, 10.0, 30.0])
        >>> jax.scipy.interpolate.RegularGridInterpolator(points, values)(jnp.array([[0.5], [2.0], [4.0]]))
        Array([ 5., 20., nan], dtype=float32)
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: float | None = float("nan"),
    ) -> None:
        if method not in ("linear", "nearest"):
            raise ValueError(f"RegularGridInterpolator: method must be 'linear' or 'nearest', not {method!r}")
        if bounds_error:
            raise NotImplementedError("RegularGridInterpolator: bounds_error is not supported; use fill_value")
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value
        self.grid = tuple(as_inexact(vector, "RegularGridInterpolator") for vector in points)
        self.values = as_inexact(values, "RegularGridInterpolator")
        sizes = tuple(vector.shape for vector in self.grid)
        if len(sizes) > self.values.ndim or any(
            (n,) != size for n, size in zip(self.values.shape, sizes, strict=False)
        ):
            raise ValueError(
                f"RegularGridInterpolator: points of shapes {sizes} do not fit to values of shape {self.values.shape}"
            )

    def __call__(self, xi: ArrayLike, method: str | None = None) -> Array:
        """Interpolate at positions.

        Args:
            xi: an array whose last axis has the position along each axis of the grid, or a tuple of arrays, one for
                each axis.
            method: "linear" or "nearest"; that of the interpolator if None.

        Returns:
            The values, of the shape of the positions and of the further axes of the grid's values.

        Raises:
            ValueError: if `method` is unknown, or the positions do not have one coordinate for each axis.
        """
        method = self.method if method is None else method
        if method not in ("linear", "nearest"):
            raise ValueError(f"RegularGridInterpolator: method must be 'linear' or 'nearest', not {method!r}")
        positions = jnp.stack(jnp.broadcast_arrays(*xi), axis=-1) if isinstance(xi, tuple) else as_inexact(xi, "xi")
        rank = len(self.grid)
        if not positions.ndim or positions.shape[-1] != rank:
            raise ValueError(
                f"RegularGridInterpolator: positions need a last axis of {rank} coordinates, not the shape "
                f"{positions.shape}"
            )
        cells = [_cell(vector, positions[..., axis]) for axis, vector in enumerate(self.grid)]
        further = (1,) * (self.values.ndim - rank)

        def expand(x: Array) -> Any:
            return x.reshape(x.shape + further)

        if method == "nearest":
            result = self.values[tuple(jnp.where(weight <= 0.5, index, index + 1) for index, weight in cells)]
        else:
            result = jnp.zeros((), self.values.dtype)
            for corner in itertools.product((0, 1), repeat=rank):
                value = self.values[tuple(index + side for (index, _), side in zip(cells, corner, strict=True))]
                for (_, weight), side in zip(cells, corner, strict=True):
                    value = value * expand(weight if side else 1 - weight)
                result = result + value
        if self.fill_value is None:
            return result
        is_outside = jnp.any(
            jnp.stack(
                [(positions[..., axis] < v[0]) | (positions[..., axis] > v[-1]) for axis, v in enumerate(self.grid)]
            ),
            axis=0,
        )
        return jnp.where(expand(is_outside), self.fill_value, result)


def _cell(vector: Array, position: Array) -> tuple[Any, Any]:
    """Return the index of the grid point below a position, and the position in the cell, from 0 to 1."""
    if vector.size == 1:
        return jnp.zeros(position.shape, jnp.int32), jnp.zeros_like(position)
    index = jnp.clip(jnp.searchsorted(vector, position) - 1, 0, vector.size - 2)
    return index, (position - vector[index]) / (vector[index + 1] - vector[index])


def _unflatten(static: Any, children: Any) -> RegularGridInterpolator:
    result = object.__new__(RegularGridInterpolator)
    result.method, result.bounds_error, result.fill_value = static
    result.grid, result.values = children
    return result


register_pytree_node(
    RegularGridInterpolator, lambda x: ((x.grid, x.values), (x.method, x.bounds_error, x.fill_value)), _unflatten
)

publish(__name__)

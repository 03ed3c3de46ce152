"""scipy.ndimage: interpolation of an array at any coordinates."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand
from shardwise.typing import ArrayLike


def map_coordinates(
    input: ArrayLike, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: float = 0.0
) -> Array:
    """Interpolate an array at coordinates, each an array of positions along one dim.

    The result is differentiable with respect to the array and, with `order` 1, to the coordinates.

    Args:
        input: the array.
        coordinates: one array of positions for each dim of `input`. They are broadcast.
        order: 0 for the nearest element, 1 for linear interpolation.
        mode: how the array continues outside: "constant" with `cval`, "nearest" with its border, "wrap" periodically,
            "mirror" reflected about the centers of the border elements, or "reflect" about their edges.
        cval: the value outside, with the mode "constant".

    Returns:
        The values, of the shape of the coordinates and the dtype of `input`.

    Raises:
        ValueError: if there is not one array of coordinates for each dim.
        NotImplementedError: if `order` or `mode` is not supported.

    Example:
        >>> jax.scipy.ndimage.map_coordinates(jnp.array([0.0, 10.0, 20.0]), [jnp.array([0.5, 2.0])], order=1)
        Array([ 5., 20.], dtype=float32)
    """
    x = as_operand(input, "map_coordinates")
    positions = [as_inexact(position, "map_coordinates") for position in coordinates]
    if len(positions) != x.ndim:
        raise ValueError(
            f"map_coordinates: an array of rank {x.ndim} needs {x.ndim} arrays of coordinates, not {len(positions)}"
        )
    if mode not in _CONTINUATIONS:
        raise NotImplementedError(
            f"map_coordinates: mode {mode!r} is not supported; the modes are {', '.join(_CONTINUATIONS)}"
        )
    if order not in (0, 1):
        raise NotImplementedError(f"map_coordinates: order must be 0 or 1, not {order}")
    neighbours = [(_nearest if order == 0 else _linear)(position) for position in positions]
    total = None
    for corner in itertools.product(*neighbours):
        indices = [_CONTINUATIONS[mode](index, size) for (index, _), size in zip(corner, x.shape, strict=True)]
        values = x[tuple(indices)]
        if mode == "constant":
            is_inside = [(index >= 0) & (index < size) for (index, _), size in zip(corner, x.shape, strict=True)]
            for condition in is_inside:
                values = jnp.where(condition, values, jnp.asarray(cval, x.dtype))
        for _, weight in corner:
            values = values if weight is None else values * weight
        total = values if total is None else total + values
    result = x if total is None else total
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(result.dtype, jnp.floating):
        result = lax.round(result)
    return result.astype(x.dtype)


def _nearest(position: Array) -> list[tuple[Any, Any]]:
    """Return the nearest index; half-way, the one away from zero."""
    return [(lax.round(position).astype(jnp.int32), None)]


def _linear(position: Array) -> list[tuple[Any, Any]]:
    """Return the indices below and above a position, with their weights."""
    lower = jnp.floor(position)
    weight = position - lower
    index = lower.astype(jnp.int32)
    return [(index, 1 - weight), (index + 1, weight)]


def _mirror(index: Array, size: int) -> Any:
    """Reflect an index about the centers of the first and last element."""
    period = max(2 * (size - 1), 1)
    return jnp.abs((index + size - 1) % period - (size - 1))


def _reflect(index: Array, size: int) -> Any:
    """Reflect an index about the outer edges of the first and last element."""
    folded = index % (2 * size)
    return jnp.minimum(folded, 2 * size - 1 - folded)


_CONTINUATIONS: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda index, size: jnp.clip(index, 0, size - 1),
    "nearest": lambda index, size: jnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": _reflect,
}

publish(__name__)

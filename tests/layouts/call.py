"""One call of a public function for the sweep over layouts, and the arrays that it is given.

A table gives calls for a size: `n` rows and `n` columns, which the mesh divides evenly or does not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True)
class Call:
    """`function(*arrays)`, which shows the public function `name`. Without arrays, what it makes is cut."""

    name: str
    function: Callable[..., Any]
    arrays: tuple[np.ndarray[Any, Any], ...] = ()
    exact: bool = False  # floats to the bit, as integers and booleans are everywhere
    rtol: float = 1e-5
    atol: float = 1e-6
    compiled: bool = True  # else called as it is: the shape of its result hangs on values, or it is no array

    def __str__(self) -> str:
        return self.name


def call(name: str, function: Callable[..., Any], *arrays: Any, **options: Any) -> Call:
    return Call(name, function, arrays, **options)


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def inside(*shape: int, seed: int = 1) -> Any:
    """Between 0 and 1, without these."""
    return np.random.default_rng((seed, *shape)).uniform(0.05, 0.95, shape).astype(np.float32)


def above(*shape: int, seed: int = 2) -> Any:
    """More than 1."""
    return inside(*shape, seed=seed) * np.float32(3) + np.float32(1)


def integers(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32, seed: int = 3) -> Any:
    return np.random.default_rng((seed, *shape)).integers(low, high, shape).astype(dtype)


def complexes(*shape: int, seed: int = 4) -> Any:
    return (floats(*shape, seed=seed) + 1j * floats(*shape, seed=seed + 1)).astype(np.complex64)


def with_holes(*shape: int, seed: int = 5) -> Any:
    """Some are no numbers, but never a whole row or column."""
    x = floats(*shape, seed=seed)
    rows, columns = np.indices(shape[-2:])
    return np.where((rows + 2 * columns) % 5 == 1, np.float32(np.nan), x)


def symmetric(*shape: int, seed: int = 6) -> Any:
    """Positive definite, with eigenvalues far from each other."""
    turned = np.linalg.qr(np.random.default_rng((seed, *shape)).normal(size=shape))[0]
    values = np.arange(1, shape[-1] + 1) ** 1.5
    return ((turned * values) @ np.swapaxes(turned, -1, -2)).astype(np.float32)


def dominant(*shape: int, seed: int = 7) -> Any:
    """Far from singular."""
    return floats(*shape, seed=seed) + np.float32(shape[-1]) * np.eye(shape[-1], dtype=np.float32)

"""Call: a call of a public function, to be compared on several layouts; and the arrays for its arguments.

The families of the `*_calls` modules yield calls on arrays of `n` rows and columns, which the mesh divides evenly or
not.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np

from shardwise.base.lazy import stub_names


@final
@dataclass(frozen=True)
class Call:
    """`function(*arrays)`, which calls the public function `name`. Without arrays, the results are sharded."""

    name: str
    function: Callable[..., Any]
    arrays: tuple[np.ndarray[Any, Any], ...] = ()
    exact: bool = False  # floats must be equal bit by bit, as integers and booleans always must
    rtol: float = 1e-5
    atol: float = 1e-6
    compiled: bool = True  # False: called eagerly, since its result is not an array or its shape depends on values

    def __str__(self) -> str:
        return self.name


def functions_with(namespace: ModuleType, module: str, arguments: int) -> list[str]:
    """Return the names in `namespace` of functions that `module` defines and that need this number of arguments."""
    assert namespace.__file__ is not None
    homes = stub_names(Path(namespace.__file__).with_suffix(".pyi").read_text())
    functions = {name: getattr(namespace, name) for name, (home, _) in homes.items() if home == module}
    return [
        name
        for name, function in functions.items()
        if not isinstance(function, type) and _needed_arguments(function) == arguments
    ]


def _needed_arguments(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def call(name: str, function: Callable[..., Any], *arrays: Any, **options: Any) -> Call:
    return Call(name, function, arrays, **options)


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def probabilities(*shape: int, seed: int = 1) -> Any:
    """Return numbers in the open interval (0, 1)."""
    return np.random.default_rng((seed, *shape)).uniform(0.05, 0.95, shape).astype(np.float32)


def above_one(*shape: int, seed: int = 2) -> Any:
    """Return numbers greater than 1."""
    return probabilities(*shape, seed=seed) * np.float32(3) + np.float32(1)


def integers(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32, seed: int = 3) -> Any:
    return np.random.default_rng((seed, *shape)).integers(low, high, shape).astype(dtype)


def complex_numbers(*shape: int, seed: int = 4) -> Any:
    return (floats(*shape, seed=seed) + 1j * floats(*shape, seed=seed + 1)).astype(np.complex64)


def with_nans(*shape: int, seed: int = 5) -> Any:
    """Return numbers and some NaN, but no row or column of NaN only."""
    x = floats(*shape, seed=seed)
    rows, columns = np.indices(shape[-2:])
    return np.where((rows + 2 * columns) % 5 == 1, np.float32(np.nan), x)


def positive_definite(*shape: int, seed: int = 6) -> Any:
    """Return positive definite matrices with well separated eigenvalues."""
    basis = np.linalg.qr(np.random.default_rng((seed, *shape)).normal(size=shape))[0]
    values = np.arange(1, shape[-1] + 1) ** 1.5
    return ((basis * values) @ np.swapaxes(basis, -1, -2)).astype(np.float32)


def well_conditioned(*shape: int, seed: int = 7) -> Any:
    """Return diagonally dominant matrices, which are far from singular."""
    return floats(*shape, seed=seed) + np.float32(shape[-1]) * np.eye(shape[-1], dtype=np.float32)

"""A check: compute something on the default device and compare it with a reference."""

from collections.abc import Callable
from typing import Any

import numpy as np

import shardwise as sw

TOLERANCE = 2e-3
Check = Callable[[], float]  # returns the relative error; raises AssertionError for any other failure


def relative_error(actual: Any, expected: Any) -> float:
    """Return the largest absolute difference, divided by the largest expected magnitude (at least 1)."""
    ours, reference = (
        np.asarray(x).astype(complex if np.iscomplexobj(np.asarray(expected)) else float) for x in (actual, expected)
    )
    assert ours.shape == reference.shape, f"shape {ours.shape}, expected {reference.shape}"
    if not reference.size:
        return 0.0
    assert (np.isnan(ours) == np.isnan(reference)).all(), "NaN in different positions"
    return float(np.nanmax(np.abs(ours - reference)) / max(1.0, np.nanmax(np.abs(reference))))


def like_cpu(function: Callable[..., Any], *args: Any) -> Check:
    """Check that `function`, compiled for the default device, returns what it returns when compiled for the CPU."""

    def check() -> float:
        cpu = sw.devices("cpu")[0]
        actual = sw.tree.leaves(sw.jit(function)(*args))
        expected = sw.tree.leaves(sw.jit(function)(*(sw.device_put(x, cpu) for x in args)))
        return max(relative_error(x, y) for x, y in zip(actual, expected, strict=True))

    return check

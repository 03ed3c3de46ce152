"""Tensors in files, of which blocks are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

Bounds = tuple[tuple[int, int], ...]  # the start and the stop along each dim


@final
@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        shape: its shape.
        read: returns the values within bounds.
    """

    shape: tuple[int, ...]
    read: Callable[[Bounds], np.ndarray[Any, Any]]

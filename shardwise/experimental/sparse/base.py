"""JAXSparse: the attributes and operators that all sparse formats share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from shardwise.compiler.arrays.methods import Array

if TYPE_CHECKING:
    from shardwise.experimental.sparse.bcoo import BCOO
    from shardwise.typing import ArrayLike


class JAXSparse(ABC):
    """Base class of sparse arrays. Every format is a pytree, whose leaves are the stored elements and their indices.

    Args:
        args: the arrays of the format.
        shape: the shape of the array.

    Attributes:
        data: the stored elements.
        shape: the shape of the array.

    Example:
        >>> isinstance(jax.experimental.sparse.eye(3), jax.experimental.sparse.JAXSparse)
        True
    """

    data: Any
    shape: tuple[int, ...]
    # numpy's operators leave operations with such an array to the methods of this class.
    __array_priority__ = 100
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    @abstractmethod
    def __init__(self, args: Any, *, shape: Sequence[int]) -> None: ...

    @abstractmethod
    def todense(self) -> Array:
        """Return the dense array."""

    @abstractmethod
    def transpose(self, axes: Sequence[int] | None = None) -> "JAXSparse":
        """Permute the axes; reverse them if `axes` is None."""

    @abstractmethod
    def to_bcoo(self) -> "BCOO":
        """Return the array in coordinate format, with elements in the same order."""

    @property
    @abstractmethod
    def nse(self) -> int:
        """The number of elements that are stored, per batch element."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def size(self) -> int:
        """The number of elements of the dense array."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def T(self) -> "JAXSparse":
        """The transpose."""
        return self.transpose()

    def block_until_ready(self) -> "JAXSparse":
        """Wait until the elements and indices are computed, and return the array."""
        for array in self._arrays:
            array.block_until_ready()
        return self

    @property
    @abstractmethod
    def _arrays(self) -> tuple[Any, ...]:
        """The arrays of the format: the leaves of the pytree."""

    def _layout_text(self) -> str:
        """Return what `repr` shows after `nse`."""
        return ""

    def __repr__(self) -> str:
        if not all(hasattr(array, "dtype") for array in self._arrays):  # pytrees may have any leaves
            return f"{type(self).__name__}({', '.join(map(repr, self._arrays))})"
        return f"{type(self).__name__}({self.dtype}{list(self.shape)}, nse={self.nse}{self._layout_text()})"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError(f"{type(self).__name__}: an array without dims cannot be iterated over")
        return iter([self[index] for index in range(self.shape[0])])

    def _unsupported(self, operation: str) -> NoReturn:
        name = type(self).__name__
        raise NotImplementedError(
            f"{name}: {operation} is not supported; `to_bcoo()` converts a {name} to BCOO, which supports more"
        )

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """Return the sum along axes, where the format supports it."""
        self._unsupported("sum")

    def __neg__(self) -> Any:
        self._unsupported("negation")

    def __pos__(self) -> Any:
        self._unsupported("unary plus")

    def __matmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("the matrix product")

    def __rmatmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("the matrix product from the left")

    def __mul__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("multiplication")

    def __rmul__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("multiplication")

    def __add__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("addition")

    def __radd__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("addition")

    def __sub__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("subtraction")

    def __rsub__(self, other: "ArrayLike | JAXSparse") -> Any:
        self._unsupported("subtraction")

    def __getitem__(self, item: Any) -> Any:
        self._unsupported("indexing")

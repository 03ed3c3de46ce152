"""AbstractArray: the type of an argument or a result of an exported function."""

from dataclasses import dataclass
from typing import Any, final

from shardwise.api.transformations.float0 import float0
from shardwise.base.symbolic_dim import Dim, is_symbolic_dim
from shardwise.compiler.dtypes import short_name
from shardwise.compiler.ir.types import ArrayType
from shardwise.errors import UnsupportedError


@final
@dataclass(frozen=True)
class AbstractArray:
    """A type that `ArrayType` cannot express in general: its dims may be symbolic, and its dtype may be float0.

    Attributes:
        shape: the sizes of the dims: integers, or symbolic dims.
        dtype: the element type.
    """

    shape: tuple[Dim, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether no dim is symbolic."""
        return not any(map(is_symbolic_dim, self.shape))

    def array_type(self) -> ArrayType:
        """Return the type of the arrays; float0 arrays are booleans in a program.

        Raises:
            UnsupportedError: if a dim is symbolic.
        """
        if not self.is_static:
            raise UnsupportedError(f"{self} has symbolic dims. Use it with concrete sizes.")
        return ArrayType(tuple(map(int, self.shape)), bool if self.dtype == float0 else self.dtype)

    def __str__(self) -> str:
        name = "float0" if self.dtype == float0 else short_name(self.dtype)
        return f"{name}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


def abstract_array(type: ArrayType) -> AbstractArray:
    """Return the type of an array without its sharding."""
    return AbstractArray(type.shape, type.dtype)

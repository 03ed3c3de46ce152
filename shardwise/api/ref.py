"""Ref: a mutable reference to an array, for code that updates in place.

A Ref holds its array as a Python object does: every function that reads or changes it must run, or be traced, together
with the one that created it. A Ref that was created outside of a traced function cannot be changed inside, except as an
argument of `jit` (see `ref_arguments.py`).
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.types import ArrayType, Typed


@final
@dataclass(frozen=True)
class AbstractRef:
    """The type of a Ref, `typeof(ref)`: the type of the array that it holds."""

    inner_aval: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner_aval.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner_aval.dtype

    def __str__(self) -> str:
        return f"Ref{{{self.inner_aval}}}"


@final
class Ref(Typed):
    """A mutable reference to an array, created by `new_ref`. `ref[...]` reads it; `ref[...] = x` changes it.

    Args:
        value: the array or number that it holds first.

    Raises:
        TypeError: if `value` is neither an array nor a number.

    Example:
        >>> ref = jax.new_ref(jnp.zeros(3))
        >>> ref[1] = 5.0
        >>> ref[...]
        Array([0., 5., 0.], dtype=float32)
    """

    reads_from_outside = 0  # by functions that are traced: such a trace must not be reused, since a Ref changes

    def __init__(self, value: Any):
        self._value = as_operand(value, "new_ref")
        self._frames = tuple(map(id, open_frames()))

    @property
    def type(self) -> ArrayType:  # type: ignore[override]
        return self._value.type

    def __getitem__(self, index: Any) -> Any:
        if self._is_outside():
            Ref.reads_from_outside += 1
        return self._value if index is Ellipsis else self._value[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._is_outside():
            raise NotImplementedError(
                f"a Ref of type {self.type} was created outside of the function that is being traced, and cannot be "
                "changed inside. Pass it to `jit` as an argument, or its array, `ref[...]`, and return the new one."
            )
        if index is Ellipsis and getattr(value, "type", None) is self.type and not isinstance(value, Ref):
            self._value = value
            return
        self._value = self._value.at[index].set(value)

    def _is_outside(self) -> bool:
        """Return whether another function is being traced than where the Ref was created."""
        return tuple(map(id, open_frames())) != self._frames

    def __repr__(self) -> str:
        return f"Ref({self._value!r})"


def new_ref(init_val: Any) -> Ref:
    """Create a mutable reference to an array.

    Args:
        init_val: the array or number that it holds first.

    Returns:
        The reference.

    Raises:
        TypeError: if `init_val` is neither an array nor a number.

    Example:
        >>> ref = jax.new_ref(jnp.ones(2))
        >>> ref[...] = ref[...] + 1
        >>> ref[...]
        Array([2., 2.], dtype=float32)
    """
    return Ref(init_val)

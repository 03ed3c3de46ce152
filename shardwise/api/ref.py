"""Ref: a mutable reference to an array, for code that updates in place.

A Ref holds its array as a Python object does. Inside a function that is being traced, a `RefScope` holds the values of
the Refs that were created outside: the transformation makes them inputs and results of the traced program, and changes
the Refs after a call. Transformations without a scope, such as `shard_map`, may read such Refs and not change them.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from shardwise import tree
from shardwise.api.ref_index import read_elements, write_elements
from shardwise.api.ref_view import RefTransform, RefViews, TransformedRef
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.trace.provenance import current_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, Index, SupportsShape

_T = TypeVar("_T")
_NOT_DIFFERENTIATED = "no_grad_no_remat"  # the kind of Refs whose values derivatives treat as constants


@final
@dataclass(frozen=True)
class AbstractRef:
    """The type of a Ref, `typeof(ref)`.

    Attributes:
        inner_aval: the type of the array that it holds.
        memory_space: the memory of the array; None, its device's own, for the Refs of `new_ref`.
        kind: the kind that `new_ref` was called with.

    Example:
        >>> jax.typeof(jax.new_ref(jnp.ones(2))).inner_aval
        f32[2]
    """

    inner_aval: ArrayType
    memory_space: Any = None
    kind: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner_aval.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner_aval.dtype

    def __str__(self) -> str:
        return f"Ref{{{self.inner_aval}}}"


@final
class Ref(RefViews):
    """A mutable reference to an array, created by `new_ref`. `ref[...]` reads it; `ref[...] = x` changes it.

    Args:
        value: the array or number that it holds first.
        kind: None, or "no_grad_no_remat": derivatives treat the values that are stored in it as constants.

    Raises:
        TypeError: if `value` is neither an array nor a number.

    Example:
        >>> ref = jax.new_ref(jnp.zeros(3))
        >>> ref[1] = 5.0
        >>> ref[...]
        Array([0., 5., 0.], dtype=float32)
    """

    def __init__(self, value: ArrayLike, kind: str | None = None):
        if isinstance(value, Ref):
            raise TypeError(f"new_ref: {value} is a Ref, and a Ref holds an array: pass `ref[...]`")
        self.kind = kind
        self._value = self._stored(as_operand(value, "new_ref"))
        self.type: ArrayType = self._value.type
        self._scope = _scopes.innermost
        self._frames = _frame_ids()
        self._freed = False
        self.is_argument = False  # whether it is an argument of the call that is being traced or run

    @property
    def weak_type(self) -> bool:
        return self.type.weak

    @property
    def aval(self) -> AbstractRef:
        """The type, under the name that JAX uses."""
        return AbstractRef(self.type, kind=self.kind)

    @property
    def sharding(self) -> Any:
        """The sharding of the array that it holds."""
        return self[...].sharding

    @property
    def committed(self) -> bool:
        """Whether the array that it holds is committed to its devices."""
        return self[...].committed

    @property
    def format(self) -> Any:
        """The layout in memory and the sharding of the array that it holds."""
        array: Any = self[...]
        return array.format

    def unsafe_buffer_pointer(self) -> int:
        """Return the memory address of the elements on the only device that holds them, until the Ref changes."""
        return self[...].unsafe_buffer_pointer()

    def __getitem__(self, index: Index) -> Array:
        value = self.value_in(_scopes.innermost)
        return value if index is Ellipsis else read_elements(value, index)

    def __setitem__(self, index: Index, value: ArrayLike) -> None:
        before = self.value_in(_scopes.innermost)
        is_replaced = index is Ellipsis and getattr(value, "type", None) is self.type and not isinstance(value, Ref)
        after = self._stored(value if is_replaced else match_type(write_elements(before, index, value), self.type))
        scope = _scopes.innermost
        if scope is not None and scope is not self._scope and scope.is_inside(self._scope):
            scope.write(self, after)
            return
        self._check_frames("changed")
        self._value = after

    def _stored(self, value: Any) -> Any:
        """Return the array to store for a value: without its derivatives, if the Ref is of that kind."""
        is_constant = self.kind == _NOT_DIFFERENTIATED and is_inexact(value.type.dtype)
        return StopGradient()(value) if is_constant else value

    def __jax_array__(self) -> Any:
        raise TypeError(f"a Ref of type {self.type} is not an array: read it with `ref[...]`")

    def addupdate(self, index: Index, value: ArrayLike) -> None:
        """Add `value` to the elements at `index`."""
        self[index] = self[index] + value

    def read_view(self, transforms: Sequence[RefTransform], index: Any) -> Any:
        """Return the elements at an index of a view."""
        value: Any = self[...]
        for transform in transforms:
            value = transform.read(value)
        return read_elements(value, index)

    def write_view(self, transforms: Sequence[RefTransform], index: Any, value: Any) -> None:
        """Change the elements at an index of a view."""
        arrays: list[Any] = [self[...]]
        for transform in transforms:
            arrays.append(transform.read(arrays[-1]))
        elements = write_elements(arrays[-1], index, value)
        for transform, array in zip(reversed(transforms), arrays[-2::-1], strict=True):
            elements = transform.write(array, elements)
        self[...] = elements

    def value_in(self, scope: "RefScope | None") -> Any:
        """Return the array that the Ref holds in a function that is being traced; None: outside of all."""
        if self._freed:
            raise ValueError(f"a Ref of type {self.type} is used after `freeze` or `free_ref`: create a new one")
        if self.is_argument:
            raise ValueError(
                f"a Ref of type {self.type} is both an argument of the function and closed over: use the argument"
            )
        if scope is None or scope is self._scope or not scope.is_inside(self._scope):
            return self._value
        return scope.read(self)

    def freeze(self) -> Any:
        """Return the array, and make the Ref unusable. Only where it was created."""
        value = self.value_in(self._scope)
        self._check_frames("frozen")
        self._freed = True
        return value

    def _check_frames(self, action: str) -> None:
        """Raise an error if another function is being traced than where the Ref was created."""
        if _frame_ids() != self._frames:
            raise _outside_error(self, action)

    def __repr__(self) -> str:
        return f"Ref({self._value!r})"


RefLike: TypeAlias = Ref | TransformedRef


@final
class _HiddenRef:
    """A Ref as a pytree node without children."""

    def __init__(self, ref: Ref):
        self.ref = ref


register_pytree_node(_HiddenRef, lambda node: ((), node.ref), lambda ref, _: ref)


def hide_refs(x: _T) -> _T:
    """Return a pytree whose Refs belong to its structure: a function closes over them. Unflattening restores them."""
    leaves, structure = tree.flatten(x)
    if not any(isinstance(leaf, Ref) for leaf in leaves):
        return x
    return structure.unflatten([_HiddenRef(leaf) if isinstance(leaf, Ref) else leaf for leaf in leaves])


def _frame_ids() -> tuple[int, ...]:
    return tuple(map(id, open_frames()))


def _outside_error(ref: Ref, action: str, advice: str = "") -> NotImplementedError:
    return NotImplementedError(
        f"a Ref of type {ref.type} was created outside of the function that is being traced, and cannot be {action} "
        f"inside. {advice or 'Pass its array, `ref[...]`, as an argument, and return the new one.'}"
    )


@final
class RefScope:
    """The values of outer Refs inside a function that is being traced, in a `with` block.

    Args:
        as_inputs: whether Refs are inputs of the program that is being traced, so that it can be called again when
            they have changed.
        read_only: what to do instead of changing outer Refs, for the error; empty if the function may change them.

    Attributes:
        values: the value of each Ref that the function has read or changed.
        written: the Refs that it has changed.
    """

    def __init__(self, as_inputs: bool = False, read_only: str = ""):
        self.as_inputs = as_inputs
        self.read_only = read_only
        self.values: dict[Ref, Any] = {}
        self.written: list[Ref] = []

    def __enter__(self) -> "RefScope":
        self._outer = _scopes.innermost
        self._frame: Any = open_frames()[-1]
        _scopes.innermost = self
        return self

    def __exit__(self, *_: object) -> None:
        _scopes.innermost = self._outer

    def is_inside(self, other: "RefScope | None") -> bool:
        """Return whether this scope is nested in another one, directly or not."""
        outer = self._outer
        while outer is not None and outer is not other:
            outer = outer._outer
        return outer is other

    def read(self, ref: Ref) -> Any:
        """Return the value of an outer Ref."""
        if ref not in self.values:
            outer = ref.value_in(self._outer)
            if self.as_inputs:
                outer = Tracer(self._frame, self._frame.lift(ref), None, current_source())
            self.values[ref] = outer
        return self.values[ref]

    def write(self, ref: Ref, value: Array) -> None:
        """Set the value of an outer Ref that was read."""
        if self.read_only or open_frames()[-1] is not self._frame:
            raise _outside_error(ref, "changed", self.read_only)
        self.values[ref] = value
        if ref not in self.written:
            self.written.append(ref)

    @property
    def written_values(self) -> list[Any]:
        """The values of the Refs that the function has changed."""
        return [self.values[ref] for ref in self.written]


class _Scopes(threading.local):
    innermost: RefScope | None = None


_scopes = _Scopes()


def current_values(captured: Iterable[Any]) -> list[Any]:
    """Return the values that a traced program captures, with Refs replaced by the arrays that they hold now."""
    return [x[...] if isinstance(x, Ref) else x for x in captured]


def set_refs(refs: Iterable[Ref], values: Iterable[ArrayLike]) -> None:
    """Set Refs to the arrays that a traced program has computed for them."""
    for ref, value in zip(refs, values, strict=True):
        ref[...] = value


_NEW_REF = Family(
    {"memory_space": Parameter("must be None.", "NotImplementedError: if {} is not None.")}, returns="The reference."
)
_REF = Family(
    {
        "ref": Parameter("a Ref.", "TypeError: if {} is not a Ref."),
        "idx": "an index, as of an array; None for all elements.",
    },
)
_OWN_REF = _REF.extended(
    {"ref": Parameter("a Ref, in the function that created it.", "TypeError: if {} is not a Ref.")},
    raises=[
        "NotImplementedError: if another function is being traced than where the Ref was created.",
        "ValueError: if the Ref was frozen before.",
    ],
)


@documented(
    _NEW_REF,
    raises=["TypeError: if `init_val` is neither an array nor a number.", "ValueError: if `kind` is unknown."],
)
def new_ref(init_val: ArrayLike, *, memory_space: object = None, kind: str | None = None) -> Ref:
    """Create a mutable reference to an array.

    Args:
        init_val: the array or number that it holds first.
        kind: None, or "no_grad_no_remat": derivatives treat the values that are stored in it as constants.

    Example:
        >>> ref = jax.new_ref(jnp.ones(2))
        >>> ref[...] = ref[...] + 1
        >>> ref[...]
        Array([2., 2.], dtype=float32)
    """
    if memory_space is not None:
        raise NotImplementedError("new_ref: memory_space is not supported: use `device_put` with a memory kind")
    if kind not in (None, _NOT_DIFFERENTIATED):
        raise ValueError(f"new_ref: kind must be None or {_NOT_DIFFERENTIATED!r}, not {kind!r}")
    return Ref(init_val, kind)


@documented(_NEW_REF)
def empty_ref(ty: SupportsShape, memory_space: object = None) -> Ref:
    """Create a mutable reference to an array of zeros.

    Args:
        ty: a type or `ShapeDtypeStruct`, with the shape and dtype of the array.

    Example:
        >>> jax.ref.empty_ref(jax.ShapeDtypeStruct((2,), jnp.float32))[...]
        Array([0., 0.], dtype=float32)
    """
    type = ty if isinstance(ty, ArrayType) else ArrayType(tuple(ty.shape), np.dtype(ty.dtype))
    return new_ref(zeros_of(type), memory_space=memory_space)


@documented(_OWN_REF, returns="The array.")
def freeze(ref: Ref) -> Any:
    """Return the array that a Ref holds, and make the Ref unusable.

    Example:
        >>> ref = jax.new_ref(jnp.ones(2))
        >>> jax.freeze(ref)
        Array([1., 1.], dtype=float32)
    """
    return _checked_own("freeze", ref).freeze()


@documented(_OWN_REF)
def free_ref(ref: Ref) -> None:
    """Make a Ref unusable.

    Example:
        >>> jax.ref.free_ref(jax.new_ref(jnp.ones(2)))
    """
    _checked_own("free_ref", ref).freeze()


@documented(_REF, returns="The elements.")
def get(ref: Ref, idx: Index = None) -> Any:
    """Return `ref[idx]`.

    Example:
        >>> jax.ref.get(jax.new_ref(jnp.arange(3)), 1)
        Array(1, dtype=int32)
    """
    return _checked("get", ref)[_all_if_none(idx)]


@documented(_REF, returns="The elements before.")
def swap(ref: Ref, idx: Index, value: ArrayLike, _function_name: str = "ref_swap") -> Any:
    """Set `ref[idx]`, and return what it held before.

    Args:
        value: the new elements.
        _function_name: the name of the calling function, for errors.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> jax.ref.swap(ref, 1, 10), ref[...]
        (Array(1, dtype=int32), Array([ 0, 10,  2], dtype=int32))
    """
    index = _all_if_none(idx)
    before = _checked(_function_name, ref)[index]
    ref[index] = value
    return before


@documented(_REF)
def set(ref: Ref, idx: Index, value: ArrayLike) -> None:
    """Set `ref[idx]`.

    Args:
        value: the new elements.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> jax.ref.set(ref, 1, 10)
        >>> ref[...]
        Array([ 0, 10,  2], dtype=int32)
    """
    _checked("set", ref)[_all_if_none(idx)] = value


@documented(_REF)
def addupdate(ref: Ref, idx: Index, x: ArrayLike) -> None:
    """Add to `ref[idx]`.

    Args:
        x: what to add.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> jax.ref.addupdate(ref, 1, 10)
        >>> ref[...]
        Array([ 0, 11,  2], dtype=int32)
    """
    _checked("addupdate", ref).addupdate(_all_if_none(idx), x)


def _all_if_none(index: Index) -> Index:
    """Return an index of a Ref, for which JAX's functions write None if they mean all elements."""
    return ... if index is None else index


def _checked(name: str, ref: object) -> Any:
    if not isinstance(ref, (Ref, TransformedRef)):
        raise TypeError(f"{name}: expected a Ref, which `new_ref` creates, not {ref!r}")
    return ref


def _checked_own(name: str, ref: object) -> Ref:
    if not isinstance(ref, Ref):
        raise TypeError(f"{name}: expected a Ref, which `new_ref` creates, not {ref!r}")
    return ref

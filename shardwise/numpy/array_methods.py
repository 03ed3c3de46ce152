"""Methods of arrays that functions of `shardwise.numpy` implement: `x.sum(axis=0)` is `numpy.sum(x, axis=0)`.

`shardwise/__init__.py` attaches them to `NamespaceMethods`, a base class of arrays and tracers in a layer below. Type
checkers find them through the stub of that class.
"""

from collections.abc import Sequence
from typing import Any

from shardwise import numpy
from shardwise.compiler.arrays.argument_types import ArrayLike, Axes, NamedAxes, Shape
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.namespace import NamespaceMethods
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.types import Typed
from shardwise.numpy.at_update import IndexUpdateHelper

VERSIONS = ("2024.12",)  # of the array API standard

jnp: Any = numpy  # not typed: the functions accept an `Array`, and `ArrayMethods` is only one of its base classes


class ArrayMethods(Typed):
    """Methods that forward to `shardwise.numpy`. Subclasses have a `type`."""

    __slots__ = ()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return the namespace of the array API standard."""
        if api_version not in (None, *VERSIONS):
            raise ValueError(f"array API version {api_version!r} is not supported; supported: {', '.join(VERSIONS)}")
        return jnp

    @property
    def T(self) -> Array:
        """The transpose: the array with its dims reversed."""
        return jnp.transpose(self)

    @property
    def mT(self) -> Array:
        """The matrix transpose: the array with its last two dims swapped."""
        return jnp.matrix_transpose(self)

    @property
    def real(self) -> Array:
        """The real part of each element."""
        return jnp.real(self)

    @property
    def imag(self) -> Array:
        """The imaginary part of each element."""
        return jnp.imag(self)

    @property
    def at(self) -> IndexUpdateHelper:
        """Functional updates: `x.at[index].set(values)` returns a copy of `x` with these elements replaced."""
        return IndexUpdateHelper(self)

    def all(
        self, axis: NamedAxes = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
    ) -> Array:
        """Return whether all elements along `axis` are nonzero."""
        return jnp.all(self, axis, out, keepdims, where=where)

    def any(
        self, axis: NamedAxes = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
    ) -> Array:
        """Return whether any element along `axis` is nonzero."""
        return jnp.any(self, axis, out, keepdims, where=where)

    def argmax(self, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
        """Return the index of the first maximum along `axis`."""
        return jnp.argmax(self, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
        """Return the index of the first minimum along `axis`."""
        return jnp.argmin(self, axis, out, keepdims)

    def argpartition(self, kth: int, axis: int = -1) -> Array:
        """Return the indices that partition the array along `axis` around its `kth` smallest element."""
        return jnp.argpartition(self, kth, axis)

    def argsort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Array:
        """Return the indices that sort the array along `axis`."""
        return jnp.argsort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def astype(self, dtype: DTypeLike, copy: bool = False, device: Any = None) -> Array:
        """Convert the array to `dtype`."""
        return jnp.astype(self, dtype, copy=copy, device=device)

    def choose(self, choices: Sequence[Any], out: None = None, mode: str = "raise") -> Array:
        """Build an array from `choices` with this array as the indices."""
        return jnp.choose(self, choices, out, mode)

    def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
        """Limit the elements to the range from `min` to `max`."""
        return jnp.clip(self, min, max)

    def compress(
        self,
        condition: ArrayLike,
        axis: int | None = None,
        *,
        out: None = None,
        size: int | None = None,
        fill_value: ArrayLike = 0,
    ) -> Array:
        """Select the elements along `axis` where the 1-d `condition` is true."""
        return jnp.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)

    def conj(self) -> Array:
        """Return the complex conjugate."""
        return jnp.conjugate(self)

    conjugate = conj

    def copy(self) -> Array:
        """Return a copy of the array."""
        return jnp.copy(self)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
        """Return the cumulative product along `axis`; of the flattened array if it is None."""
        return jnp.cumprod(self, axis, dtype, out)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Array:
        """Return the cumulative sum along `axis`; of the flattened array if it is None."""
        return jnp.cumsum(self, axis, dtype, out)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """Return the diagonal at `offset` of the matrices along two axes."""
        return jnp.diagonal(self, offset, axis1, axis2)

    def dot(self, b: ArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike | None = None) -> Array:
        """Return the dot product with `b`, by numpy's rules."""
        options = {"precision": precision, "preferred_element_type": preferred_element_type}
        return jnp.dot(self, b, **{name: x for name, x in options.items() if x is not None})

    def flatten(self, order: str = "C", *, out_sharding: Any = None) -> Array:
        """Flatten the array to one dim."""
        return jnp.ravel(self, order, out_sharding=out_sharding)

    def max(
        self,
        axis: NamedAxes = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """Return the maximum along `axis`."""
        return jnp.max(self, axis, out, keepdims, initial, where)

    def mean(
        self,
        axis: NamedAxes = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
    ) -> Array:
        """Return the mean along `axis`."""
        return jnp.mean(self, axis, dtype, out, keepdims, where=where)

    def min(
        self,
        axis: NamedAxes = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """Return the minimum along `axis`."""
        return jnp.min(self, axis, out, keepdims, initial, where)

    def nonzero(
        self, *, fill_value: ArrayLike | tuple[ArrayLike, ...] | None = None, size: int | None = None
    ) -> tuple[Array, ...]:
        """Return the indices of nonzero elements, one array per dim."""
        return jnp.nonzero(self, size=size, fill_value=fill_value)

    def prod(
        self,
        axis: Axes = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
        promote_integers: bool = True,
    ) -> Array:
        """Return the product along `axis`."""
        return jnp.prod(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def ptp(self, axis: Axes = None, out: None = None, keepdims: bool = False) -> Array:
        """Return the difference between the maximum and the minimum along `axis`."""
        return jnp.ptp(self, axis, out, keepdims)

    def ravel(self, order: str = "C", *, out_sharding: Any = None) -> Array:
        """Flatten the array to one dim."""
        return jnp.ravel(self, order, out_sharding=out_sharding)

    def repeat(
        self,
        repeats: ArrayLike,
        axis: int | None = None,
        *,
        total_repeat_length: int | None = None,
        out_sharding: Any = None,
    ) -> Array:
        """Repeat each element along `axis`."""
        return jnp.repeat(self, repeats, axis, total_repeat_length=total_repeat_length, out_sharding=out_sharding)

    def reshape(self, *args: Shape, order: str = "C", out_sharding: Any = None) -> Array:
        """Reshape the array: `x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        shape = args[0] if len(args) == 1 else args
        return jnp.reshape(self, shape, order, out_sharding=out_sharding)

    def round(self, decimals: int = 0, out: None = None) -> Array:
        """Round to `decimals` decimals."""
        return jnp.round(self, decimals, out)

    def searchsorted(
        self, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *, method: str = "scan"
    ) -> Array:
        """Return the indices at which to insert `v` into this sorted array."""
        return jnp.searchsorted(self, v, side, sorter, method=method)

    def sort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Array:
        """Sort the array along `axis`, NaN last."""
        return jnp.sort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def squeeze(self, axis: Axes = None) -> Array:
        """Remove dims of size 1: all of them, or those in `axis`."""
        return jnp.squeeze(self, axis)

    def std(
        self,
        axis: NamedAxes = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
        correction: float | None = None,
    ) -> Array:
        """Return the standard deviation along `axis`."""
        return jnp.std(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)

    def sum(
        self,
        axis: NamedAxes = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
        promote_integers: bool = True,
    ) -> Array:
        """Return the sum along `axis`."""
        return jnp.sum(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Swap two dims."""
        return jnp.swapaxes(self, axis1, axis2)

    def take(
        self,
        indices: ArrayLike,
        axis: int | None = None,
        out: None = None,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
        fill_value: ArrayLike | None = None,
    ) -> Array:
        """Return the elements at `indices` along `axis`."""
        return jnp.take(self, indices, axis, out, mode, unique_indices, indices_are_sorted, fill_value)

    def trace(
        self, offset: ArrayLike = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None, out: None = None
    ) -> Array:
        """Return the sum of the diagonal at `offset` of the matrices along two axes."""
        return jnp.trace(self, offset, axis1, axis2, dtype, out)

    def transpose(self, *args: int | Sequence[int] | None) -> Array:
        """Permute the dims to the given order; reverse them if there is none."""
        order = args[0] if len(args) == 1 and not isinstance(args[0], int) else args or None
        return jnp.transpose(self, order)

    def var(
        self,
        axis: NamedAxes = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: ArrayLike | None = None,
        correction: float | None = None,
    ) -> Array:
        """Return the variance along `axis`."""
        return jnp.var(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)


def attach_array_methods() -> None:
    """Give arrays and tracers the methods of `ArrayMethods`."""
    for name in vars(ArrayMethods).keys() - vars(NamespaceMethods).keys():
        setattr(NamespaceMethods, name, vars(ArrayMethods)[name])

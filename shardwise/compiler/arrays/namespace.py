"""The methods of arrays that are functions of the namespace: `x.sum(axis=0)` is `numpy.sum(x, axis=0)`.

`shardwise.numpy` stands above this layer and installs itself; see `ir/dispatch.py`.
"""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.types import Typed

VERSIONS = ("2024.12",)  # of the array API standard


class NamespaceMethods(Typed):
    """Named methods; a subclass has `type`."""

    __slots__ = ()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module of array functions, by the array API standard."""
        if api_version not in (None, *VERSIONS):
            raise ValueError(f"version {api_version!r} of the array API is not here; versions: {', '.join(VERSIONS)}")
        return installed.namespace

    @property
    def itemsize(self) -> int:
        """How many bytes an element has."""
        return int(self.type.dtype.itemsize)

    @property
    def T(self) -> Any:
        """The array with its dims reversed."""
        return installed.namespace.transpose(self)

    @property
    def mT(self) -> Any:
        """The array with its last two dims in each other's place."""
        return installed.namespace.matrix_transpose(self)

    @property
    def real(self) -> Any:
        """The real part of each element."""
        return installed.namespace.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part of each element."""
        return installed.namespace.imag(self)

    @property
    def flat(self) -> Any:
        """Not here: an array is not written to through an iterator."""
        raise NotImplementedError("arrays have no `flat`: take all elements in a row with `x.flatten()`")

    def all(self, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        """Whether all elements along `axis` differ from 0."""
        return installed.namespace.all(self, axis, out, keepdims, where=where)

    def any(self, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
        """Whether any element along `axis` differs from 0."""
        return installed.namespace.any(self, axis, out, keepdims, where=where)

    def argmax(self, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
        """Where the first of the largest elements along `axis` is."""
        return installed.namespace.argmax(self, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
        """Where the first of the smallest elements along `axis` is."""
        return installed.namespace.argmin(self, axis, out, keepdims)

    def argpartition(self, kth: int, axis: int = -1) -> Any:
        """Where along `axis` elements are taken from, so that none before place `kth` is larger than the one there."""
        return installed.namespace.argpartition(self, kth, axis)

    def argsort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Any:
        """Where the elements along `axis` would be taken from to be in order."""
        return installed.namespace.argsort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def astype(self, dtype: Any, copy: bool = False, device: Any = None) -> Any:
        """The array with elements of `dtype`."""
        return installed.namespace.astype(self, dtype, copy=copy, device=device)

    def choose(self, choices: Sequence[Any], out: None = None, mode: str = "raise") -> Any:
        """Of several arrays the elements of the one whose number this array has."""
        return installed.namespace.choose(self, choices, out, mode)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """The elements, but no less than `min` and no more than `max`."""
        return installed.namespace.clip(self, min, max)

    def compress(
        self,
        condition: Any,
        axis: int | None = None,
        *,
        out: None = None,
        size: int | None = None,
        fill_value: Any = 0,
    ) -> Any:
        """The elements along `axis` at which the row `condition` holds."""
        return installed.namespace.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)

    def conj(self) -> Any:
        """Each element with its imaginary part negated."""
        return installed.namespace.conjugate(self)

    conjugate = conj

    def copy(self) -> Any:
        """The array in memory of its own."""
        return installed.namespace.copy(self)

    def cumprod(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        """The products of the elements up to each along `axis`; without one, of the flattened array."""
        return installed.namespace.cumprod(self, axis, dtype, out)

    def cumsum(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        """The sums of the elements up to each along `axis`; without one, of the flattened array."""
        return installed.namespace.cumsum(self, axis, dtype, out)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The diagonal `offset` of the matrices along two axes."""
        return installed.namespace.diagonal(self, offset, axis1, axis2)

    def dot(self, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
        """numpy's dot."""
        options = {"precision": precision, "preferred_element_type": preferred_element_type}
        return installed.namespace.dot(self, b, **{name: x for name, x in options.items() if x is not None})

    def flatten(self, order: str = "C", *, out_sharding: Any = None) -> Any:
        """All elements in one row."""
        return installed.namespace.ravel(self, order, out_sharding=out_sharding)

    def max(
        self,
        axis: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """The largest element along `axis`."""
        return installed.namespace.max(self, axis, out, keepdims, initial, where)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
    ) -> Any:
        """The mean along `axis`."""
        return installed.namespace.mean(self, axis, dtype, out, keepdims, where=where)

    def min(
        self,
        axis: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """The smallest element along `axis`."""
        return installed.namespace.min(self, axis, out, keepdims, initial, where)

    def nonzero(self, *, fill_value: Any = None, size: int | None = None) -> tuple[Any, ...]:
        """Where elements differ from zero: for each dim, their indices along it."""
        return installed.namespace.nonzero(self, size=size, fill_value=fill_value)  # type: ignore[no-any-return]

    def prod(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
        promote_integers: bool = True,
    ) -> Any:
        """The product along `axis`."""
        return installed.namespace.prod(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def ptp(self, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
        """How far the largest element along `axis` is from the smallest."""
        return installed.namespace.ptp(self, axis, out, keepdims)

    def ravel(self, order: str = "C", *, out_sharding: Any = None) -> Any:
        """All elements in one row."""
        return installed.namespace.ravel(self, order, out_sharding=out_sharding)

    def repeat(
        self,
        repeats: Any,
        axis: int | None = None,
        *,
        total_repeat_length: int | None = None,
        out_sharding: Any = None,
    ) -> Any:
        """Each element along `axis` several times."""
        return installed.namespace.repeat(
            self, repeats, axis, total_repeat_length=total_repeat_length, out_sharding=out_sharding
        )

    def reshape(self, *args: Any, order: str = "C", out_sharding: Any = None) -> Any:
        """The same elements in another shape: `x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        shape = args[0] if len(args) == 1 else args
        return installed.namespace.reshape(self, shape, order, out_sharding=out_sharding)

    def round(self, decimals: int = 0, out: None = None) -> Any:
        """The nearest number of so many decimals."""
        return installed.namespace.round(self, decimals, out)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
        """Before which place of this sorted row each element of `v` belongs."""
        return installed.namespace.searchsorted(self, v, side, sorter, method=method)

    def sort(
        self,
        axis: int | None = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool = True,
        descending: bool = False,
    ) -> Any:
        """The elements along `axis` in order, NaN last."""
        return installed.namespace.sort(self, axis, kind=kind, order=order, stable=stable, descending=descending)

    def squeeze(self, axis: Any = None) -> Any:
        """The array without dims of size 1: all of them, or those that `axis` says."""
        return installed.namespace.squeeze(self, axis)

    def std(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: Any = None,
        correction: float | None = None,
    ) -> Any:
        """The standard deviation along `axis`."""
        return installed.namespace.std(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)

    def sum(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
        promote_integers: bool = True,
    ) -> Any:
        """The sum along `axis`."""
        return installed.namespace.sum(self, axis, dtype, out, keepdims, initial, where, promote_integers)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """The array with two dims in each other's place."""
        return installed.namespace.swapaxes(self, axis1, axis2)

    def take(
        self,
        indices: Any,
        axis: int | None = None,
        out: None = None,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
        fill_value: Any = None,
    ) -> Any:
        """The elements at `indices` along `axis`."""
        return installed.namespace.take(self, indices, axis, out, mode, unique_indices, indices_are_sorted, fill_value)

    def trace(self, offset: Any = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
        """The sum of the diagonal `offset` of the matrices along two axes."""
        return installed.namespace.trace(self, offset, axis1, axis2, dtype, out)

    def transpose(self, *args: Any) -> Any:
        """Dims in the order given; reversed where none is."""
        order = args[0] if len(args) == 1 and not isinstance(args[0], int) else args or None
        return installed.namespace.transpose(self, order)

    def var(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: int = 0,
        keepdims: bool = False,
        *,
        where: Any = None,
        correction: float | None = None,
    ) -> Any:
        """The variance along `axis`."""
        return installed.namespace.var(self, axis, dtype, out, ddof, keepdims, where=where, correction=correction)

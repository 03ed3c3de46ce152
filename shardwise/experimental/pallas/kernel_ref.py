"""KernelRef: a Ref to a block of an array in memory, while the body of a kernel is traced for a GPU.

Reads and writes are ops of the body, with the index of every dim; nothing holds the whole block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.ref import Ref
from shardwise.api.ref_index import expanded_index
from shardwise.api.ref_view import IndexTransform, RefTransform, RefViews, TransformedRef
from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.memory_ops import AccessDim, AtomicUpdate, Load, Store
from shardwise.compiler.kernels.pallas.tile import OutsideSubset
from shardwise.typing import ArrayLike, Index


@final
@dataclass(frozen=True)
class _Dim:
    """A dim of a block in a view: every `stride`-th of `count` elements from `start`; or elements at an index.

    Attributes:
        start: the first element, or the index; it may be traced.
        count: the number of elements; None for an index, which has the shape `start.shape`.
        stride: the distance between elements.
    """

    start: Any
    count: int | None
    stride: int = 1


@final
class KernelRef(RefViews):
    """A Ref to a block of an array.

    Args:
        type: the type of the block, without squeezed dims.
        token: the memory: the result of `open_block`.
    """

    def __init__(self, type: ArrayType, token: Any):
        self.type = type
        self._token = Ref(token)

    def __len__(self) -> int:
        return self.type.shape[0]

    def __getitem__(self, index: Index) -> Any:
        return self.read_view((), index)

    def __setitem__(self, index: Index, value: ArrayLike) -> None:
        self.write_view((), index, value)

    def addupdate(self, index: Index, value: ArrayLike) -> None:
        """Add `value` to the elements at `index`."""
        self[index] = self[index] + value

    @property
    def token(self) -> Any:
        """The token of the memory as it is now."""
        return self._token[...]

    def read_view(self, transforms: Sequence[RefTransform], index: Index) -> Any:
        """Return the elements at an index of a view."""
        return self.load(transforms, index)

    def write_view(self, transforms: Sequence[RefTransform], index: Index, value: ArrayLike) -> None:
        """Change the elements at an index of a view."""
        self.store(transforms, index, value)

    def load(
        self,
        transforms: Sequence[RefTransform],
        index: Index,
        mask: ArrayLike | None = None,
        other: ArrayLike | None = None,
        eviction: str = "",
    ) -> Any:
        """Return the elements at an index of a view; `other`, or undefined ones, where the mask is false."""
        dims, shape, indices = self._access(transforms, index)
        op = Load(dims, shape, self.dtype, mask is not None, eviction)
        filled = jnp.asarray(0 if other is None else other, self.dtype)
        return op(self.token, *indices, filled if not filled.shape else _broadcast(filled, shape), *_masks(mask, shape))

    def store(
        self, transforms: Sequence[RefTransform], index: Index, value: ArrayLike, mask: ArrayLike | None = None
    ) -> None:
        """Write elements at an index of a view, where the mask is true."""
        dims, shape, indices = self._access(transforms, index)
        value = _broadcast(jnp.asarray(value).astype(self.dtype), shape)
        op = Store(dims, shape, self.dtype, mask is not None)
        self._token[...] = op(self.token, *indices, value, *_masks(mask, shape))

    def update(
        self,
        transforms: Sequence[RefTransform],
        index: Index,
        kind: str,
        values: Sequence[Any],
        mask: ArrayLike | None = None,
    ) -> Any:
        """Update elements atomically, and return what they were."""
        dims, shape, indices = self._access(transforms, index)
        operands = [_broadcast(jnp.asarray(value, self.dtype), shape) for value in values]
        op = AtomicUpdate(dims, shape, self.dtype, mask is not None, kind)
        before, self._token[...] = op(self.token, *indices, *operands, *_masks(mask, shape))
        return before

    def _access(
        self, transforms: Sequence[RefTransform], index: Index
    ) -> tuple[tuple[AccessDim, ...], tuple[int, ...], list[Any]]:
        """Return the dims of an access, the shape of its elements, and its starts and indices."""
        dims = [_Dim(0, size) for size in self.shape]
        axis = None  # where the dims of arrays in an index are
        for transform in (*transforms, IndexTransform(index if isinstance(index, tuple) else (index,))):
            if not isinstance(transform, IndexTransform):
                raise OutsideSubset(f"a Ref under another shape or dtype: {type(transform).__name__}")
            if transform.index in ((Ellipsis,), ()):
                continue
            if axis is not None:
                raise OutsideSubset("an index of a view that arrays index")
            dims, axis = _indexed(dims, transform.index)
        return _described(dims, axis)


def kernel_view(ref: Any) -> tuple[KernelRef, tuple[RefTransform, ...]] | None:
    """Return the Ref and the transforms of a view of a KernelRef; None for other Refs."""
    if isinstance(ref, KernelRef):
        return ref, ()
    if isinstance(ref, TransformedRef) and isinstance(ref.ref, KernelRef):
        return ref.ref, ref.transforms
    return None


def _indexed(dims: list[_Dim], index: tuple[Any, ...]) -> tuple[list[_Dim], int | None]:
    """Apply an index to the dims of a view that are slices. Return also the axis of arrays in the result."""
    if any(entry is None for entry in index):
        raise OutsideSubset("an index of a Ref with None")
    places = [place for place, dim in enumerate(dims) if dim.count is not None]
    entries = expanded_index(tuple(dims[place].count or 0 for place in places), index)
    result = list(dims)
    for place, entry in zip(places, entries, strict=True):
        dim = dims[place]
        if isinstance(entry, Slice):
            result[place] = _Dim(_shifted(dim, entry.start), entry.size, dim.stride * entry.stride)
        elif isinstance(entry, slice):
            first, stop, step = entry.indices(dim.count or 0)
            if step < 1:
                raise OutsideSubset("a slice of a Ref in reverse")
            result[place] = _Dim(_shifted(dim, first), len(range(first, stop, step)), dim.stride * step)
        else:
            if getattr(entry, "dtype", None) == np.bool_:
                raise OutsideSubset("a mask as an index of a Ref")
            result[place] = _Dim(_shifted(dim, _element_index(entry, dim.count or 0)), None)
    if not any(map(_is_array, entries)):
        return result, None
    # As in numpy, the dims of arrays replace theirs if they are adjacent, and come first otherwise.
    advanced = [number for number, entry in enumerate(entries) if not isinstance(entry, (Slice, slice))]
    adjacent = advanced == list(range(advanced[0], advanced[-1] + 1))
    return result, sum(isinstance(entry, (Slice, slice)) for entry in entries[: advanced[0]]) if adjacent else 0


def _element_index(entry: Any, size: int) -> Any:
    """Return an index with static negative integers counted from the end, and arrays as operands."""
    if isinstance(entry, (int, np.integer)):
        return int(entry) + (size if entry < 0 else 0)
    return jnp.asarray(entry) if _is_array(entry) else entry


def _is_array(entry: Any) -> bool:
    return not isinstance(entry, (Slice, slice)) and bool(np.shape(entry))


def _shifted(dim: _Dim, start: Any) -> Any:
    scaled = start if dim.stride == 1 else start * dim.stride
    return scaled if isinstance(dim.start, int) and dim.start == 0 else dim.start + scaled


def _described(dims: Sequence[_Dim], arrays_at: int | None) -> tuple[tuple[AccessDim, ...], tuple[int, ...], list[Any]]:
    """Return the dims of an access, the shape of its elements, and its starts and indices.

    `arrays_at` is the axis of the elements where the dims of arrays begin; None if there are none.
    """
    arrays = [np.shape(dim.start) for dim in dims if dim.count is None]
    common = np.broadcast_shapes(*arrays) if arrays_at is not None else ()
    slices = [dim.count for dim in dims if dim.count is not None]
    first = arrays_at or 0
    shape = (*slices[:first], *common, *slices[first:])
    described, operands, seen = [], [], 0
    for dim in dims:
        if dim.count is not None:
            axis = seen if arrays_at is None or seen < first else seen + len(common)
            described.append(AccessDim(axis, dim.count, dim.stride))
            seen += 1
        else:
            described.append(AccessDim(None))
        index = jnp.asarray(dim.start)
        if not is_integer(index.dtype):
            raise OutsideSubset(f"an index of type {index.type}")
        index = index.astype(jnp.int32)
        if index.shape:
            missing = len(common) - index.ndim
            index = index.reshape((*(1,) * (first + missing), *index.shape, *(1,) * (len(slices) - first)))
        operands.append(index)
    return tuple(described), shape, operands


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    return x if tuple(x.shape) == shape else jnp.broadcast_to(x, shape)


def _masks(mask: ArrayLike | None, shape: tuple[int, ...]) -> list[Any]:
    """Return the mask as a list of one operand; an empty list for None."""
    return [] if mask is None else [_broadcast(jnp.asarray(mask, np.bool_), shape)]

"""TransformedRef: a part of a Ref, or its elements under another shape or dtype, that is read and written in place.

`ref.at[i]`, `ref.reshape(shape)`, `ref.bitcast(dtype)` and `ref.transpose(axes)` return one. A read applies the
transforms to the array that the Ref holds. A write replaces the elements of the last view, then of the one before.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from shardwise.api.ref_index import indexed_shape, read_elements, write_elements
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert
from shardwise.tree_util import register_pytree_node


class RefTransform(Protocol):
    """A view of the elements of an array: how to read them, and how to replace them."""

    def result_type(self, type: ArrayType) -> ArrayType:
        """Return the type of the view of an array of this type."""

    def read(self, x: Any) -> Any:
        """Return the elements of the view."""

    def write(self, x: Any, elements: Any) -> Any:
        """Return the array with other elements in the view."""


@final
@dataclass(frozen=True)
class IndexTransform:
    """The elements at an index. As a pytree, its leaves are the entries that may be traced."""

    index: tuple[Any, ...]

    def result_type(self, type: ArrayType) -> ArrayType:
        return ArrayType(indexed_shape(type.shape, self.index), type.dtype)

    def read(self, x: Any) -> Any:
        return read_elements(x, self.index)

    def write(self, x: Any, elements: Any) -> Any:
        return write_elements(x, self.index, elements)


@final
@dataclass(frozen=True)
class ReshapeTransform:
    """The elements under another shape."""

    shape: tuple[int, ...]

    def result_type(self, type: ArrayType) -> ArrayType:
        known = math.prod(size for size in self.shape if size != -1)
        rest = type.size // known if known else 0
        shape = tuple(rest if size == -1 else size for size in self.shape)
        if math.prod(shape) != type.size or self.shape.count(-1) > 1:
            raise ValueError(
                f"reshape: a Ref of shape {type.shape} has {type.size} elements, and {self.shape} does not: pass a "
                "shape with as many, with at most one -1"
            )
        return ArrayType(shape, type.dtype)

    def read(self, x: Any) -> Any:
        return x.reshape(self.result_type(x.type).shape)

    def write(self, x: Any, elements: Any) -> Any:
        return elements.reshape(x.type.shape)


@final
@dataclass(frozen=True)
class TransposeTransform:
    """The elements with the dims in another order."""

    axes: tuple[int, ...]

    def result_type(self, type: ArrayType) -> ArrayType:
        if sorted(self.axes) != list(range(type.ndim)):
            raise ValueError(
                f"transpose: {self.axes} is not a permutation of the dims of a Ref of shape {type.shape}: pass each of "
                f"the numbers from 0 to {type.ndim - 1} once"
            )
        return ArrayType(tuple(type.shape[axis] for axis in self.axes), type.dtype)

    def read(self, x: Any) -> Any:
        return x.transpose(self.axes)

    def write(self, x: Any, elements: Any) -> Any:
        return elements.transpose(tuple(int(axis) for axis in np.argsort(self.axes)))


@final
@dataclass(frozen=True)
class BitcastTransform:
    """The bits of the elements as another dtype. Elements of other sizes are packed along the second-last dim."""

    dtype: Any

    def result_type(self, type: ArrayType) -> ArrayType:
        return ArrayType(_packed_shape(type.shape, type.dtype, self.dtype), self.dtype)

    def read(self, x: Any) -> Any:
        return bitcast_packed(x, self.dtype)

    def write(self, x: Any, elements: Any) -> Any:
        return bitcast_packed(elements, x.type.dtype)


def bitcast_packed(x: Any, dtype: Any) -> Any:
    """Return the bits of an array as another dtype, packing neighbours along the second-last dim."""
    old, new = x.type.dtype.itemsize, dtype.itemsize
    shape = _packed_shape(x.type.shape, x.type.dtype, dtype)
    if old == new:
        return BitcastConvert(dtype)(x)
    if old < new:  # the parts of an element are the last dim of the operand of a bitcast
        ratio = new // old
        *lead, rows, columns = x.type.shape
        return BitcastConvert(dtype)(x.reshape((*lead, rows // ratio, ratio, columns)).swapaxes(-1, -2))
    return BitcastConvert(dtype)(x).swapaxes(-1, -2).reshape(shape)


def _packed_shape(shape: tuple[int, ...], old: Any, new: Any) -> tuple[int, ...]:
    if old.itemsize == new.itemsize:
        return shape
    if len(shape) < 2 or shape[-2] * old.itemsize % new.itemsize:
        raise ValueError(
            f"bitcast: elements of {old} cannot be packed into {new} along the second-last dim of shape {shape}: its "
            f"size must be a multiple of {max(1, new.itemsize // old.itemsize)}"
        )
    return (*shape[:-2], shape[-2] * old.itemsize // new.itemsize, shape[-1])


class RefViews:
    """What Refs and their views share: the attributes of their type, and the methods that return a view."""

    type: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def at(self) -> "_RefIndexer":
        """`ref.at[index]` is a view of the elements at an index."""
        return _RefIndexer(self)

    def reshape(self, *shape: Any) -> "TransformedRef":
        """Return a view of the elements under another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return transformed(self, ReshapeTransform(tuple(map(int, sizes))))

    def bitcast(self, dtype: Any) -> "TransformedRef":
        """Return a view of the bits of the elements as another dtype."""
        return transformed(self, BitcastTransform(canonical_dtype(dtype)))

    def transpose(self, *axes: Any) -> "TransformedRef":
        """Return a view with the dims in another order; in reverse order without arguments."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        rank = len(self.shape)
        return transformed(self, TransposeTransform(tuple(order) or tuple(range(rank))[::-1]))

    @property
    def T(self) -> "TransformedRef":
        """A view with the dims in reverse order."""
        return self.transpose()


def transformed(ref: Any, transform: RefTransform) -> "TransformedRef":
    """Return a view of a Ref or of a view. Raises ValueError or IndexError if it does not fit."""
    transform.result_type(ref.type)
    base, transforms = (ref.ref, ref.transforms) if isinstance(ref, TransformedRef) else (ref, ())
    return TransformedRef(base, (*transforms, transform))


@final
class TransformedRef(RefViews):
    """A view of a Ref: `view[...]` reads its elements, and `view[...] = x` changes them in the Ref.

    Args:
        ref: the Ref.
        transforms: what to apply to the array that it holds, one after the other.
    """

    def __init__(self, ref: Any, transforms: tuple[RefTransform, ...]):
        self.ref = ref
        self.transforms = transforms

    @property
    def type(self) -> ArrayType:  # type: ignore[override]
        """The type of the elements."""
        type: ArrayType = self.ref.type
        for transform in self.transforms:
            type = transform.result_type(type)
        return type

    def __len__(self) -> int:
        return self.type.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.ref.read_view(self.transforms, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.ref.write_view(self.transforms, index, value)

    def addupdate(self, index: Any, value: Any) -> None:
        """Add `value` to the elements at `index`."""
        self[index] = self[index] + value

    def __repr__(self) -> str:
        return f"TransformedRef({self.ref!r}, {self.transforms})"


@final
@dataclass(frozen=True)
class _RefIndexer:
    """The value of `ref.at`."""

    ref: Any

    def __getitem__(self, index: Any) -> TransformedRef:
        transform = IndexTransform(index if isinstance(index, tuple) else (index,))
        return transformed(self.ref, transform)


@final
@dataclass(frozen=True)
class _Static:
    """An entry of an index that is part of a pytree's structure; slices are not hashable before Python 3.12."""

    parts: tuple[Any, ...]

    @staticmethod
    def from_entry(entry: Any) -> "_Static":
        return _Static((entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,))

    @property
    def entry(self) -> Any:
        return slice(*self.parts) if len(self.parts) > 1 else self.parts[0]


def _flatten_index(node: IndexTransform) -> tuple[tuple[Any, ...], tuple[_Static | None, ...]]:
    is_static = [entry is Ellipsis or entry is None or isinstance(entry, (slice, int)) for entry in node.index]
    entries = list(zip(node.index, is_static, strict=True))
    static = tuple(_Static.from_entry(entry) if fixed else None for entry, fixed in entries)
    return tuple(entry for entry, fixed in entries if not fixed), static


def _unflatten_index(static: tuple[_Static | None, ...], children: Any) -> IndexTransform:
    rest = iter(children)
    return IndexTransform(tuple(next(rest) if entry is None else entry.entry for entry in static))


register_pytree_node(IndexTransform, _flatten_index, _unflatten_index)
register_pytree_node(ReshapeTransform, lambda node: ((), node.shape), lambda shape, _: ReshapeTransform(shape))
register_pytree_node(TransposeTransform, lambda node: ((), node.axes), lambda axes, _: TransposeTransform(axes))
register_pytree_node(BitcastTransform, lambda node: ((), node.dtype), lambda dtype, _: BitcastTransform(dtype))
register_pytree_node(
    TransformedRef,
    lambda node: ((node.ref, node.transforms), None),
    lambda _, children: TransformedRef(*children),
)

"""Products of arrays: of vectors, matrices and whatever dims are told. Each is one `Dot` or a multiplication."""

import operator
from typing import Any

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.elementwise import Mul, Sub
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.numeric import conjugate, multiply
from shardwise.compiler.ops.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    no_out,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import canonical_dtype, meet
from shardwise.compiler.ops.shape import Reshape
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.lax.precision import precisions
from shardwise.lax.shape import laid_out
from shardwise.numpy.einsum import Names, contracted

_BOTH = ((0, 1),)


def _named(name: str, x: Any, y: Any, terms: tuple[Names, Names], result: Names, precision: Any, preferred: Any) -> Any:
    return contracted(
        x,
        y,
        terms=terms,
        result=result,
        path=_BOTH,
        precision=precisions(name, precision),
        dtype=None if preferred is None else canonical_dtype(preferred),
    )


def _rows(count: int, letter: str) -> Names:
    """So many names."""
    return tuple(f"{letter}{number}" for number in range(count))


def _batched(ndim: int, own: Names, most: int) -> Names:
    """The names of an operand's dims: its last are its own, those before them broadcast with the other's."""
    return (*(f"batch{number}" for number in range(most - (ndim - len(own)), most)), *own)


def _inner_sizes(name: str, x: ArrayType, y: ArrayType, left: int, right: int) -> None:
    if x.shape[left] != y.shape[right]:
        raise TypeError(
            f"{name}: {x} and {y}: dim {left % x.ndim} of the left, {x.shape[left]}, must equal "
            f"dim {right % y.ndim} of the right, {y.shape[right]}"
        )


def matmul(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """The product of matrices, which are the last two dims; dims before them broadcast. A row is a vector.

    `preferred_element_type`: the result's dtype, in which sums are made where it is the wider one.

    >>> jnp.matmul(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    x, y = type_of(a, "matmul"), type_of(b, "matmul")
    if (precision is None and preferred_element_type is None) or not (x.ndim and y.ndim):
        return laid_out(methods.matmul(a, b), out_sharding)
    _inner_sizes("matmul", x, y, -1, -min(y.ndim, 2))
    return laid_out(_matrices("matmul", a, b, precision, preferred_element_type), out_sharding)


def _matrices(name: str, a: Any, b: Any, precision: Any = None, preferred: Any = None) -> Any:
    x, y = type_of(a), type_of(b)
    left: Names = ("k",) if x.ndim == 1 else ("m", "k")
    right: Names = ("k",) if y.ndim == 1 else ("k", "n")
    most = max(x.ndim - len(left), y.ndim - len(right))
    terms = _batched(x.ndim, left, most), _batched(y.ndim, right, most)
    result = (*_batched(most, (), most), *left[:-1], *right[1:])
    return _named(name, a, b, terms, result, precision, preferred)


def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """The last dim of `a` times the second last (or only) one of `b`; of scalars, the product.

    >>> jnp.dot(jnp.array([1, 2]), jnp.array([3, 4]))
    Array(11, dtype=int32)
    """
    x, y = type_of(a, "dot"), type_of(b, "dot")
    if precision is None and preferred_element_type is None:
        return laid_out(methods.dot(a, b), out_sharding)
    left, right = _rows(x.ndim, "a"), _rows(y.ndim, "b")
    if x.ndim and y.ndim:
        place = max(y.ndim - 2, 0)
        _inner_sizes("dot", x, y, -1, place)
        left, right = (*left[:-1], "k"), (*right[:place], "k", *right[place + 1 :])
    result = tuple(name for name in (*left, *right) if name != "k")
    return laid_out(_named("dot", a, b, (left, right), result, precision, preferred_element_type), out_sharding)


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The last dim of `a` times the last dim of `b`, for all pairs of their other dims; of scalars, the product.

    >>> jnp.inner(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    x, y = type_of(a, "inner"), type_of(b, "inner")
    left, right = _rows(x.ndim, "a"), _rows(y.ndim, "b")
    if x.ndim and y.ndim:
        _inner_sizes("inner", x, y, -1, -1)
        left, right = (*left[:-1], "k"), (*right[:-1], "k")
    result = tuple(name for name in (*left, *right) if name != "k")
    return _named("inner", a, b, (left, right), result, precision, preferred_element_type)


def outer(a: Any, b: Any, out: None = None) -> Any:
    """The products of all elements of `a` with all elements of `b`: a row for each of `a`.

    >>> jnp.outer(jnp.array([1, 2]), jnp.array([3, 4, 5]))
    Array([[ 3,  4,  5],
           [ 6,  8, 10]], dtype=int32)
    """
    no_out("outer", out)
    return _outer(a, b)


@composed
def _outer(a: Any, b: Any) -> Any:
    x, y = as_operand(a, "outer"), as_operand(b, "outer")
    return multiply(Reshape((x.type.size, 1))(x), Reshape((1, y.type.size))(y))


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product summed over `axes`: so many last dims of `a` with as many first ones of `b`, or those of two lists.

    >>> jnp.tensordot(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 0], [0, 1]]), axes=[[0], [1]])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x, y = type_of(a, "tensordot"), type_of(b, "tensordot")
    if isinstance(axes, (list, tuple)):
        if len(axes) != 2:
            raise ValueError(f"tensordot: axes is a number of dims or a pair of lists, not {axes!r}")
        sides = [list(side) if isinstance(side, (list, tuple)) else [side] for side in axes]
        mine = [dim_of("tensordot", operator.index(axis), x.ndim) for axis in sides[0]]
        others = [dim_of("tensordot", operator.index(axis), y.ndim) for axis in sides[1]]
    else:
        count = operator.index(axes)
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise TypeError(f"tensordot: {x} and {y} have not {count} dims to sum over")
        mine, others = list(range(x.ndim - count, x.ndim)), list(range(count))
    if len(mine) != len(others):
        raise TypeError(f"tensordot: axes {axes!r} pair {len(mine)} dims of {x} with {len(others)} of {y}")
    left, right = list(_rows(x.ndim, "a")), list(_rows(y.ndim, "b"))
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        _inner_sizes("tensordot", x, y, one, other)
        left[one] = right[other] = f"k{number}"
    result = tuple(name for name in (*left, *right) if name[0] != "k")
    found = _named("tensordot", a, b, (tuple(left), tuple(right)), result, precision, preferred_element_type)
    return laid_out(found, out_sharding)


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of the products of all elements, where those of `a` are conjugated.

    >>> jnp.vdot(jnp.array([1j, 2.0]), jnp.array([1.0, 1.0]))
    Array(2.-1.j, dtype=complex64)
    """
    x, y = (methods.reshape(z, shape=-1) for z in (conjugate(a), b))
    _inner_sizes("vdot", x.type, y.type, 0, 0)
    return _named("vdot", x, y, (("k",), ("k",)), (), precision, preferred_element_type)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sums of products along `axis`, where elements of `x1` are conjugated; the other dims broadcast.

    >>> jnp.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    kinds = type_of(x1, "vecdot"), type_of(x2, "vecdot")
    if not all(kind.ndim for kind in kinds):
        raise ValueError(f"vecdot: needs arrays of rank 1 or more, not {kinds[0]} and {kinds[1]}")
    dims = [dim_of("vecdot", axis, kind.ndim) for kind in kinds]
    _inner_sizes("vecdot", *kinds, *dims)
    names = []
    most = max(kind.ndim for kind in kinds) - 1
    for kind, dim in zip(kinds, dims, strict=True):
        batch = list(_batched(kind.ndim - 1, (), most))
        batch.insert(dim, "k")
        names.append(tuple(batch))
    terms = names[0], names[1]
    return _named("vecdot", conjugate(x1), x2, terms, _batched(most, (), most), precision, preferred_element_type)


def matvec(x1: Any, x2: Any, /) -> Any:
    """Matrices times vectors: the last two dims of `x1` with the last of `x2`; dims before them broadcast.

    >>> jnp.matvec(jnp.array([[1, 2], [3, 4]]), jnp.array([[10, 1], [0, 1]]))
    Array([[12, 34],
           [ 2,  4]], dtype=int32)
    """
    x, y = type_of(x1, "matvec"), type_of(x2, "matvec")
    if x.ndim < 2 or not y.ndim:
        raise ValueError(f"matvec: needs matrices and vectors, not {x} and {y}")
    _inner_sizes("matvec", x, y, -1, -1)
    most = max(x.ndim - 2, y.ndim - 1)
    terms = _batched(x.ndim, ("m", "k"), most), _batched(y.ndim, ("k",), most)
    return _named("matvec", x1, x2, terms, (*_batched(most, (), most), "m"), None, None)


def vecmat(x1: Any, x2: Any, /) -> Any:
    """Vectors, conjugated, times matrices: the last dim of `x1` with the last two of `x2`; dims before broadcast.

    >>> jnp.vecmat(jnp.array([10, 1]), jnp.array([[1, 2], [3, 4]]))
    Array([13, 24], dtype=int32)
    """
    x, y = type_of(x1, "vecmat"), type_of(x2, "vecmat")
    if y.ndim < 2 or not x.ndim:
        raise ValueError(f"vecmat: needs vectors and matrices, not {x} and {y}")
    _inner_sizes("vecmat", x, y, -1, -2)
    most = max(x.ndim - 1, y.ndim - 2)
    terms = _batched(x.ndim, ("k",), most), _batched(y.ndim, ("k", "n"), most)
    return _named("vecmat", conjugate(x1), x2, terms, (*_batched(most, (), most), "n"), None, None)


def kron(a: Any, b: Any) -> Any:
    """Each element of `a` times all of `b`, laid out as blocks.

    >>> jnp.kron(jnp.array([1, 10]), jnp.array([1, 2, 3]))
    Array([ 1,  2,  3, 10, 20, 30], dtype=int32)
    """
    return _kron(a, b)


@composed
def _kron(a: Any, b: Any) -> Any:
    x, y = as_operand(a, "kron"), as_operand(b, "kron")
    ndim = max(x.type.ndim, y.type.ndim)
    blocks, sizes = ((1,) * (ndim - z.type.ndim) + z.type.shape for z in (x, y))
    x = Reshape(tuple(size for block in blocks for size in (block, 1)))(x)
    y = Reshape(tuple(part for size in sizes for part in (1, size)))(y)
    shape = tuple(block * size for block, size in zip(blocks, sizes, strict=True))
    return Reshape(shape)(multiply(x, y))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors of 3 elements, along `axis`, or along `axisa` and `axisb`, given along `axisc`.

    Of vectors of 2 elements it is the third element alone; a vector of 2 is one of 3 whose last is 0.

    >>> jnp.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    kinds = type_of(a, "cross"), type_of(b, "cross")
    dims = [dim_of("cross", side, kind.ndim) for side, kind in zip((axisa, axisb), kinds, strict=True)]
    sizes = [kind.shape[dim] for kind, dim in zip(kinds, dims, strict=True)]
    if not set(sizes) <= {2, 3}:
        raise ValueError(f"cross: vectors have 2 or 3 elements, not {sizes[0]} and {sizes[1]}: {kinds[0]}, {kinds[1]}")
    rest = broadcast_shapes("cross", *(kind.without((dim,)).shape for kind, dim in zip(kinds, dims, strict=True)))
    at = dim_of("cross", axisc, len(rest) + 1) if 3 in sizes else 0
    return _crossed(a, b, dims=(dims[0], dims[1]), at=at)


@composed
def _crossed(a: Any, b: Any, *, dims: tuple[int, int], at: int) -> Any:
    dtype, weak = meet("cross", (type_of(a), type_of(b)))
    sides = []
    for operand, dim in zip((a, b), dims, strict=True):
        x = astype_weak(as_operand(operand), dtype, weak)
        rest = x.type.without((dim,)).shape
        sides.append([Reshape(rest)(along(x, dim, place, place + 1)) for place in range(x.type.shape[dim])])
    shape = broadcast_shapes("cross", sides[0][0].type.shape, sides[1][0].type.shape)
    left, right = ([stretch(part, shape) for part in side] for side in sides)

    def minus(one: int, other: int) -> Any:
        terms = [
            Mul()(left[i], right[j]) if i < len(left) and j < len(right) else None
            for i, j in ((one, other), (other, one))
        ]
        if terms[1] is None:
            return terms[0]
        return Sub()(terms[0], terms[1]) if terms[0] is not None else -terms[1]

    if len(left) == len(right) == 2:
        return minus(0, 1)
    parts = [Reshape((*shape[:at], 1, *shape[at:]))(minus(*pair)) for pair in ((1, 2), (2, 0), (0, 1))]
    return Concatenate(at)(*parts)

"""Products of vectors, matrices and tensors. Each is one `Dot`, or an elementwise multiplication."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.api.meshes.out_sharding import check_sums, constrain_sharding, decided_by
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.arithmetic import conjugate, multiply
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    reject_out,
    static_integer,
    type_of,
)
from shardwise.compiler.arrays.promotion import promote_dtypes, requested_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Mul, Sub
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.numpy.einsum import Names, contract
from shardwise.numpy.families import ARRAYS, PRODUCT
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

_OPERANDS = Family(
    {"a, b": "the operands.", "out": ARRAYS.args["out"]},
    raises=["TypeError: if an operand is not an array or a number."],
)
_CONTRACTION = PRODUCT.extended(
    {"a, b": "the operands."},
    "The product, with the remaining dims of `a` before those of `b`.",
    ["TypeError: if the sizes of the contracted dims differ."],
)

_PAIR_PATH = ((0, 1),)  # the contraction path of two operands


def _contract(
    name: str,
    x: ArrayLike,
    y: ArrayLike,
    terms: tuple[Names, Names],
    result: Names,
    precision: PrecisionLike,
    preferred: DTypeLike | None,
) -> Any:
    """Contract two operands whose dims have the names `terms`, as `einsum` does. `name` is the caller, for errors."""
    return contract(
        x,
        y,
        terms=terms,
        result=result,
        path=_PAIR_PATH,
        precision=precisions(name, precision),
        dtype=None if preferred is None else requested_dtype(name, preferred),
    )


def _dim_names(count: int, prefix: str) -> Names:
    """Return `count` distinct names."""
    return tuple(f"{prefix}{index}" for index in range(count))


def _with_batch_names(ndim: int, core: Names, batch_ndim: int) -> Names:
    """Return the names of an operand's dims: `core` for the last ones, and names of shared batch dims before them."""
    return (*(f"batch{index}" for index in range(batch_ndim - (ndim - len(core)), batch_ndim)), *core)


def _check_batch_shapes(name: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Check that the dims other than those of the vectors and matrices broadcast."""
    try:
        broadcast_shapes(name, x, y)
    except TypeError:
        raise ValueError(f"{name}: the batch dims {x} and {y} of the operands do not broadcast") from None


def _check_contracted_sizes(name: str, x: ArrayType, y: ArrayType, left: int, right: int) -> None:
    """Check that dim `left` of `x` and dim `right` of `y`, which are contracted, have equal sizes."""
    if x.shape[left] != y.shape[right]:
        raise TypeError(
            f"{name}: {x} and {y}: dim {left % x.ndim} of the left, {x.shape[left]}, must equal "
            f"dim {right % y.ndim} of the right, {y.shape[right]}"
        )


@documented(PRODUCT, returns="The product, without the dim of an operand that is a vector.")
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Multiply matrices, which are in the last two dims.

    Args:
        a, b: the operands, of rank 1 or more. An operand of rank 1 is a vector; dims before the last two broadcast.

    Raises:
        TypeError: if an operand has rank 0, or if the shapes do not match.

    Example:
        >>> jnp.matmul(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    x, y = type_of(a, "matmul"), type_of(b, "matmul")
    if x.ndim and y.ndim:
        check_sums("matmul", out_sharding, (a, b), [((0, -1), (1, -min(y.ndim, 2)))])
    if (precision is None and preferred_element_type is None) or not (x.ndim and y.ndim):
        with decided_by(out_sharding):
            product = methods.matmul(a, b)
        return constrain_sharding(product, out_sharding)
    _check_contracted_sizes("matmul", x, y, -1, -min(y.ndim, 2))
    with decided_by(out_sharding):
        product = _matmul("matmul", a, b, precision, preferred_element_type)
    return constrain_sharding(product, out_sharding)


def _matmul(
    name: str, a: ArrayLike, b: ArrayLike, precision: PrecisionLike = None, preferred: DTypeLike | None = None
) -> Any:
    x, y = type_of(a), type_of(b)
    left: Names = ("k",) if x.ndim == 1 else ("m", "k")
    right: Names = ("k",) if y.ndim == 1 else ("k", "n")
    batch_ndim = max(x.ndim - len(left), y.ndim - len(right))
    terms = _with_batch_names(x.ndim, left, batch_ndim), _with_batch_names(y.ndim, right, batch_ndim)
    result = (*_with_batch_names(batch_ndim, (), batch_ndim), *left[:-1], *right[1:])
    return _contract(name, a, b, terms, result, precision, preferred)


@documented(_CONTRACTION)
def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Contract the last dim of `a` with the second last (or only) dim of `b`.

    If an operand has rank 0, the result is the elementwise product.

    Example:
        >>> jnp.dot(jnp.array([1, 2]), jnp.array([3, 4]))
        Array(11, dtype=int32)
    """
    x, y = type_of(a, "dot"), type_of(b, "dot")
    if x.ndim and y.ndim:
        check_sums("dot", out_sharding, (a, b), [((0, -1), (1, -min(y.ndim, 2)))])
    if precision is None and preferred_element_type is None:
        with decided_by(out_sharding):
            product = methods.dot(a, b)
        return constrain_sharding(product, out_sharding)
    left, right = _dim_names(x.ndim, "a"), _dim_names(y.ndim, "b")
    if x.ndim and y.ndim:
        dim = max(y.ndim - 2, 0)
        _check_contracted_sizes("dot", x, y, -1, dim)
        left, right = (*left[:-1], "k"), (*right[:dim], "k", *right[dim + 1 :])
    result = tuple(name for name in (*left, *right) if name != "k")
    with decided_by(out_sharding):
        product = _contract("dot", a, b, (left, right), result, precision, preferred_element_type)
    return constrain_sharding(product, out_sharding)


@documented(_CONTRACTION, raises=["TypeError: if the sizes of the last dims differ."])
def inner(
    a: ArrayLike, b: ArrayLike, *, precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Contract the last dims of two arrays.

    If an operand has rank 0, the result is the elementwise product.

    Example:
        >>> jnp.inner(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    x, y = type_of(a, "inner"), type_of(b, "inner")
    left, right = _dim_names(x.ndim, "a"), _dim_names(y.ndim, "b")
    if x.ndim and y.ndim:
        _check_contracted_sizes("inner", x, y, -1, -1)
        left, right = (*left[:-1], "k"), (*right[:-1], "k")
    result = tuple(name for name in (*left, *right) if name != "k")
    return _contract("inner", a, b, (left, right), result, precision, preferred_element_type)


@documented(_OPERANDS, raises=["TypeError: if an operand is not an array or a number."])
def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """Compute the outer product of two arrays, which are flattened.

    Returns:
        A matrix with the product of element i of `a` and element j of `b` in row i and column j.

    Example:
        >>> jnp.outer(jnp.array([1, 2]), jnp.array([3, 4, 5]))
        Array([[ 3,  4,  5],
               [ 6,  8, 10]], dtype=int32)
    """
    reject_out("outer", out)
    return _outer(a, b)


@compiled_function
def _outer(a: ArrayLike, b: ArrayLike) -> Any:
    x, y = as_operand(a, "outer"), as_operand(b, "outer")
    return multiply(Reshape((x.type.size, 1))(x), Reshape((1, y.type.size))(y))


@documented(_CONTRACTION)
def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int | Sequence[int]] = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Contract dims of two arrays.

    Args:
        axes: the number n of dims to contract, the last n of `a` with the first n of `b`; or a pair of sequences, the
            axes of `a` and those of `b`.

    Raises:
        TypeError: if the numbers or the sizes of the contracted dims differ.
        ValueError: if `axes` is not a number or a pair, or if an axis or `precision` does not exist.

    Example:
        >>> jnp.tensordot(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 0], [0, 1]]), axes=[[0], [1]])
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    x, y = type_of(a, "tensordot"), type_of(b, "tensordot")
    if isinstance(axes, (list, tuple)):
        if len(axes) != 2:
            raise ValueError(f"tensordot: axes must be a number of dims or a pair of sequences, not {axes!r}")
        x_axes, y_axes = (side if isinstance(side, Sequence) else [side] for side in axes)
        x_dims = [canonical_axis("tensordot", operator.index(axis), x.ndim) for axis in x_axes]
        y_dims = [canonical_axis("tensordot", operator.index(axis), y.ndim) for axis in y_axes]
    else:
        count = static_integer("tensordot", "axes", axes)
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise TypeError(f"tensordot: cannot contract {count} dims of {x} and {y}")
        x_dims, y_dims = list(range(x.ndim - count, x.ndim)), list(range(count))
    if len(x_dims) != len(y_dims):
        raise TypeError(f"tensordot: axes {axes!r} pair {len(x_dims)} dims of {x} with {len(y_dims)} of {y}")
    left, right = list(_dim_names(x.ndim, "a")), list(_dim_names(y.ndim, "b"))
    for index, (x_dim, y_dim) in enumerate(zip(x_dims, y_dims, strict=True)):
        _check_contracted_sizes("tensordot", x, y, x_dim, y_dim)
        left[x_dim] = right[y_dim] = f"k{index}"
    result = tuple(name for name in (*left, *right) if name[0] != "k")
    with decided_by(out_sharding):
        product = _contract("tensordot", a, b, (tuple(left), tuple(right)), result, precision, preferred_element_type)
    return constrain_sharding(product, out_sharding)


@documented(PRODUCT, returns="The dot product, of rank 0.", raises=["TypeError: if the numbers of elements differ."])
def vdot(
    a: ArrayLike, b: ArrayLike, *, precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Compute the dot product of two arrays, which are flattened; the first operand is conjugated.

    Args:
        a, b: the operands, with equal numbers of elements.

    Example:
        >>> jnp.vdot(jnp.array([1j, 2.0]), jnp.array([1.0, 1.0]))
        Array(2.-1.j, dtype=complex64)
    """
    x, y = conjugate(a), as_operand(b, "vdot")
    if x.type.shape != y.type.shape or not x.type.ndim:
        x, y = (methods.reshape(z, shape=-1) for z in (x, y))
        _check_contracted_sizes("vdot", x.type, y.type, 0, 0)
    dims = _dim_names(x.type.ndim, "k")  # contracted without being flattened, which could change their sharding
    return _contract("vdot", x, y, (dims, dims), (), precision, preferred_element_type)


@documented(PRODUCT, returns="The dot products, without `axis`.")
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Compute the dot product of vectors along an axis; the first operand is conjugated.

    Args:
        x1, x2: the operands. Dims other than `axis` broadcast.
        axis: the axis that holds the vectors.

    Raises:
        TypeError: if the sizes along `axis` differ.
        ValueError: if the other dims do not broadcast, if an operand has rank 0, or if `axis` or `precision` does not
            exist.

    Example:
        >>> jnp.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    types = type_of(x1, "vecdot"), type_of(x2, "vecdot")
    if not all(each.ndim for each in types):
        raise ValueError(f"vecdot: operands must have rank 1 or more, not {types[0]} and {types[1]}")
    dims = [canonical_axis("vecdot", axis, each.ndim) for each in types]
    _check_contracted_sizes("vecdot", *types, *dims)
    _check_batch_shapes("vecdot", *(each.without((dim,)).shape for each, dim in zip(types, dims, strict=True)))
    names = []
    batch_ndim = max(each.ndim for each in types) - 1
    for each, dim in zip(types, dims, strict=True):
        operand_names = list(_with_batch_names(each.ndim - 1, (), batch_ndim))
        operand_names.insert(dim, "k")
        names.append(tuple(operand_names))
    terms = names[0], names[1]
    result = _with_batch_names(batch_ndim, (), batch_ndim)
    return _contract("vecdot", conjugate(x1), x2, terms, result, precision, preferred_element_type)


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Multiply matrices by vectors.

    Args:
        x1: the matrices, in the last two dims.
        x2: the vectors, in the last dim. The dims before broadcast with those of `x1`.

    Returns:
        The products, vectors in the last dim.

    Raises:
        TypeError: if the sizes that are summed over differ.
        ValueError: if `x1` has a rank below 2, or `x2` rank 0, or if the batch dims do not broadcast.

    Example:
        >>> jnp.matvec(jnp.array([[1, 2], [3, 4]]), jnp.array([[10, 1], [0, 1]]))
        Array([[12, 34],
               [ 2,  4]], dtype=int32)
    """
    x, y = type_of(x1, "matvec"), type_of(x2, "matvec")
    if x.ndim < 2 or not y.ndim:
        raise ValueError(f"matvec: operands must be matrices and vectors, not {x} and {y}")
    _check_contracted_sizes("matvec", x, y, -1, -1)
    _check_batch_shapes("matvec", x.shape[:-2], y.shape[:-1])
    batch_ndim = max(x.ndim - 2, y.ndim - 1)
    terms = _with_batch_names(x.ndim, ("m", "k"), batch_ndim), _with_batch_names(y.ndim, ("k",), batch_ndim)
    return _contract("matvec", x1, x2, terms, (*_with_batch_names(batch_ndim, (), batch_ndim), "m"), None, None)


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Multiply vectors, which are conjugated, by matrices.

    Args:
        x1: the vectors, in the last dim.
        x2: the matrices, in the last two dims. The dims before broadcast with those of `x1`.

    Returns:
        The products, vectors in the last dim.

    Raises:
        TypeError: if the sizes that are summed over differ.
        ValueError: if `x1` has rank 0, or `x2` a rank below 2, or if the batch dims do not broadcast.

    Example:
        >>> jnp.vecmat(jnp.array([10, 1]), jnp.array([[1, 2], [3, 4]]))
        Array([13, 24], dtype=int32)
    """
    x, y = type_of(x1, "vecmat"), type_of(x2, "vecmat")
    if y.ndim < 2 or not x.ndim:
        raise ValueError(f"vecmat: operands must be vectors and matrices, not {x} and {y}")
    _check_contracted_sizes("vecmat", x, y, -1, -2)
    _check_batch_shapes("vecmat", x.shape[:-1], y.shape[:-2])
    batch_ndim = max(x.ndim - 1, y.ndim - 2)
    terms = _with_batch_names(x.ndim, ("k",), batch_ndim), _with_batch_names(y.ndim, ("k", "n"), batch_ndim)
    result = (*_with_batch_names(batch_ndim, (), batch_ndim), "n")
    return _contract("vecmat", conjugate(x1), x2, terms, result, None, None)


@compiled_function
@documented(_OPERANDS, returns="An array whose sizes are the products of the operands' sizes.")
def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Compute the Kronecker product: the array of blocks `a[i] * b`.

    Args:
        a, b: the operands. Dims of size 1 are prepended to the one of lower rank.

    Example:
        >>> jnp.kron(jnp.array([1, 10]), jnp.array([1, 2, 3]))
        Array([ 1,  2,  3, 10, 20, 30], dtype=int32)
    """
    x, y = as_operand(a, "kron"), as_operand(b, "kron")
    ndim = max(x.type.ndim, y.type.ndim)
    x_shape, y_shape = ((1,) * (ndim - z.type.ndim) + z.type.shape for z in (x, y))
    x = Reshape(tuple(size for x_size in x_shape for size in (x_size, 1)))(x)
    y = Reshape(tuple(size for y_size in y_shape for size in (1, y_size)))(y)
    shape = tuple(x_size * y_size for x_size, y_size in zip(x_shape, y_shape, strict=True))
    return Reshape(shape)(multiply(x, y))


@documented(_OPERANDS, returns="The cross products.")
def cross(
    a: ArrayLike, b: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """Compute the cross product of vectors with 2 or 3 elements.

    A vector with 2 elements has the third element 0. If both have 2 elements, only the third element of the result is
    returned. The other dims broadcast.

    Args:
        axisa, axisb: the axes of `a` and `b` that hold the vectors.
        axisc: the axis of the result that holds the vectors.
        axis: one axis for `axisa`, `axisb` and `axisc` together.

    Raises:
        TypeError: if an operand is not an array or a number, or if the other dims do not broadcast.
        ValueError: if an axis does not exist, or if its size is not 2 or 3.

    Example:
        >>> jnp.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
        Array([0, 0, 1], dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    types = type_of(a, "cross"), type_of(b, "cross")
    dims = [canonical_axis("cross", side, each.ndim) for side, each in zip((axisa, axisb), types, strict=True)]
    sizes = [each.shape[dim] for each, dim in zip(types, dims, strict=True)]
    if not set(sizes) <= {2, 3}:
        raise ValueError(
            f"cross: vectors must have 2 or 3 elements, not {sizes[0]} and {sizes[1]}: {types[0]}, {types[1]}"
        )
    batch = broadcast_shapes("cross", *(each.without((dim,)).shape for each, dim in zip(types, dims, strict=True)))
    out_dim = canonical_axis("cross", axisc, len(batch) + 1) if 3 in sizes else 0
    return _cross(a, b, dims=(dims[0], dims[1]), out_dim=out_dim)


@compiled_function
def _cross(a: ArrayLike, b: ArrayLike, *, dims: tuple[int, int], out_dim: int) -> Any:
    dtype, weak = promote_dtypes("cross", (type_of(a), type_of(b)))
    components = []
    for operand, dim in zip((a, b), dims, strict=True):
        x = astype_weak(as_operand(operand), dtype, weak)
        batch = x.type.without((dim,)).shape
        components.append([Reshape(batch)(slice_along(x, dim, index, index + 1)) for index in range(x.type.shape[dim])])
    shape = broadcast_shapes("cross", components[0][0].type.shape, components[1][0].type.shape)
    left, right = ([broadcast_to_shape(component, shape) for component in side] for side in components)

    def minor(i: int, j: int) -> Any:
        """Compute left[i] * right[j] - left[j] * right[i], where missing components are 0."""
        terms = [Mul()(left[m], right[n]) if m < len(left) and n < len(right) else None for m, n in ((i, j), (j, i))]
        if terms[1] is None:
            return terms[0]
        return Sub()(terms[0], terms[1]) if terms[0] is not None else -terms[1]

    if len(left) == len(right) == 2:
        return minor(0, 1)
    parts = [Reshape((*shape[:out_dim], 1, *shape[out_dim:]))(minor(*pair)) for pair in ((1, 2), (2, 0), (0, 1))]
    return Concatenate(out_dim)(*parts)

"""Contractions of BCOO arrays with dense arrays and with each other.

Every dim has a label, as in `einsum`: contracted dims and batch dims have the same label in both operands. The batch
dims of a sparse operand are mapped by `vmap`. The rest is a lookup of rows of the dense operand, a product per stored
element, and a sum into the result.
"""

import math
import string
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_layout import bcoo_sum_duplicates, bcoo_update_layout
from shardwise.experimental.sparse.bcoo_shape import bcoo_transpose
from shardwise.experimental.sparse.coordinates import add_up, columns, drop, is_inside, look_up
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


class Labels(NamedTuple):
    """The labels of the dims of both operands and of the result, one letter each."""

    left: str
    right: str
    out: str


def parse_dimension_numbers(
    name: str, left_shape: tuple[int, ...], right_shape: tuple[int, ...], dimension_numbers: DimensionNumbers
) -> tuple[Labels, tuple[int, ...]]:
    """Return the labels of a contraction, and the shape of its result: batch dims, then free dims of left and right."""
    (left_contract, right_contract), (left_batch, right_batch) = (
        tuple(tuple(map(int, dims)) for dims in pair) for pair in dimension_numbers
    )
    left = list(string.ascii_letters[: len(left_shape)])
    right = list(string.ascii_letters[len(left_shape) : len(left_shape) + len(right_shape)])
    for kind, left_dims, right_dims in (
        ("contracting", left_contract, right_contract),
        ("batch", left_batch, right_batch),
    ):
        if len(left_dims) != len(right_dims):
            raise TypeError(f"{name}: the operands have {len(left_dims)} and {len(right_dims)} {kind} dims")
        for left_dim, right_dim in zip(left_dims, right_dims, strict=True):
            if not (0 <= left_dim < len(left_shape) and 0 <= right_dim < len(right_shape)):
                raise TypeError(f"{name}: the {kind} dims {left_dims} and {right_dims} do not exist in both operands")
            if left_shape[left_dim] != right_shape[right_dim]:
                raise TypeError(
                    f"{name}: the {kind} dims {left_dims} of shape {left_shape} and {right_dims} of shape "
                    f"{right_shape} must have equal sizes"
                )
            right[right_dim] = left[left_dim]
    contracted = {left[dim] for dim in left_contract}
    batch = [left[dim] for dim in left_batch]
    free = [label for label in (*left, *right) if label not in contracted and label not in batch]
    sizes = dict(zip((*left, *right), (*left_shape, *right_shape), strict=True))
    out = (*batch, *free)
    return Labels("".join(left), "".join(right), "".join(out)), tuple(sizes[label] for label in out)


def bcoo_dot_general(
    lhs: BCOO | ArrayLike,
    rhs: BCOO | ArrayLike,
    *,
    dimension_numbers: DimensionNumbers,
    precision: None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> "BCOO | Array":
    """Contract two arrays, of which one or both are sparse.

    Args:
        lhs, rhs: the operands.
        dimension_numbers: `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`, as for `lax.dot_general`.
        precision: not used.
        preferred_element_type: the dtype of the result; None is that of the promoted operands.
        out_sharding: must be None.

    Returns:
        A sparse array if both operands are sparse, else a dense one. Its dims are the batch dims, then the other dims
        of `lhs` and those of `rhs` that are not contracted.

    Raises:
        NotImplementedError: if `out_sharding` is not None.
        TypeError: if neither operand is sparse, or the dims do not match.

    Example:
        >>> mat = jax.experimental.sparse.eye(2)
        >>> dims = (((1,), (0,)), ((), ()))
        >>> jax.experimental.sparse.bcoo_dot_general(mat, jnp.array([3.0, 4.0]), dimension_numbers=dims)
        Array([3., 4.], dtype=float32)
    """
    if out_sharding is not None:
        raise NotImplementedError("bcoo_dot_general: out_sharding must be None; reshard the result instead")
    left, right = (x if isinstance(x, BCOO) else as_operand(x, "bcoo_dot_general") for x in (lhs, rhs))
    labels, shape = parse_dimension_numbers("bcoo_dot_general", left.shape, right.shape, dimension_numbers)
    dtype = jnp.promote_types(left.dtype, right.dtype) if preferred_element_type is None else preferred_element_type
    match left, right:
        case BCOO(), BCOO():
            return _sparse_times_sparse(_with_dtype(left, dtype), _with_dtype(right, dtype), labels, shape)
        case BCOO(), Array():
            return _sparse_times_dense(left, right, labels, shape, dtype)
        case Array(), BCOO():
            return _sparse_times_dense(right, left, Labels(labels.right, labels.left, labels.out), shape, dtype)
    raise TypeError("bcoo_dot_general: one of the operands must be a BCOO; `lax.dot_general` contracts dense arrays")


def _with_dtype(mat: BCOO, dtype: DTypeLike) -> BCOO:
    return mat.with_data(mat.data.astype(dtype))


def _sparse_times_dense(mat: BCOO, dense: Array, labels: Labels, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Contract a sparse operand, whose labels are `labels.left`, with a dense one."""
    mat = mat.expand_batch()
    sizes = dict(zip(labels.out, shape, strict=True))
    end = mat.n_batch + mat.n_sparse
    contract = partial(
        _contract_batch_element, sparse=labels.left[mat.n_batch : end], blocks=labels.left[end:], sizes=sizes
    )
    return _map_labels(contract, labels.left[: mat.n_batch], labels.right, labels.out)(
        mat.data.astype(dtype), mat.indices, dense.astype(dtype)
    )


def _map_labels(contract: Callable[..., Array], batch: str, right: str, out: str) -> Callable[..., Array]:
    """Return `contract` mapped over the batch dims of the sparse operand, which may also be dims of the other one.

    Args:
        contract: a function of elements, coordinates and the dense operand, and of the labels `right` and `out`.
        batch: the labels of the batch dims.
        right: the labels of the dense operand.
        out: the labels of the result.
    """
    if not batch:
        return partial(contract, right=right, out=out)
    label, rest = batch[0], batch[1:]
    inner = _map_labels(contract, rest, right.replace(label, ""), out.replace(label, ""))
    right_dim = right.index(label) if label in right else None
    is_kept = label in out

    def mapped(data: Array, indices: Array, dense: Array) -> Array:
        result = vmap(inner, (0, 0, right_dim), out.index(label) if is_kept else 0)(data, indices, dense)
        return result if is_kept else result.sum(0, dtype=result.dtype)

    return mapped


def _contract_batch_element(
    data: Array, indices: Array, dense: Array, sparse: str, blocks: str, sizes: dict[str, int], right: str, out: str
) -> Array:
    """Contract one batch element with a dense array.

    Args:
        data: the elements, of shape (nse, *dense).
        indices: the coordinates.
        dense: the dense operand.
        sparse: the labels of the sparse dims.
        blocks: the labels of the dense dims of the sparse operand.
        sizes: the sizes of the result's dims, by label.
        right: the labels of the dense operand.
        out: the labels of the result.
    """
    shared = [label for label in sparse if label in right]
    row_labels = "".join(label for label in right if label not in shared)
    dense = jnp.transpose(dense, [right.index(label) for label in (*shared, *row_labels)])
    rows = look_up(dense, indices[:, np.array([sparse.index(label) for label in shared], int)])
    kept = [label for label in sparse if label in out]
    others = "".join(label for label in out if label not in kept)
    element = _unused_label(Labels(sparse + blocks, right, out))
    if not kept:
        return jnp.einsum(f"{element}{blocks},{element}{row_labels}->{others}", data, rows)
    terms = jnp.einsum(f"{element}{blocks},{element}{row_labels}->{element}{others}", data, rows)
    kept_indices = indices[:, np.array([sparse.index(label) for label in kept], int)]
    result = add_up(terms, kept_indices, [sizes[label] for label in kept])
    order = [*kept, *others]
    return jnp.transpose(result, [order.index(label) for label in out])


def _sparse_times_sparse(lhs: BCOO, rhs: BCOO, labels: Labels, shape: tuple[int, ...]) -> BCOO:
    """Contract two sparse arrays: multiply the elements of all pairs whose contracted coordinates agree."""
    batch = "".join(label for label in labels.out if label in labels.left and label in labels.right)
    batch += _free_batch_labels(lhs, rhs, labels, batch)
    left, left_labels = _with_batch_labels(lhs, labels.left, _shared_labels(batch, labels.left))
    right, right_labels = _with_batch_labels(rhs, labels.right, _shared_labels(batch, labels.right))
    left_batch, left_sparse = left_labels[: left.n_batch], left_labels[left.n_batch :]
    right_batch, right_sparse = right_labels[: right.n_batch], right_labels[right.n_batch :]
    sparse, sparse_shape = labels.out[len(batch) :], shape[len(batch) :]
    multiply: Callable[..., Any] = partial(
        _multiply_matching_pairs,
        matched=[(left_sparse.index(x), right_sparse.index(x)) for x in _shared_labels(left_sparse, right_sparse)],
        kept=(
            [left_sparse.index(x) for x in _shared_labels(sparse, left_sparse)],
            [right_sparse.index(x) for x in _shared_labels(sparse, right_sparse)],
        ),
        shapes=(left.sparse_shape, right.sparse_shape),
        sparse_shape=sparse_shape,
    )
    for label in reversed(batch):
        left_dim, right_dim = (0 if label in each else None for each in (left_batch, right_batch))
        multiply = vmap(multiply, (left_dim, left_dim, right_dim, right_dim))
    data, indices = multiply(left.data, left.indices, right.data, right.indices)
    result = BCOO((data, indices), shape=shape)
    capacity = math.prod(sparse_shape)
    return bcoo_sum_duplicates(result, nse=capacity) if capacity < result.nse else result


def _shared_labels(labels: str, others: str) -> str:
    """Return those of `labels` that are among `others`."""
    return "".join(label for label in labels if label in others)


def _free_batch_labels(lhs: BCOO, rhs: BCOO, labels: Labels, batch: str) -> str:
    """Return the labels of the result's leading dims that are batch dims of one operand and not of the other.

    They stay batch dims as long as they lead the result; the others become sparse dims.
    """
    stored = labels.left[: lhs.n_batch] + labels.right[: rhs.n_batch]
    count = len(batch)
    while count < len(labels.out) and labels.out[count] in stored:
        count += 1
    return labels.out[len(batch) : count]


def _with_batch_labels(mat: BCOO, labels: str, batch: str) -> tuple[BCOO, str]:
    """Return an array whose batch dims have the labels `batch`, without dense dims, and the labels of its dims."""
    mat = bcoo_update_layout(mat, n_dense=0)
    front = [labels.index(label) for label in batch]
    order = [*front, *(dim for dim in range(mat.ndim) if dim not in front)]
    if any(dim >= mat.n_batch for dim in front):
        mat = bcoo_update_layout(mat, n_batch=0)
    mat = bcoo_transpose(mat, permutation=order)
    return bcoo_update_layout(mat, n_batch=len(batch), on_inefficient=None), "".join(labels[dim] for dim in order)


def _multiply_matching_pairs(
    left: Array,
    left_indices: Array,
    right: Array,
    right_indices: Array,
    matched: Sequence[tuple[int, int]],
    kept: tuple[Sequence[int], Sequence[int]],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    sparse_shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Return the products of all pairs of elements; pairs whose `matched` coordinates differ are padding."""
    counts = (left.shape[0], right.shape[0])
    a, b = columns(left_indices), columns(right_indices)
    matches = is_inside(left_indices, shapes[0])[:, None] & is_inside(right_indices, shapes[1])
    for left_dim, right_dim in matched:
        matches &= a[left_dim][:, None] == b[right_dim]
    coordinates = [jnp.broadcast_to(a[dim][:, None], counts) for dim in kept[0]]
    coordinates += [jnp.broadcast_to(b[dim], counts) for dim in kept[1]]
    indices = jnp.stack(coordinates, axis=-1) if coordinates else jnp.zeros((*counts, 0), left_indices.dtype)
    data, indices = drop(left[:, None] * right, indices, matches, sparse_shape)
    return data.reshape(-1), indices.reshape(counts[0] * counts[1], len(sparse_shape))


def bcoo_dot_general_sampled(
    A: ArrayLike, B: ArrayLike, indices: ArrayLike, *, dimension_numbers: DimensionNumbers
) -> Array:
    """Contract two dense arrays, and compute the result at given coordinates only.

    Args:
        A, B: the dense arrays.
        indices: coordinates of shape `(*batch, nse, n_sparse)`, where the batch dims are the first dims of the result.
        dimension_numbers: `((A_contracting, B_contracting), (A_batch, B_batch))`, as for `lax.dot_general`.

    Returns:
        The elements at these coordinates, of shape `(*batch, nse, *dense)`; 0 for coordinates outside.

    Raises:
        TypeError: if the dims do not match.
        ValueError: if the coordinates have more dims than the result.

    Example:
        >>> a = jnp.arange(4.0).reshape(2, 2)
        >>> dims = (((1,), (0,)), ((), ()))
        >>> jax.experimental.sparse.bcoo_dot_general_sampled(a, a, jnp.array([[0, 1]]), dimension_numbers=dims)
        Array([3.], dtype=float32)
    """
    left, right, at = (as_operand(x, "bcoo_dot_general_sampled") for x in (A, B, indices))
    labels, shape = parse_dimension_numbers("bcoo_dot_general_sampled", left.shape, right.shape, dimension_numbers)
    n_batch, n_sparse = at.ndim - 2, at.shape[-1]
    if n_batch < 0 or n_batch + n_sparse > len(shape):
        raise ValueError(
            f"bcoo_dot_general_sampled: coordinates of shape {at.shape} need (*batch, nse, n_sparse), with at most the "
            f"{len(shape)} dims of the result"
        )
    batch, sampled = labels.out[:n_batch], labels.out[n_batch : n_batch + n_sparse]
    sample: Callable[..., Array] = partial(_sample, sampled=sampled, labels=_without_labels(labels, batch))
    for index in reversed(range(n_batch)):
        remaining = _without_labels(labels, batch[:index])
        left_dim, right_dim = (
            each.index(batch[index]) if batch[index] in each else None for each in (remaining.left, remaining.right)
        )
        sample = vmap(sample, (left_dim, right_dim, 0))
    return sample(left, right, at)


def _without_labels(labels: Labels, removed: str) -> Labels:
    return Labels(*("".join(label for label in each if label not in removed) for each in labels))


def _sample(left: Array, right: Array, indices: Array, sampled: str, labels: Labels) -> Array:
    """Contract two dense arrays at coordinates along the dims `sampled` of the result."""
    element = _unused_label(labels)
    terms, rows = [], []
    for operand, own in ((left, labels.left), (right, labels.right)):
        at = _shared_labels(sampled, own)
        rest = "".join(label for label in own if label not in at)
        ordered = jnp.transpose(operand, [own.index(label) for label in at + rest])
        rows.append(look_up(ordered, indices[:, np.array([sampled.index(label) for label in at], int)]))
        terms.append(element + rest)
    blocks = "".join(label for label in labels.out if label not in sampled)
    return jnp.einsum(f"{terms[0]},{terms[1]}->{element}{blocks}", *rows)


def _unused_label(labels: Labels) -> str:
    """Return a label for the stored elements."""
    return next(label for label in reversed(string.ascii_letters) if label not in "".join(labels))

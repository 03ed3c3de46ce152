"""Layouts of BCOO arrays, and calls of their functions with the same function of dense arrays.

A call is a function of an `Api` and a sparse array; its oracle is a function of the dense array. Arrays have
duplicates, unsorted coordinates and padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True)
class Api:
    """The modules of Shardwise or of JAX."""

    jnp: Any
    lax: Any
    sparse: Any


@final
@dataclass(frozen=True)
class Layout:
    """The shape of a sparse array, and how many of its dims are batch and dense dims."""

    shape: tuple[int, ...]
    n_batch: int = 0
    n_dense: int = 0
    nse: int = 8

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))}-batch{self.n_batch}-dense{self.n_dense}"

    @property
    def sparse_dims(self) -> range:
        return range(self.n_batch, len(self.shape) - self.n_dense)

    def arrays(self, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
        """Return random elements and coordinates: about one in eight is padding, and some repeat."""
        random = np.random.default_rng(len(self.shape))
        batch, dense = self.shape[: self.n_batch], self.shape[len(self.shape) - self.n_dense :]
        sizes = np.array([self.shape[dim] for dim in self.sparse_dims])
        indices = random.integers(0, sizes, (*batch, self.nse, len(sizes)))
        is_padding = random.random((*batch, self.nse)) < 0.125
        indices = np.where(is_padding[..., None], sizes, indices).astype(np.int32)
        return random.normal(size=(*batch, self.nse, *dense)).astype(dtype), indices

    def dense(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the dense array."""
        result = np.zeros(self.shape, data.dtype)
        sizes = [self.shape[dim] for dim in self.sparse_dims]
        for position in np.ndindex(*indices.shape[:-1]):
            if (indices[position] < sizes).all():
                result[(*position[:-1], *indices[position])] += data[position]
        return result


LAYOUTS = [
    Layout((4, 5)),
    Layout((2, 4, 5), n_batch=1),
    Layout((4, 5, 3), n_dense=1),
    Layout((9,)),
    Layout((2, 4, 3), n_batch=1, n_dense=1),
    Layout((2, 3, 4, 5), n_batch=2),
]


def operand(shape: tuple[int, ...]) -> np.ndarray:
    """Return a dense operand without small or equal elements."""
    return (1.5 + np.sin(np.arange(np.prod(shape, dtype=int)))).reshape(shape).astype(np.float32)


@final
@dataclass(frozen=True)
class Call:
    """A call with a sparse array, and the same with a dense one.

    Attributes:
        sparse: a function of an `Api` and a BCOO array.
        dense: a function of an `Api` and the dense array; None if it is the same function.
        jax_has_it: whether JAX supports the call, so that the layouts of the results can be compared.
    """

    sparse: Callable[[Api, Any], Any]
    dense: Callable[[Api, Any], Any] | None = None
    jax_has_it: bool = True

    def expected(self, api: Api, x: Any) -> Any:
        return (self.sparse if self.dense is None else self.dense)(api, x)


def calls(layout: Layout) -> dict[str, Call]:
    """Return the calls that apply to a layout, by name."""
    shape, rank = layout.shape, len(layout.shape)
    first, last = layout.sparse_dims.start, layout.sparse_dims.stop - 1
    starts = [1 if size > 2 else 0 for size in shape]
    limits = [size - 1 if size > 2 else size for size in shape]
    steps = [2] * rank
    slices = tuple(map(slice, starts, limits, steps))
    sizes = [limit - start for start, limit in zip(starts, limits, strict=True)]
    matrix = operand((shape[first], 3))
    with_batch = operand((*shape[: layout.n_batch], shape[first], 2))
    batch_dims = tuple(range(layout.n_batch))
    reversed_sparse = (*range(first), *reversed(layout.sparse_dims), *range(last + 1, rank))
    ends = tuple(sorted({0, rank - 1}))

    def dot(left_dims, right_dims, left_batch=(), right_batch=()):
        return ((left_dims, right_dims), (left_batch, right_batch))

    def contract(right, dims):
        return Call(
            lambda api, x: api.sparse.bcoo_dot_general(x, right, dimension_numbers=dims),
            lambda api, x: api.lax.dot_general(x, right, dims),
        )

    def contract_from_left(left, dims):
        return Call(
            lambda api, x: api.sparse.bcoo_dot_general(left, x, dimension_numbers=dims),
            lambda api, x: api.lax.dot_general(left, x, dims),
        )

    self_dims = dot((first,), (first,), batch_dims, batch_dims)
    # In JAX, padding of the first operand becomes an element of the second one if there is one sparse dim.
    has_padding_after_concatenation = len(layout.sparse_dims) > 1
    table = {
        "todense": Call(lambda api, x: api.sparse.bcoo_todense(x), lambda api, x: x),
        "sort": Call(lambda api, x: api.sparse.bcoo_sort_indices(x), lambda api, x: x),
        "sum_duplicates": Call(lambda api, x: api.sparse.bcoo_sum_duplicates(x, nse=x.nse), lambda api, x: x),
        "sum_duplicates_padded": Call(lambda api, x: x.sum_duplicates(nse=x.nse + 3), lambda api, x: x),
        "negative": Call(lambda api, x: -x),
        "absolute": Call(lambda api, x: abs(x)),
        "square": Call(lambda api, x: x**2),
        "scale": Call(lambda api, x: 2 * x / 3),
        "multiply": Call(lambda api, x: x * operand(shape)),
        "multiply_broadcast": Call(lambda api, x: x * operand(shape[-1:])),
        "divide": Call(lambda api, x: x / operand(shape)),
        "multiply_dense": Call(
            lambda api, x: api.sparse.BCOO((api.sparse.bcoo_multiply_dense(x, operand(shape)), x.indices), shape=shape),
            lambda api, x: x * operand(shape),
        ),
        "add": Call(lambda api, x: x + api.sparse.bcoo_sort_indices(2 * x), lambda api, x: x + 2 * x),
        "add_same_coordinates": Call(lambda api, x: x + 2 * x),
        "add_dense": Call(lambda api, x: x + operand(shape)),
        "subtract": Call(lambda api, x: x - api.sparse.bcoo_sort_indices(2 * x), lambda api, x: x - 2 * x),
        "subtract_dense": Call(lambda api, x: operand(shape) - x, jax_has_it=False),
        "multiply_sparse": Call(lambda api, x: api.sparse.bcoo_multiply_sparse(x, x), lambda api, x: x * x),
        "sum": Call(lambda api, x: x.sum()),
        **{f"sum_{dim}": Call(lambda api, x, dim=dim: x.sum(dim)) for dim in range(rank)},
        "reduce_sum": Call(lambda api, x: api.sparse.bcoo_reduce_sum(x, axes=ends), lambda api, x: x.sum(ends)),
        "transpose": Call(
            lambda api, x: api.sparse.bcoo_transpose(x, permutation=reversed_sparse),
            lambda api, x: api.jnp.transpose(x, reversed_sparse),
        ),
        "flatten_sparse": Call(
            lambda api, x: x.reshape((*shape[:first], -1, *shape[last + 1 :])),
        ),
        "rev": Call(lambda api, x: api.sparse.bcoo_rev(x, range(rank)), lambda api, x: api.lax.rev(x, range(rank))),
        "slice": Call(
            lambda api, x: api.sparse.bcoo_slice(x, start_indices=starts, limit_indices=limits, strides=steps),
            lambda api, x: x[slices],
        ),
        "dynamic_slice": Call(
            lambda api, x: api.sparse.bcoo_dynamic_slice(x, starts, sizes),
            lambda api, x: api.lax.dynamic_slice(x, starts, sizes),
        ),
        "dynamic_slice_clamped": Call(
            lambda api, x: api.sparse.bcoo_dynamic_slice(x, [9] * rank, sizes),
            lambda api, x: api.lax.dynamic_slice(x, [9] * rank, sizes),
        ),
        "index": Call(lambda api, x: x[1]),
        "index_negative": Call(lambda api, x: x[-1]),
        "index_range": Call(lambda api, x: x[1:, ...]),
        # JAX's gather drops the dense dims of its result.
        "index_array": Call(lambda api, x: x[np.array([1, 0, 1])], jax_has_it=layout.n_dense == 0),
        "new_leading_dim": Call(lambda api, x: x[None]),
        "concatenate": Call(
            lambda api, x: api.sparse.bcoo_concatenate([x, 2 * x], dimension=first),
            lambda api, x: api.jnp.concatenate([x, 2 * x], first),
            jax_has_it=has_padding_after_concatenation,
        ),
        "concatenate_first": Call(
            lambda api, x: api.sparse.bcoo_concatenate([x, 2 * x], dimension=0),
            lambda api, x: api.jnp.concatenate([x, 2 * x], 0),
            jax_has_it=has_padding_after_concatenation,
        ),
        "broadcast": Call(
            lambda api, x: api.sparse.bcoo_broadcast_in_dim(
                x, shape=(2, *shape), broadcast_dimensions=range(1, rank + 1)
            ),
            lambda api, x: api.jnp.broadcast_to(x, (2, *shape)),
        ),
        "squeeze": Call(lambda api, x: api.sparse.bcoo_squeeze(x[None], dimensions=(0,)), lambda api, x: x),
        "sparse_layout": Call(lambda api, x: x.update_layout(n_batch=0, n_dense=0), lambda api, x: x),
        "more_batch_dims": Call(
            lambda api, x: x.update_layout(n_batch=layout.n_batch + 1, on_inefficient=None), lambda api, x: x
        ),
        "more_dense_dims": Call(
            lambda api, x: x.update_layout(n_dense=layout.n_dense + 1, on_inefficient=None), lambda api, x: x
        ),
        "contract": contract(matrix, dot((first,), (0,))),
        "contract_from_left": contract_from_left(matrix, dot((0,), (first,))),
        "contract_batch": contract(with_batch, dot((first,), (layout.n_batch,), batch_dims, batch_dims)),
        "contract_all": contract(operand(shape), dot(tuple(range(rank)), tuple(range(rank)))),
        "outer_product": contract(operand((2,)), dot((), ())),
        "contract_sparse": Call(
            lambda api, x: api.sparse.bcoo_dot_general(x, x, dimension_numbers=self_dims),
            lambda api, x: api.lax.dot_general(x, x, self_dims),
            jax_has_it=layout.n_dense == 0,
        ),
    }
    if layout.n_dense:  # JAX contracts sparse dims and batch dims only
        table["contract_all"] = Call(table["contract_all"].sparse, table["contract_all"].dense, jax_has_it=False)
    return table

"""Products of rows with the matrix of each row's group, in blocks of rows of one group.

`lax.ragged_dot` has the same result. It multiplies every row with the matrices of all groups, and masks: rows may then
be sharded by the planner. Here rows are on one device, and a loop over blocks multiplies each row once. The number of
iterations depends on the sizes of the groups, so rows after the last group cost nothing.
"""

from collections.abc import Callable

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.control import fori_loop
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.parallel.axis_region import vary_alike
from shardwise.parallel.routing import starts


def grouped_dot(rows: Array, matrices: Array, sizes: Array, block: int) -> Array:
    """Multiply rows, sorted by group, by the matrix of their group.

    Args:
        rows: [rows, features].
        matrices: one per group, [groups, features, results].
        sizes: the number of rows of each group, int32 [groups].
        block: the number of rows of a block. `block_size` chooses it.

    Returns:
        [rows, results]; zeros after the last group.
    """
    dtype = jnp.promote_types(rows.dtype, matrices.dtype)
    rows, matrices, sizes = vary_alike(rows.astype(dtype), matrices.astype(dtype), sizes)
    return _product((1, min(block, rows.shape[0])), rows, matrices, sizes)


def block_size(rows: int) -> int:
    """Return the number of rows of a block for groups of about `rows` rows.

    On a GPU an iteration of the loop takes about 40 µs beside its product, so blocks are as large as groups. The last
    block of a group is multiplied entirely, so they are not larger.
    """
    return min(4096, max(512, 1 << max(0, rows - 1).bit_length()))


def _for_each_block(
    size: int, rows: Array, sizes: Array, body: Callable[[Array, Array, Array, Array], Array], carry: Array
) -> Array:
    """Return the carry after `body(carry, group, start, is_inside)` for all blocks of all groups.

    A block has `size` rows from `start` on. `is_inside` says which of them are in the group, and in no block before.
    """
    count = sizes.shape[0]
    blocks = (sizes + size - 1) // size
    first_block, first_row = starts(blocks), starts(sizes)
    ends = first_row + sizes
    limit = rows.shape[0] - size  # the last start of a block

    def step(number: Array, carry: Array) -> Array:
        is_begun = (first_block <= number) & (blocks > 0)
        group = jnp.where(is_begun, jnp.arange(count, dtype=jnp.int32), 0).max()
        wanted = first_row[group] + (number - first_block[group]) * size
        start = jnp.minimum(wanted, limit)
        row = start + jnp.arange(size, dtype=jnp.int32)
        return body(carry, group, start, ((row >= wanted) & (row < ends[group]))[:, None])

    return fori_loop(0, blocks.sum(), step, carry)


_Options = tuple[int, int]  # the dim of the matrices to contract, and the rows of a block
_Residuals = tuple[Array, Array, Array]  # the rows, the matrices, and the sizes of the groups


def _multiply(options: _Options, rows: Array, matrices: Array, sizes: Array) -> Array:
    """Contract the last dim of rows with a dim of the matrices."""
    contract, size = options

    def write(result: Array, group: Array, start: Array, is_inside: Array) -> Array:
        matrix = lax.dynamic_index_in_dim(matrices, group, 0, keepdims=False)
        product = lax.dot_general(
            lax.dynamic_slice_in_dim(rows, start, size), matrix, (((1,), (contract - 1,)), ((), ()))
        )
        merged = jnp.where(is_inside, product, lax.dynamic_slice_in_dim(result, start, size))
        return lax.dynamic_update_slice_in_dim(result, merged, start, 0)

    result = vary_alike(jnp.zeros((rows.shape[0], matrices.shape[3 - contract]), rows.dtype), rows)[0]
    return _for_each_block(size, rows, sizes, write, result)


def _multiply_forward(options: _Options, rows: Array, matrices: Array, sizes: Array) -> tuple[Array, _Residuals]:
    return _multiply(options, rows, matrices, sizes), (rows, matrices, sizes)


def _multiply_backward(options: _Options, residuals: _Residuals, cotangent: Array) -> tuple[Array, Array, None]:
    (contract, size), (rows, matrices, sizes) = options, residuals
    dtype = jnp.promote_types(matrices.dtype, jnp.float32)

    def add(total: Array, group: Array, start: Array, is_inside: Array) -> Array:
        left, right = (rows, cotangent) if contract == 1 else (cotangent, rows)
        left, right = (jnp.where(is_inside, lax.dynamic_slice_in_dim(each, start, size), 0) for each in (left, right))
        term = lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=dtype)
        before = lax.dynamic_index_in_dim(total, group, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(total, before + term, group, 0)

    zeros = vary_alike(jnp.zeros(matrices.shape, dtype), rows)[0]
    of_matrices = _for_each_block(size, rows, sizes, add, zeros)
    of_rows = _product((3 - contract, size), cotangent, matrices, sizes)
    return of_rows, of_matrices.astype(matrices.dtype), None


_product = custom_vjp(_multiply, nondiff_argnums=(0,))
_product.defvjp(_multiply_forward, _multiply_backward)

"""Collective matmul: a product after an all-gather, or before a reduce-scatter, as a ring of permutes and products.

    all_gather_matmul      all_gather(x) @ w: while blocks of x travel, each device multiplies those that have arrived
    matmul_reduce_scatter  reduce_scatter(x @ w): while sums of blocks travel, each device computes its next term

Data travels in both directions at once, so that a ring of n devices needs n/2 steps. Neither the gathered operand nor
the product before its reduction is ever in memory. The derivative of one with respect to x is the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import AxisRegion, MeshAxes, axis_text, vary_alike
from shardwise.parallel.ring import Ring, ring_region, shard_spec
from shardwise.typing import ArrayLike

_F32 = np.dtype(np.float32)


def all_gather_matmul(
    x: ArrayLike, w: ArrayLike, *, axis: MeshAxes, dim: int = -2, mesh: Mesh | AbstractMesh | None = None
) -> Array:
    """Compute `x @ w` where a mesh axis shards a dim of `x` and the columns of `w`, by a ring of permutes.

    Each device multiplies all of `x` with its columns of `w`, block by block, while the blocks of `x` travel. There is
    no all-gather, and no device holds all of `x`. Other mesh axes may shard the other dims.

    Inside a `shard_map` over `axis`, `x` and `w` are shards, and so is the result: it has all rows and some columns.

    Args:
        x: an array [..., M, K].
        w: an array [K, N] with the dtype of `x`.
        axis: the mesh axis, or a tuple of axes.
        dim: the dim of `x` that the axis shards; not the last one.
        mesh: the mesh; by default the current one.

    Returns:
        An array [..., M, N], sharded along its last dim.

    Raises:
        StrategyError: if the mesh has no such axis, if the shapes or dtypes do not match, or if the devices do not
            divide `dim` of `x` or the columns of `w`.
        TypeError: if an operand is not an array.

    Example:
        >>> mesh = jax.make_mesh((4,), ("model",))
        >>> y = jax.parallel.all_gather_matmul(jnp.ones((8, 2)), jnp.ones((2, 12)), axis="model", mesh=mesh)
        >>> y.shape, y.sharding.spec
        ((8, 12), P(None, 'model'))
    """
    name = "all_gather_matmul"
    region = ring_region(name, axis, mesh)
    x_type, w_type, dim = _check_types(name, x, w, dim)
    region.shard_size(name, f"dim {dim} of x {x_type}", x_type.shape[dim])
    region.shard_size(name, f"the number of columns of w {w_type}", w_type.shape[1])
    return _run(region, _gather_multiply, x, w, dim, (dim, 1, x_type.ndim - 1))


def matmul_reduce_scatter(
    x: ArrayLike, w: ArrayLike, *, axis: MeshAxes, dim: int = -2, mesh: Mesh | AbstractMesh | None = None
) -> Array:
    """Compute `x @ w` where a mesh axis shards the contracted dim, and then a dim of the result, by a ring of permutes.

    Each device multiplies its columns of `x` with its rows of `w`, block by block, and the sums of the blocks travel.
    There is no reduce-scatter, and no device holds all of the product. Other mesh axes may shard the other dims.

    Inside a `shard_map` over `axis`, `x` and `w` are shards, and so is the result: it has some rows and all columns.

    Args:
        x: an array [..., M, K].
        w: an array [K, N] with the dtype of `x`.
        axis: the mesh axis, or a tuple of axes.
        dim: the dim of the result that the axis shards; not the last one.
        mesh: the mesh; by default the current one.

    Returns:
        An array [..., M, N], sharded along `dim`.

    Raises:
        StrategyError: if the mesh has no such axis, if the shapes or dtypes do not match, or if the devices do not
            divide `dim` or the rows of `w`.
        TypeError: if an operand is not an array.

    Example:
        >>> mesh = jax.make_mesh((4,), ("model",))
        >>> y = jax.parallel.matmul_reduce_scatter(jnp.ones((8, 12)), jnp.ones((12, 2)), axis="model", mesh=mesh)
        >>> y.shape, y.sharding.spec
        ((8, 2), P('model'))
    """
    name = "matmul_reduce_scatter"
    region = ring_region(name, axis, mesh)
    x_type, w_type, dim = _check_types(name, x, w, dim)
    _check_divisible(name, region, x_type, dim)
    region.shard_size(name, f"the number of rows of w {w_type}", w_type.shape[0])
    return _run(region, _multiply_scatter, x, w, dim, (x_type.ndim - 1, 0, dim))


def _check_types(name: str, x: ArrayLike, w: ArrayLike, dim: int) -> tuple[ArrayType, ArrayType, int]:
    """Return the types of the operands, and `dim` as a nonnegative number."""
    x_type, w_type = type_of(x, name), type_of(w, name)
    if x_type.ndim < 2 or w_type.ndim != 2 or x_type.shape[-1] != w_type.shape[0]:
        raise StrategyError(f"{name}: x and w must be [..., M, K] and [K, N], not {x_type} and {w_type}")
    if x_type.dtype != w_type.dtype:
        raise StrategyError(f"{name}: x and w must have the same dtype, not {x_type} and {w_type}")
    if not -x_type.ndim <= dim < x_type.ndim or dim % x_type.ndim == x_type.ndim - 1:
        raise StrategyError(f"{name}: dim must be a dim of x {x_type} other than the last one, not {dim}")
    return x_type, w_type, dim % x_type.ndim


def _check_divisible(name: str, region: AxisRegion, x: ArrayType, dim: int) -> None:
    """Check that the devices divide a dim of `x` that is not sharded."""
    if x.shape[dim] % region.size:
        raise StrategyError(
            f"{name}: dim {dim} of x {x} has size {x.shape[dim]}, which the {region.size} devices along "
            f"{axis_text(region.axes)} do not divide. Pad it, or use another mesh."
        )


def _run(
    region: AxisRegion,
    function: Callable[[Ring, int, Array, Array], Array],
    x: ArrayLike,
    w: ArrayLike,
    dim: int,
    sharded: tuple[int, int, int],
) -> Array:
    """Run `function` on shards; `sharded` are the dims of x, w and the result that the axis shards."""
    ring = Ring(region.axes, region.size)

    def on_shards(x: Array, w: Array) -> Array:
        return function(ring, dim, *vary_alike(*lax.pcast((x, w), region.axes, to="varying")))

    x_spec, w_spec, out_spec = (shard_spec(region, each) for each in sharded)
    return region.run(on_shards, (x_spec, w_spec), out_spec, jnp.asarray(x), jnp.asarray(w))


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _gather_multiply(ring: Ring, dim: int, x: Array, w: Array) -> Array:
    """Return the product of the blocks of `x` on all devices, joined along `dim`, with this device's `w`."""

    def multiply(y: Array, block: Array, source: Array) -> Array:
        return _write_block(y, _dot(block, w).astype(x.dtype), source, dim)

    own = jnp.expand_dims(_dot(x, w).astype(x.dtype), dim)
    # Every block is overwritten. Its type, also its sharding, is that of a product.
    y = jnp.broadcast_to(own, (*own.shape[:dim], ring.size, *own.shape[dim + 1 :]))
    return _join_blocks(ring.visit_others(x, multiply, y), dim)


def _gather_multiply_forward(ring: Ring, dim: int, x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return _gather_multiply(ring, dim, x, w), (x, w)


def _gather_multiply_backward(ring: Ring, dim: int, residuals: tuple[Array, Array], ct_y: Array) -> tuple[Array, Array]:
    x, w = residuals
    x = lax.optimization_barrier(x)  # its blocks are sent again: sharing those of the forward pass would keep all of x
    blocks = _split_blocks(ct_y, dim, ring.size)

    def add(ct_w: Array, block: Array, source: Array) -> Array:
        return ct_w + _dot_rows(block, _read_block(blocks, source, dim), w)

    ct_w = ring.visit_others(x, add, _dot_rows(x, _read_block(blocks, ring.index(), dim), w))
    return _multiply_scatter(ring, dim, ct_y, w.T), ct_w.astype(w.dtype)


_gather_multiply.defvjp(_gather_multiply_forward, _gather_multiply_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _multiply_scatter(ring: Ring, dim: int, x: Array, w: Array) -> Array:
    """Return this device's block along `dim` of the sum over all devices of `x @ w`."""
    blocks = _split_blocks(x, dim, ring.size)
    return ring.sum_terms(lambda target: _dot(_read_block(blocks, target, dim), w), x.dtype)


def _multiply_scatter_forward(ring: Ring, dim: int, x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return _multiply_scatter(ring, dim, x, w), (x, w)


def _multiply_scatter_backward(
    ring: Ring, dim: int, residuals: tuple[Array, Array], ct_y: Array
) -> tuple[Array, Array]:
    """Return the cotangents; the blocks of `ct_y` travel once for both."""
    x, w = residuals
    blocks = _split_blocks(x, dim, ring.size)

    def visit(carry: tuple[Array, Array], block: Array, source: Array) -> tuple[Array, Array]:
        ct_x, ct_w = carry
        term = _dot_rows(_read_block(blocks, source, dim), block, w)
        return _write_block(ct_x, _dot(block, w.T).astype(x.dtype), source, dim), ct_w + term

    own = jnp.expand_dims(_dot(ct_y, w.T).astype(x.dtype), dim)
    ct_x = jnp.broadcast_to(own, (*own.shape[:dim], ring.size, *own.shape[dim + 1 :]))
    ct_w = _dot_rows(_read_block(blocks, ring.index(), dim), ct_y, w)
    ct_x, ct_w = ring.visit_others(ct_y, visit, (ct_x, ct_w))
    return _join_blocks(ct_x, dim), ct_w.astype(w.dtype)


_multiply_scatter.defvjp(_multiply_scatter_forward, _multiply_scatter_backward)


def _accumulation_dtype(x: Array) -> np.dtype[Any] | None:
    """Return the dtype in which products are accumulated; None for their own dtype."""
    return _F32 if x.dtype.itemsize < _F32.itemsize else None


def _dot(x: Array, w: Array) -> Array:
    """Return `x @ w`, not rounded to the dtype of narrow operands."""
    return lax.dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=_accumulation_dtype(x))


def _dot_rows(x: Array, y: Array, w: Array) -> Array:
    """Return the product of [..., K] and [..., N] over all dims but the last: a term of the cotangent of `w` [K, N].

    If both are sharded along Explicit axes, the sum over these axes has the sharding of `w`.
    """
    rows = tuple(range(x.ndim - 1))
    spec = w.type.sharding.spec if w.type.explicit else PartitionSpec()
    return lax.dot_general(
        x,
        y,
        ((rows, rows), ((), ())),
        preferred_element_type=_accumulation_dtype(x),
        out_sharding=spec if x.type.explicit else None,
    )


def _split_blocks(x: Array, dim: int, count: int) -> Array:
    """Split `dim` into two dims: the number of a block, and the position in it."""
    return x.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])


def _join_blocks(x: Array, dim: int) -> Array:
    return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :])


def _read_block(blocks: Array, number: ArrayLike, dim: int) -> Array:
    return lax.dynamic_index_in_dim(blocks, number, dim, keepdims=False)


def _write_block(blocks: Array, block: Array, number: ArrayLike, dim: int) -> Array:
    return lax.dynamic_update_index_in_dim(blocks, block, number, dim)

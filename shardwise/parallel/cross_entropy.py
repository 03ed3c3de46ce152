"""Cross entropy over a vocabulary that may be sharded, without an array of all logits.

Each device computes the logits of one block of its vocabulary at a time, and keeps their log-sum-exp and the logit of
the label. Devices along the vocabulary's axis then combine these: two numbers per token. The backward pass computes
the logits of each block again.
"""

from collections.abc import Callable
from typing import TypeVar

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.control import scan
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import DType, is_float, is_integer
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import AxisRegion, MeshAxes, axis_region, vary_alike
from shardwise.typing import ArrayLike

_NAME = "cross_entropy"
_LANES = 128  # sizes of blocks are multiples of it: products of matrices run fastest so
_Carry = TypeVar("_Carry")
_Result = TypeVar("_Result", Array, None)  # of a block; the results of all blocks are concatenated
_Residuals = tuple[Array, Array, Array, tuple[Array, ...], Array]  # the operands, and the log-sum-exps


def cross_entropy(
    hidden: ArrayLike,
    table: ArrayLike,
    labels: ArrayLike,
    *,
    axis: MeshAxes | None = None,
    vocabulary_dim: int = 0,
    vocabulary_size: int | None = None,
    block: int = 8192,
    z_loss: float = 0.0,
    where: ArrayLike | None = None,
    mesh: Mesh | AbstractMesh | None = None,
) -> Array:
    """Compute the cross entropy of each token's label, without an array of all logits.

    The logits are the products of `hidden` with the rows of `table`. Each device computes the logits of `block` rows at
    a time, twice if the result is differentiated. Products accumulate in float32 at least.

    Args:
        hidden: the last hidden state of each token, [..., features].
        table: an embedding table [vocabulary, features]; a head [features, vocabulary] with `vocabulary_dim=1`.
        labels: the index of each token's label, integers [...].
        axis: the mesh axis that shards the vocabulary, or a tuple of axes; None if the table is not sharded. Inside a
            `shard_map` over the axis, `table` is the device's shard, and `hidden` and `labels` have all tokens.
        vocabulary_dim: the dim of `table` that is the vocabulary, 0 or 1.
        vocabulary_size: the number of entries of the vocabulary, if the table is padded, so that the devices divide it:
            later entries are not in the sum of exponentials. By default, all entries of the table.
        block: the largest number of vocabulary entries whose logits a device holds at once.
        z_loss: the coefficient of the square of the log-sum-exp of the logits, which is added to the loss.
        where: booleans [...]: the tokens that count. The loss of the others is 0, whatever their label is.
        mesh: the mesh; by default the current one.

    Returns:
        The loss of each token, [...], in float32 at least. It is NaN if the label is outside of the vocabulary.

    Raises:
        StrategyError: if shapes or dtypes do not agree, if the mesh has no such axis, if the devices along it do not
            divide the table, or if `vocabulary_size` exceeds it.

    Example:
        >>> mesh = jax.make_mesh((4,), ("model",))
        >>> table = jax.device_put(jnp.ones((8, 2)), jax.sharding.NamedSharding(mesh, P("model")))
        >>> jax.parallel.cross_entropy(jnp.ones((3, 2)), table, jnp.array([0, 5, 7]), axis="model", mesh=mesh)
        Array([2.0794415, 2.0794415, 2.0794415], dtype=float32)
    """
    region = axis_region(_NAME, axis, mesh)
    _check_operands(hidden, table, labels, where, vocabulary_dim, block)
    hidden, table, labels = as_operand(hidden), as_operand(table), as_operand(labels)
    labels = labels.astype(jnp.promote_types(labels.dtype, jnp.int32))  # the vocabulary may exceed the range of theirs
    size = table.shape[vocabulary_dim]
    hint = f" Pass vocabulary_size={size}, so that the padding does not count."
    rows = region.shard_size(_NAME, "the size of the vocabulary", size, hint)
    entries = _entries(vocabulary_size, rows * region.size)

    def statistics(hidden: Array, table: Array, labels: Array) -> tuple[Array, Array]:
        dtype = jnp.promote_types(hidden.dtype, table.dtype)
        hidden, table = hidden.astype(dtype), table.astype(dtype)
        first = lax.axis_index(region.axes) * rows if region.axes else 0
        operands = [hidden, table, labels - first]
        if entries < rows * region.size:
            operands.append(jnp.asarray(entries - first, labels.dtype))
        operands = vary_alike(*operands)
        return _combine(region, *_local_statistics((vocabulary_dim, block), *operands))

    spec = PartitionSpec(*[None] * vocabulary_dim, region.axes)
    replicated = PartitionSpec()
    total, label_logit = region.run(
        statistics, (replicated, spec, replicated), (replicated, replicated), hidden, table, labels
    )
    loss = total - label_logit
    if z_loss:
        loss = loss + z_loss * total**2
    known = (labels >= 0) & (labels < entries)
    loss = jnp.where(known, loss, jnp.nan)
    return loss if where is None else jnp.where(where, loss, 0)


def _entries(vocabulary_size: int | None, most: int) -> int:
    """Return the number of entries of the vocabulary, of at most `most`, the size of the table."""
    if vocabulary_size is None:
        return most
    if not isinstance(vocabulary_size, int) or not 1 <= vocabulary_size <= most:
        raise StrategyError(
            f"{_NAME}: vocabulary_size must be an integer from 1 to {most}, the size of the table, not "
            f"{vocabulary_size!r}"
        )
    return vocabulary_size


def _combine(region: AxisRegion, total: Array, label_logit: Array) -> tuple[Array, Array]:
    """Combine the log-sum-exps and the logits of the labels of all devices along the axes of a region."""
    if not region.axes:
        return total, label_logit
    largest = lax.pmax(lax.stop_gradient(total), region.axes)
    sums = lax.psum(jnp.stack([jnp.exp(total - largest), label_logit]), region.axes)
    return jnp.log(sums[0]) + largest, sums[1]


def _blocks(table: Array, vocabulary_dim: int, block: int) -> tuple[Array, Array | None]:
    """Divide a table into a stack of equal blocks, and a smaller last block; None in place of one that is empty."""
    rows = table.shape[vocabulary_dim]
    count = -(-rows // block)
    size = rows // count if rows % count == 0 else -(-rows // count // _LANES) * _LANES
    size = min(size, block)
    full = rows // size
    parts = lax.slice_in_dim(table, 0, full * size, axis=vocabulary_dim)
    parts = parts.reshape(*table.shape[:vocabulary_dim], full, size, *table.shape[vocabulary_dim + 1 :])
    rest = lax.slice_in_dim(table, full * size, rows, axis=vocabulary_dim) if full * size < rows else None
    return jnp.moveaxis(parts, vocabulary_dim, 0), rest


def _over_blocks(
    function: Callable[[_Carry, Array, ArrayLike], tuple[_Carry, _Result]],
    carry: _Carry,
    table: Array,
    vocabulary_dim: int,
    block: int,
) -> tuple[_Carry, _Result]:
    """Apply `function` to a carry, each block of a table, and the index of its first entry.

    Returns:
        The last carry, and the results of all blocks concatenated along the vocabulary; None if they are None.
    """
    blocks, rest = _blocks(table, vocabulary_dim, block)
    count, size = blocks.shape[0], blocks.shape[1 + vocabulary_dim]
    if count == 1:
        carry, result = function(carry, blocks[0], 0)
    else:
        starts = jnp.arange(count, dtype=jnp.int32) * size
        carry, result = scan(lambda carry, xs: function(carry, *xs), carry, (blocks, starts))
        if result is not None:
            result = jnp.moveaxis(result, 0, vocabulary_dim).reshape(
                *table.shape[:vocabulary_dim], count * size, *table.shape[vocabulary_dim + 1 :]
            )
    if rest is not None:
        carry, last = function(carry, rest, count * size)
        result = None if last is None else jnp.concatenate([result, last], vocabulary_dim)
    return carry, result


def _logits(hidden: Array, block: Array, start: ArrayLike, entries: tuple[Array, ...], vocabulary_dim: int) -> Array:
    """Return the logits of a block, which starts at an index of the table.

    If the table is padded, `entries` has the index of its first entry of padding. Logits from there on are the lowest
    number, whose exponential is 0.
    """
    contract = (hidden.ndim - 1,), (1 - vocabulary_dim,)
    logits = lax.dot_general(hidden, block, (contract, ((), ())), preferred_element_type=_sum_dtype(hidden))
    for end in entries:
        index = lax.broadcasted_iota(end.dtype, logits.shape, logits.ndim - 1)
        logits = jnp.where(index < end - start, logits, jnp.finfo(logits.dtype).min)
    return logits


def _sum_dtype(hidden: Array) -> DType:
    """Return the dtype of logits and sums: float32 at least."""
    return jnp.promote_types(hidden.dtype, jnp.float32)


def _is_label(labels: Array, start: ArrayLike, logits: Array) -> Array:
    """Return which of the logits of a block, which starts at an index of the vocabulary, are those of the labels."""
    return (labels - start)[..., None] == lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)


def _statistics_of_blocks(
    options: tuple[int, int], hidden: Array, table: Array, labels: Array, *entries: Array
) -> tuple[Array, Array]:
    """Return the log-sum-exp of each token's logits, and the logit of its label; 0 if the table lacks the label."""
    vocabulary_dim, block = options
    dtype = _sum_dtype(hidden)

    def add(
        carry: tuple[Array, Array, Array], block: Array, start: ArrayLike
    ) -> tuple[tuple[Array, Array, Array], None]:
        before, total, label_logit = carry
        logits = _logits(hidden, block, start, entries, vocabulary_dim)
        largest = jnp.maximum(before, logits.max(-1))
        total = total * jnp.exp(before - largest) + jnp.exp(logits - largest[..., None]).sum(-1)
        label_logit = label_logit + jnp.where(_is_label(labels, start, logits), logits, 0).sum(-1)
        return (largest, total, label_logit), None

    zeros = jnp.zeros(labels.shape, dtype)
    lowest = jnp.full(labels.shape, jnp.finfo(dtype).min, dtype)
    (largest, total, label_logit), _ = _over_blocks(add, (lowest, zeros, zeros), table, vocabulary_dim, block)
    return jnp.log(total) + largest, label_logit


def _forward(
    options: tuple[int, int], hidden: Array, table: Array, labels: Array, *entries: Array
) -> tuple[tuple[Array, Array], _Residuals]:
    total, label_logit = _statistics_of_blocks(options, hidden, table, labels, *entries)
    return (total, label_logit), (hidden, table, labels, entries, total)


def _backward(
    options: tuple[int, int], residuals: _Residuals, cotangents: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    """Return the cotangents of `hidden` and `table`, from those of the log-sum-exps and of the labels' logits."""
    vocabulary_dim, block = options
    hidden, table, labels, entries, total = residuals
    of_total, of_label = (cotangent[..., None] for cotangent in cotangents)
    dtype = _sum_dtype(hidden)
    tokens = tuple(range(labels.ndim))

    def add(of_hidden: Array, block: Array, start: ArrayLike) -> tuple[Array, Array]:
        logits = _logits(hidden, block, start, entries, vocabulary_dim)
        of_logits = of_total * jnp.exp(logits - total[..., None])
        of_logits = (of_logits + jnp.where(_is_label(labels, start, logits), of_label, 0)).astype(hidden.dtype)
        contract = (labels.ndim,), (vocabulary_dim,)
        term = lax.dot_general(of_logits, block, (contract, ((), ())), preferred_element_type=dtype)
        factors = (hidden, of_logits) if vocabulary_dim else (of_logits, hidden)
        of_block = lax.dot_general(*factors, ((tokens, tokens), ((), ())), preferred_element_type=dtype)
        return of_hidden + term, of_block.astype(table.dtype)

    of_hidden, of_table = _over_blocks(add, jnp.zeros(hidden.shape, dtype), table, vocabulary_dim, block)
    return of_hidden.astype(hidden.dtype), of_table, None, *[None] * len(entries)


_local_statistics = custom_vjp(_statistics_of_blocks, nondiff_argnums=(0,))
_local_statistics.defvjp(_forward, _backward)


def _check_operands(
    hidden: ArrayLike, table: ArrayLike, labels: ArrayLike, where: ArrayLike | None, vocabulary_dim: int, block: int
) -> None:
    """Raise StrategyError if the operands do not agree."""
    x, rows, targets = (type_of(operand, _NAME) for operand in (hidden, table, labels))
    if vocabulary_dim not in (0, 1):
        raise StrategyError(f"{_NAME}: vocabulary_dim must be 0 or 1, not {vocabulary_dim!r}")
    if not isinstance(block, int) or block < 1:
        raise StrategyError(f"{_NAME}: block must be a positive number of vocabulary entries, not {block!r}")
    if not is_float(x.dtype) or not is_float(rows.dtype):
        raise StrategyError(f"{_NAME}: hidden and table must hold floating-point numbers, not {x} and {rows}")
    if not is_integer(targets.dtype):
        raise StrategyError(f"{_NAME}: labels must be integers, indices of the vocabulary, not {targets}")
    if x.ndim < 1 or targets.shape != x.shape[:-1]:
        raise StrategyError(
            f"{_NAME}: labels {targets} must have the shape of hidden {x} without its last dim: {x.shape[:-1]}"
        )
    if rows.ndim != 2 or rows.shape[1 - vocabulary_dim] != x.shape[-1]:
        expected = "[features, vocabulary]" if vocabulary_dim else "[vocabulary, features]"
        other = " A head [features, vocabulary] needs vocabulary_dim=1." if not vocabulary_dim else ""
        raise StrategyError(
            f"{_NAME}: table {rows} must be {expected} with {x.shape[-1]} features, as hidden {x}.{other}"
        )
    if where is not None:
        mask = type_of(where, _NAME)
        if mask.dtype != bool or mask.shape != targets.shape:
            raise StrategyError(f"{_NAME}: where must be booleans of shape {targets.shape}, as labels, not {mask}")

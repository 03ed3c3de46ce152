"""Gradient accumulation: a function of a large batch as a loop over microbatches."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.control import scan
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError
from shardwise.strategies.fp8_scales import FP8Scales
from shardwise.strategies.leaves import is_array, leaf_name
from shardwise.tree_util import KeyPath
from shardwise.typing import ArrayLike

_NAME = "accumulate_gradients"


def accumulate_gradients(
    function: Callable[..., Any], microbatches: int, *, batch_argnums: int | Sequence[int] | None = None
) -> Callable[..., Any]:
    """Return a function that calls another one on each part of a batch, and returns the mean of the results.

    The loop is one `scan`, so only the activations of one microbatch are in memory. Each device divides its own rows:
    microbatch `i` has every row whose number is `i` modulo `microbatches`, and no row moves. Gradients stay unreduced
    over the axes of the batch until the loop ends: they are all-reduced, or reduce-scattered, once.

    Args:
        function: a function such as `value_and_grad(loss)`, where the loss is a mean over the rows of the batch.
        microbatches: the number of parts.
        batch_argnums: the positions of the arguments that are batches: pytrees of arrays with the rows along the first
            dim. By default, all but the first.

    Returns:
        A function with the arguments and results of `function`. Floating-point results are means, which are accumulated
        in float32 at least. Integer results are sums. Of `FP8Scales`, the cotangents of the scales, the results have
        the largest elements.

    Raises:
        StrategyError: if `microbatches` is less than 1. When it is called, if there is no batch, if its
            arrays differ in their rows, if `microbatches` does not divide these, or if a result is not a number.

    Example:
        >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
        >>> step = jax.strategies.accumulate_gradients(jax.value_and_grad(loss), 4)
        >>> value, gradient = step(jnp.ones(2), jnp.ones((8, 2)))
        >>> value, gradient
        (Array(4., dtype=float32), Array([4., 4.], dtype=float32))
    """
    if not isinstance(microbatches, int) or microbatches < 1:
        raise StrategyError(f"{_NAME}: microbatches must be an integer of at least 1, not {microbatches!r}")

    @wraps(function)
    def call(*args: object, **keywords: object) -> Any:
        positions = _positions(batch_argnums, len(args))
        parts = {position: _split(args[position], position, microbatches) for position in positions}

        def call_part(part: dict[int, Any]) -> Any:
            return function(*(part.get(position, arg) for position, arg in enumerate(args)), **keywords)

        types = eval_shape(lambda: call_part(tree_util.tree_map(lambda x: x[0], parts)))
        zeros = tree_util.tree_map_with_path(_zeros, types, is_leaf=_has_maxima)

        def add(total: object, part: dict[int, Any]) -> object:
            return tree_util.tree_map(_add, total, call_part(part), is_leaf=_has_maxima), None

        total, _ = scan(add, zeros, parts)
        return tree_util.tree_map(partial(_finish, microbatches), total, types, is_leaf=_has_maxima)

    return call


def _positions(batch_argnums: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    if batch_argnums is None:
        positions = tuple(range(1, count))
    else:
        positions = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    if not positions or not all(0 <= position < count for position in positions):
        raise StrategyError(
            f"{_NAME}: the function was called with {count} positional arguments, of which those at {positions} should "
            "be batches"
        )
    return positions


def _split(batch: object, position: int, microbatches: int) -> Any:
    """Return the microbatches of a batch, stacked along a new first dim."""

    sizes: dict[int, str] = {}

    def split(path: KeyPath, x: ArrayLike) -> Array:
        where = f"argument {position}{' at ' + repr(leaf_name(path)) if path else ''}"
        shape = x.shape if is_array(x) else ()
        if not shape:
            raise StrategyError(f"{_NAME}: {where} is {x!r:.80}, which has no rows: exclude it by `batch_argnums`")
        rows = shape[0]
        if rows % microbatches:
            raise StrategyError(
                f"{_NAME}: {where} has {rows} rows, which {microbatches} microbatches do not divide. Use a batch of "
                f"{-(-rows // microbatches) * microbatches} rows, or another number of microbatches."
            )
        sizes.setdefault(rows, where)
        if len(sizes) > 1:
            texts = ", but ".join(f"{where} has {rows} rows" for rows, where in sizes.items())
            raise StrategyError(f"{_NAME}: {texts}: a batch has equally many rows in all of its arrays")
        # The rows of a device are consecutive: to take every n-th one keeps each of them on its device.
        return jnp.moveaxis(jnp.reshape(x, (rows // microbatches, microbatches, *shape[1:])), 1, 0)

    return tree_util.tree_map_with_path(split, batch)


def _has_maxima(node: object) -> bool:
    return isinstance(node, FP8Scales)


def _zeros(path: KeyPath, type: Any) -> Any:
    """Return zeros to add results of this type to, with its sharding along Explicit mesh axes."""
    if isinstance(type, FP8Scales):
        return tree_util.tree_map_with_path(_zeros, type)
    if jnp.issubdtype(type.dtype, jnp.inexact):
        return jnp.zeros(type.shape, jnp.promote_types(type.dtype, jnp.float32), out_sharding=type.sharding)
    if jnp.issubdtype(type.dtype, jnp.integer):
        return jnp.zeros(type.shape, type.dtype, out_sharding=type.sharding)
    raise StrategyError(f"{_NAME}: the result at {leaf_name(path)!r} has dtype {type.dtype}, which has no mean")


def _add(total: Any, term: Any) -> Any:
    return total.join(term) if isinstance(total, FP8Scales) else total + term.astype(total.dtype)


def _finish(microbatches: int, total: Any, type: Any) -> Any:
    """Return the mean of floating-point results and the sum of integers, in their own dtype. Maxima stay."""
    if isinstance(total, FP8Scales) or not jnp.issubdtype(type.dtype, jnp.inexact):
        return total
    return (total / microbatches).astype(type.dtype)

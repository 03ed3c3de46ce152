"""Sampling from given elements: `categorical`, `permutation` and `choice`."""

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, broadcast_to_shape, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.arrays.reductions import argmax
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.transcendental import Log
from shardwise.compiler.ops.indexing.sort import Sort, TopK
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.prng import random_bits, split_key
from shardwise.numpy.indexing import take
from shardwise.numpy.ordering import cumsum, searchsorted
from shardwise.random.continuous import sample_gumbel
from shardwise.random.families import SAMPLES
from shardwise.random.keys import single_key
from shardwise.random.sampling import StaticShape, broadcast_sample_shape, canonical_shape, check_one_of, run_sampler
from shardwise.random.uniform import sample_randint
from shardwise.typing import ArrayLike, OutSharding, Shape


@documented(SAMPLES, returns="An array of category indices.")
def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample categories from unnormalized log-probabilities.

    Args:
        logits: the unnormalized log-probabilities of the categories along `axis`.
        axis: the axis of the categories.
        shape: the shape of the result, which ends with the dims of `logits` without `axis`; by default these dims.
        replace: whether to sample with replacement. Without it, samples along the dims of `shape` that precede those of
            `logits` are distinct.
        mode: the precision of the Gumbel samples: "low" (the default), "high" or "highest", as for `gumbel`.

    Raises:
        TypeError: if `key` is not a PRNG key, or if the dims of `logits` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `axis` does not exist in `logits`, if `mode` is unknown, if the
            dims of `logits` broadcast to a larger shape than `shape`, or if there are more samples without replacement
            than categories.

    Example:
        >>> jax.random.categorical(jax.random.key(0), jnp.log(jnp.array([0.1, 0.2, 0.7])), shape=(4,))
        Array([1, 2, 2, 1], dtype=int32)
    """
    logits_type = type_of(logits, "categorical")
    dim = canonical_axis("categorical", axis, logits_type.ndim)
    batch = logits_type.without((dim,)).shape
    shape = broadcast_sample_shape("categorical", shape, batch)
    check_one_of("categorical", "mode", mode, (None, "low", "high", "highest"))
    lead = shape[: len(shape) - len(batch)]
    if not replace and math.prod(lead) > logits_type.shape[dim]:
        raise ValueError(
            f"categorical: cannot sample {math.prod(lead)} of {logits_type.shape[dim]} categories without replacement"
        )
    key = single_key("categorical", key)
    return run_sampler(
        _categorical, key, logits, dim=dim, shape=shape, replace=bool(replace), mode=mode, out_sharding=out_sharding
    )


def _categorical(key: Array, logits: Array, *, dim: int, shape: StaticShape, replace: bool, mode: str | None) -> Any:
    logits = as_inexact(logits, "categorical")
    type = logits.type
    lead, batch = shape[: len(shape) - type.ndim + 1], shape[len(shape) - type.ndim + 1 :]
    if replace:
        score_shape = (*lead, *batch[:dim], type.shape[dim], *batch[dim:])
        gumbel = sample_gumbel(key, shape=score_shape, dtype=type.dtype, mode=mode)
        return argmax(gumbel + broadcast_to_shape(logits, score_shape), axis=len(lead) + dim)
    scores = logits + sample_gumbel(key, shape=type.shape, dtype=type.dtype, mode=mode)
    last = type.ndim - 1
    _, indices = TopK(math.prod(lead))(move_dim(scores, dim, last))
    return Reshape(shape)(move_dim(indices, last, 0))


def permutation(
    key: ArrayLike, x: ArrayLike, axis: int = 0, independent: bool = False, *, out_sharding: OutSharding = None
) -> Array:
    """Permute the elements of an array, or of a range, at random.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.
        x: an array, or an integer n for the range from 0 to `n - 1`.
        axis: the axis to permute.
        independent: whether each 1-D slice along `axis` gets a permutation of its own, instead of one for all.
        out_sharding: the sharding of the result.

    Returns:
        An array with the shape and dtype of `x`; of shape `(n,)` for an integer.

    Raises:
        TypeError: if `key` is not a PRNG key, or if `x` is a scalar that is not an integer.
        ValueError: if `key` is an array of keys, or if `axis` does not exist in `x`.

    Example:
        >>> jax.random.permutation(jax.random.key(0), 5)
        Array([0, 1, 4, 3, 2], dtype=int32)
    """
    x_type = type_of(x, "permutation")
    if not x_type.ndim:
        if not is_integer(x_type.dtype):
            raise TypeError(f"permutation: x must be an integer, or an array of at least one dim, not {x_type}")
        count = operator.index(cast(SupportsIndex, x))
        return run_sampler(_random_order, single_key("permutation", key), count=count, out_sharding=out_sharding)
    dim = canonical_axis("permutation", axis, x_type.ndim)
    key = single_key("permutation", key)
    return run_sampler(_permute, key, x, dim=dim, independent=bool(independent), out_sharding=out_sharding)


def _random_order(key: Array, *, count: int) -> Any:
    return _shuffle(key, Iota((count,), 0, default_dtype("int*"))(), 0)


def _permute(key: Array, x: Array, *, dim: int, independent: bool) -> Any:
    x = as_operand(x)
    if independent or x.type.ndim == 1:
        return _shuffle(key, x, dim)
    return take(x, _random_order(key, count=x.type.shape[dim]), axis=dim)


def _shuffle(key: Array, x: Array, dim: int) -> Any:
    """Sort elements by random 32-bit keys, in as many rounds as make the bias of equal sort keys negligible."""
    rounds = math.ceil(3 * math.log(max(1, x.type.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, subkey = split_key(key, 2)
        _, x = Sort(dim)(random_bits(subkey, x.type.shape, 32), x)
    return x


def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Sample elements of an array, or of a range.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.
        a: an array, or an integer n for the range from 0 to `n - 1`.
        shape: the dims of the result in place of `axis`.
        replace: whether to sample with replacement. Without it, no element is sampled twice.
        p: the probability of each element along `axis`; by default uniform.
        axis: the axis of `a` to sample along.
        mode: the precision of the Gumbel samples for weighted sampling without
            replacement: "low" (the default), "high" or "highest", as for `gumbel`.

    Returns:
        An array with the dtype of `a`, whose shape is that of `a` with `shape` in place of `axis`.

    Raises:
        TypeError: if `key` is not a PRNG key, if `shape` is not a tuple of integers, or if `a` is neither an array nor
            an integer.
        ValueError: if `key` is an array of keys, if `axis` does not exist in `a`, if `a` has no elements, if there are
            more samples without replacement than elements, if `p` does not have one entry per element, or if `mode` is
            unknown.

    Example:
        >>> jax.random.choice(jax.random.key(0), 10, (4,))
        Array([9, 0, 2, 3], dtype=int32)
    """
    if not isinstance(shape, Sequence):
        raise TypeError(f"choice: shape must be a tuple, not {shape!r}")
    shape, a_type = canonical_shape("choice", shape), type_of(a, "choice")
    dim = canonical_axis("choice", axis, a_type.ndim) if a_type.ndim else 0
    element_count = a_type.shape[dim] if a_type.ndim else operator.index(cast(SupportsIndex, a))
    sample_count = math.prod(shape)
    if sample_count and element_count <= 0:
        raise ValueError(f"choice: a must have at least one element, not {a!r}")
    if not replace and sample_count > element_count:
        raise ValueError(f"choice: cannot sample {sample_count} of {element_count} elements without replacement")
    check_one_of("choice", "mode", mode, (None, "low", "high", "highest"))
    if p is not None and type_of(p, "choice").shape != (element_count,):
        raise ValueError(
            f"choice: p must have one probability for each of the {element_count} elements, not {type_of(p, 'choice')}"
        )
    parameters = [*([a] if a_type.ndim else []), *([] if p is None else [p])]
    return run_sampler(
        _choice,
        single_key("choice", key),
        *parameters,
        range_size=None if a_type.ndim else element_count,
        weighted=p is not None,
        shape=shape,
        replace=bool(replace),
        dim=dim,
        mode=mode,
    )


def _choice(
    key: Array,
    *parameters: Array,
    range_size: int | None,
    weighted: bool,
    shape: StaticShape,
    replace: bool,
    dim: int,
    mode: str | None,
) -> Any:
    """Sample from the first parameter, or from a range if `range_size` is not None; `p` is the last parameter."""
    a = as_operand(parameters[0]) if range_size is None else None
    if a is None:
        other_dims: tuple[StaticShape, StaticShape] = (), ()
    else:
        other_dims = a.type.shape[:dim], a.type.shape[dim + 1 :]
    element_count = range_size if a is None else a.type.shape[dim]
    assert element_count is not None  # either `a` or `range_size` is set
    out_shape = (*other_dims[0], *shape, *other_dims[1])
    if not replace and not weighted:
        shuffled = (
            _random_order(key, count=element_count) if a is None else _permute(key, a, dim=dim, independent=False)
        )
        return Reshape(out_shape)(slice_along(shuffled, dim, 0, math.prod(shape)))
    if weighted:
        indices = _weighted_indices(key, as_inexact(parameters[-1], "choice"), shape, replace, mode)
    else:
        indices = sample_randint(key, 0, element_count, shape=shape, dtype=default_dtype("int*"))
    return Reshape(out_shape)(indices if a is None else take(a, indices, axis=dim))


def _weighted_indices(key: Array, p: Array, shape: StaticShape, replace: bool, mode: str | None) -> Any:
    """Sample indices with probabilities `p`."""
    as_index = Convert(default_dtype("int*"))
    if replace:
        cumulative = cumsum(p)
        u = cumulative[-1] * (1 - distributions.uniform(key, shape, p.type.dtype))
        return as_index(searchsorted(cumulative, u))
    scores = sample_gumbel(key, shape=p.type.shape, dtype=p.type.dtype, mode=mode) + Log()(p)
    return as_index(TopK(math.prod(shape))(scores)[1])

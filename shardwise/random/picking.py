"""Random choices among given elements, and their random order."""

import math
import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.types import is_integer
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.along_axes import argmax
from shardwise.compiler.ops.draws import subkeys
from shardwise.compiler.ops.elementwise import Add, Convert
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_inexact, as_operand, stretch, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.random import random_bits
from shardwise.compiler.ops.shape import Iota, Reshape, move_dim
from shardwise.compiler.ops.slicing import along
from shardwise.compiler.ops.sort import Sort, TopK
from shardwise.compiler.ops.transcendental import Log
from shardwise.numpy.indexing import take
from shardwise.numpy.ordering import cumsum, searchsorted
from shardwise.random.continuous import gumbels
from shardwise.random.draw import Shape, draw, fitting, one_of, sizes
from shardwise.random.keys import words
from shardwise.random.uniform import integers


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """The number of a category, with chances whose logarithms are `logits` along `axis`, up to a constant.

    `shape` ends with the dims of `logits` but `axis`; dims before them are independent draws, or without `replace`
    draws of which no two are equal. `mode` is as for `gumbel`.

    >>> jax.random.categorical(jax.random.key(0), jnp.log(jnp.array([0.1, 0.2, 0.7])), shape=(4,))
    Array([1, 2, 2, 1], dtype=int32)
    """
    kind = type_of(logits, "categorical")
    dim = dim_of("categorical", axis, kind.ndim)
    batch = kind.without((dim,)).shape
    shape = fitting("categorical", shape, batch)
    one_of("categorical", "mode", mode, (None, "low", "high", "highest"))
    before = shape[: len(shape) - len(batch)]
    if not replace and math.prod(before) > kind.shape[dim]:
        raise ValueError(
            f"categorical: {math.prod(before)} draws without replacement cannot be of {kind.shape[dim]} categories"
        )
    key = words("categorical", key)
    return draw(
        _categories, key, logits, dim=dim, shape=shape, replace=bool(replace), mode=mode, out_sharding=out_sharding
    )


def _categories(key: Any, logits: Any, *, dim: int, shape: Shape, replace: bool, mode: str | None) -> Any:
    logits = as_inexact(logits, "categorical")
    kind = logits.type
    before, batch = shape[: len(shape) - kind.ndim + 1], shape[len(shape) - kind.ndim + 1 :]
    if replace:
        whole = (*before, *batch[:dim], kind.shape[dim], *batch[dim:])
        scores = Add()(gumbels(key, shape=whole, dtype=kind.dtype, mode=mode), stretch(logits, whole))
        return argmax(scores, axis=len(before) + dim)
    scores = Add()(logits, gumbels(key, shape=kind.shape, dtype=kind.dtype, mode=mode))
    last = kind.ndim - 1
    _, found = TopK(math.prod(before))(move_dim(scores, dim, last))
    return Reshape(shape)(move_dim(found, last, 0))


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None) -> Any:
    """The elements of `x` along `axis` in random order; of an integer, the numbers below it.

    With `independent`, each row along `axis` gets an order of its own.

    >>> jax.random.permutation(jax.random.key(0), 5)
    Array([0, 1, 4, 3, 2], dtype=int32)
    """
    kind = type_of(x, "permutation")
    if not kind.ndim:
        if not is_integer(kind.dtype):
            raise TypeError(f"permutation: x should be an integer or have an axis, not {kind}")
        count = operator.index(x)
        return draw(_order, words("permutation", key), count=count, out_sharding=out_sharding)
    dim = dim_of("permutation", axis, kind.ndim)
    key = words("permutation", key)
    return draw(_permuted, key, x, dim=dim, independent=bool(independent), out_sharding=out_sharding)


def _order(key: Any, *, count: int) -> Any:
    return _shuffled(key, Iota((count,), 0, default_dtype("int*"))(), 0)


def _permuted(key: Any, x: Any, *, dim: int, independent: bool) -> Any:
    x = as_operand(x)
    if independent or x.type.ndim == 1:
        return _shuffled(key, x, dim)
    return take(x, _order(key, count=x.type.shape[dim]), axis=dim)


def _shuffled(key: Any, x: Any, dim: int) -> Any:
    """Elements sorted by random numbers, so often that it hardly matters if two of these are equal."""
    rounds = math.ceil(3 * math.log(max(1, x.type.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, here = subkeys(key, 2)
        _, x = Sort(dim)(random_bits(here, x.type.shape, 32), x)
    return x


def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Any:
    """Random elements of `a` along `axis`, or of the numbers below it, with chances `p`, else all equally likely.

    Without `replace` no two are the same. `mode` is as for `gumbel`.

    >>> jax.random.choice(jax.random.key(0), 10, (4,))
    Array([9, 0, 2, 3], dtype=int32)
    """
    if not isinstance(shape, Sequence):
        raise TypeError(f"choice: shape should be a tuple, not {shape!r}")
    shape, kind = sizes("choice", shape), type_of(a, "choice")
    dim = dim_of("choice", axis, kind.ndim) if kind.ndim else 0
    count, drawn = kind.shape[dim] if kind.ndim else operator.index(a), math.prod(shape)
    if drawn and count <= 0:
        raise ValueError(f"choice: there is nothing to choose from in {a!r}")
    if not replace and drawn > count:
        raise ValueError(f"choice: {drawn} elements without replacement cannot be taken from {count}")
    one_of("choice", "mode", mode, (None, "low", "high", "highest"))
    if p is not None and type_of(p, "choice").shape != (count,):
        raise ValueError(f"choice: p should give a chance for each of {count} elements, not {type_of(p, 'choice')}")
    parameters = [*([a] if kind.ndim else []), *([] if p is None else [p])]
    return draw(
        _chosen,
        words("choice", key),
        *parameters,
        among=None if kind.ndim else count,
        weighted=p is not None,
        shape=shape,
        replace=bool(replace),
        dim=dim,
        mode=mode,
    )


def _chosen(
    key: Any,
    *parameters: Any,
    among: int | None,
    weighted: bool,
    shape: Shape,
    replace: bool,
    dim: int,
    mode: str | None,
) -> Any:
    """Elements of an array, which is the first parameter where `among` is None; their chances come last."""
    a = as_operand(parameters[0]) if among is None else None
    drawn = math.prod(shape)
    if a is None:
        outside: tuple[Shape, Shape] = (), ()
    else:
        outside = a.type.shape[:dim], a.type.shape[dim + 1 :]
    count = among if a is None else a.type.shape[dim]
    assert count is not None  # one of the two is given
    whole = (*outside[0], *shape, *outside[1])
    if not replace and not weighted:
        order = _order(key, count=count) if a is None else _permuted(key, a, dim=dim, independent=False)
        return Reshape(whole)(along(order, dim, 0, drawn))
    if weighted:
        places = _weighted(key, as_inexact(parameters[-1], "choice"), shape, replace, mode)
    else:
        places = integers(key, 0, count, shape=shape, dtype=default_dtype("int*"))
    return Reshape(whole)(places if a is None else take(a, places, axis=dim))


def _weighted(key: Any, p: Any, shape: Shape, replace: bool, mode: str | None) -> Any:
    """Places with chances `p`."""
    index = Convert(default_dtype("int*"))
    if replace:
        totals = cumsum(p)
        reached = totals[-1] * (1 - draws.uniform(key, shape, p.type.dtype))
        return index(searchsorted(totals, reached))
    scores = Add()(gumbels(key, shape=p.type.shape, dtype=p.type.dtype, mode=mode), Log()(p))
    return index(TopK(math.prod(shape))(scores)[1])

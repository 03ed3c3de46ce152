"""Collectives along axes that have a name: `vmap(fun, axis_name="i")` binds one for everything that `fun` calls.

`x` is a tree of arrays, one member's values; all work leaf by leaf. Where several names are given, the first counts
slowest, as the first dim of an array does.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ops.elementwise import Convert, Select
from shardwise.compiler.ops.methods import reshape
from shardwise.compiler.ops.named import (
    NamedExchange,
    NamedExtreme,
    NamedGather,
    NamedIndex,
    NamedPermute,
    NamedScatter,
    NamedSum,
)
from shardwise.compiler.ops.operands import PYTHON_SCALARS, as_operand, stretch
from shardwise.compiler.ops.shape import zeros_like


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over all members. Of a Python number it is one: `psum(1, "i")` is the size of the axis.

    >>> jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([18, 18, 18], dtype=int32)
    """
    axes = _bound("psum", axis_name, axis_index_groups)

    def total(leaf: Any) -> Any:
        if isinstance(leaf, PYTHON_SCALARS):
            return leaf * math.prod(axes.values())
        operand = as_operand(leaf, "psum")
        if operand.type.dtype == np.bool_:
            operand = Convert(np.dtype(np.int32))(operand)
        return NamedSum(tuple(axes))(operand) if axes else operand

    return tree.map(total, x)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over all members.

    >>> jax.vmap(lambda x: lax.pmean(x, "i"), axis_name="i")(jnp.array([5.0, 6.0, 7.0]))
    Array([6., 6., 6.], dtype=float32)
    """
    size = math.prod(_bound("pmean", axis_name, axis_index_groups).values())
    return tree.map(lambda total: total / size, psum(x, axis_name))


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The largest over all members; NaN where any is.

    >>> jax.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 7, 7], dtype=int32)
    """
    return _extreme("pmax", "max", x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The smallest over all members; NaN where any is.

    >>> jax.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([5, 5, 5], dtype=int32)
    """
    return _extreme("pmin", "min", x, axis_name, axis_index_groups)


def all_gather(x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False) -> Any:
    """The values of all members, stacked along a new dim `axis`; with `tiled`, joined along the dim that is there.

    >>> jax.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([[5, 6, 7],
           [5, 6, 7],
           [5, 6, 7]], dtype=int32)
    """
    axes = _bound("all_gather", axis_name, axis_index_groups)

    def gathered(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_gather")
        dim = _dim("all_gather", "axis", axis, operand, new=not tiled)
        for name, size in reversed(axes.items()):
            operand = NamedGather(name, size, dim)(operand)
        return _merged(operand, dim, len(axes) + tiled)

    return tree.map(gathered, x)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Of the sum over all members, each gets its own slice along `scatter_dimension`, which has one for each and is
    gone in the result; with `tiled`, its own block, and the dim stays.

    >>> jax.vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(jnp.arange(4).reshape(2, 2))
    Array([2, 4], dtype=int32)
    """
    axes = _bound("psum_scatter", axis_name, axis_index_groups)

    def scattered(leaf: Any) -> Any:
        operand = as_operand(leaf, "psum_scatter")
        dim = _dim("psum_scatter", "scatter_dimension", scatter_dimension, operand)
        operand = _divided("psum_scatter", operand, dim, tuple(axes.values()), tiled)
        for name, size in axes.items():
            operand = NamedScatter(name, size, dim)(operand)
        return operand

    return tree.map(scattered, x)


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Each member sends slice k along `split_axis` to member k, and stacks what it is sent along `concat_axis`.

    `split_axis` has a slice for each member and is gone in the result; with `tiled`, it is cut into as many blocks,
    which are joined along the dim `concat_axis` that is there.

    >>> jax.vmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(jnp.arange(4).reshape(2, 2))
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    name, size = _only("all_to_all", axis_name, axis_index_groups)

    def exchanged(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_to_all")
        split = _dim("all_to_all", "split_axis", split_axis, operand)
        stack = _dim("all_to_all", "concat_axis", concat_axis, operand)
        operand = _divided("all_to_all", operand, split, (size,), tiled)
        return _merged(NamedExchange(name, size, split, stack)(operand), stack, 1 + tiled)

    return tree.map(exchanged, x)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """The axis with the name and the dim `axis`, which has its size, change places.

    >>> jax.vmap(lambda x: lax.pswapaxes(x, "i", 0), axis_name="i")(jnp.arange(4).reshape(2, 2))
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """For each pair (a, b) in `perm`, member b gets the value of member a; one that nobody sends to gets zeros.

    >>> jax.vmap(lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2)]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 5, 6], dtype=int32)
    """
    name, size = _only("ppermute", axis_name)
    pairs = tuple((int(a), int(b)) for a, b in perm)
    if any(not 0 <= member < size for pair in pairs for member in pair):
        raise ValueError(f"ppermute: the members of {name!r} are 0 to {size - 1}, not all of those in {list(pairs)}")
    for members, what in (([a for a, _ in pairs], "sends"), ([b for _, b in pairs], "is sent to")):
        if len(set(members)) != len(members):
            raise ValueError(f"ppermute: a member {what} twice in {list(pairs)}: each may send once and receive once")
    return tree.map(lambda leaf: NamedPermute(name, pairs)(as_operand(leaf, "ppermute")), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Member k gets the value of member `perm[k]`.

    >>> jax.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 5, 6], dtype=int32)
    """
    name, size = _only("pshuffle", axis_name)
    if sorted(perm) != list(range(size)):
        raise ValueError(f"pshuffle: {list(perm)} is not a permutation of the {size} members of {name!r}")
    return ppermute(x, name, [(sender, receiver) for receiver, sender in enumerate(perm)])


def axis_index(axis_name: Any) -> Any:
    """Each member's number along the axis.

    >>> jax.vmap(lambda x: lax.axis_index("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 1, 2], dtype=int32)
    """
    index: Any = None
    for name, size in _bound("axis_index", axis_name).items():
        digit = NamedIndex(name)()
        index = digit if index is None else index * size + digit
    return as_operand(np.int32(0)) if index is None else index


def axis_size(axis_name: Any) -> int:
    """The number of members along the axis: a Python integer.

    >>> jax.vmap(lambda x: x * lax.axis_size("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([15, 18, 21], dtype=int32)
    """
    return math.prod(_bound("axis_size", axis_name).values())


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """The value of the member whose number is `source`, for all of them.

    >>> jax.vmap(lambda x: lax.pbroadcast(x, "i", 2), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 7, 7], dtype=int32)
    """
    size = math.prod(_bound("pbroadcast", axis_name).values())
    if not 0 <= source < size:
        raise ValueError(f"pbroadcast: the members of {axis_name!r} are 0 to {size - 1}, and {source} is none of them")

    def sent(leaf: Any) -> Any:
        operand = as_operand(leaf, "pbroadcast")
        chosen = stretch(axis_index(axis_name) == source, operand.type.shape)
        return psum(Select()(chosen, operand, zeros_like(operand)), axis_name)

    return tree.map(sent, x)


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """The value itself: along axes of `vmap`, members know already whether they differ.

    >>> jax.vmap(lambda x: lax.pcast(x, "i", to="varying"), axis_name="i")(jnp.array([5, 6]))
    Array([5, 6], dtype=int32)
    """
    if to not in ("varying", "reduced", "unreduced"):
        raise ValueError(f"pcast: to is 'varying', 'reduced' or 'unreduced', not {to!r}")
    _bound("pcast", axis_name)
    if to != "varying":
        raise NotImplementedError(f"pcast: to {to!r} is not here yet; 'varying' is")
    return tree.map(lambda leaf: as_operand(leaf, "pcast"), x)


def _extreme(function: str, how: str, x: Any, axis_name: Any, axis_index_groups: Any) -> Any:
    names = tuple(_bound(function, axis_name, axis_index_groups))
    op = NamedExtreme(names, how)
    return tree.map(lambda leaf: op(as_operand(leaf, function)) if names else leaf, x)


def _bound(function: str, axis_name: Any, axis_index_groups: Any = None) -> dict[Any, int]:
    """The axes that are named, in order, with their sizes."""
    if axis_index_groups is not None:
        raise NotImplementedError(f"{function}: axis_index_groups are not here yet: leave them out")
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    bound = bound_axes()
    for name in names:
        if name not in bound:
            here = f"The names bound here: {', '.join(map(repr, bound))}." if bound else "No name is bound here."
            raise NameError(f"unbound axis name {name!r}. {here} `vmap(fun, axis_name={name!r})` binds one in `fun`.")
    if len(set(names)) != len(names):
        raise ValueError(f"{function}: a name repeats in {names}")
    return {name: bound[name] for name in names}


def _only(function: str, axis_name: Any, axis_index_groups: Any = None) -> tuple[Any, int]:
    axes = _bound(function, axis_name, axis_index_groups)
    if len(axes) != 1:
        raise NotImplementedError(f"{function}: along several axes, as {tuple(axes)}, it is not here yet: name one")
    return next(iter(axes.items()))


def _dim(function: str, what: str, axis: int, x: Any, new: bool = False) -> int:
    """The dim that `axis` means; `new`: of an array with one more."""
    rank: int = x.type.ndim + new
    if not -rank <= axis < rank:
        raise ValueError(f"{function}: {what} {axis} does not exist in {x.type}" + " with one more dim" * new)
    return axis % rank


def _merged(x: Any, dim: int, count: int) -> Any:
    """`x` with `count` dims from `dim` on as one."""
    shape = x.type.shape
    return reshape(x, shape=(*shape[:dim], math.prod(shape[dim : dim + count]), *shape[dim + count :]))


def _divided(function: str, x: Any, dim: int, sizes: tuple[int, ...], tiled: bool) -> Any:
    """`x` with `dim` as dims of these sizes, followed, where it is `tiled`, by what is left of it."""
    members, length = math.prod(sizes), x.type.shape[dim]
    if length % members if tiled else length != members:
        wanted = f"be a multiple of {members}" if tiled else f"be {members}"
        raise ValueError(f"{function}: dim {dim} of {x.type} must {wanted}, the number of members")
    rest = (length // members,) if tiled else ()
    return reshape(x, shape=(*x.type.shape[:dim], *sizes, *rest, *x.type.shape[dim + 1 :]))

"""Collectives along axes that have a name: `vmap(fun, axis_name="i")` binds one for everything that `fun` calls.

`x` is a tree of arrays, one member's values; all work leaf by leaf. Where several names are given, the first counts
slowest, as the first dim of an array does. `axis_index_groups`, lists of members, are each for themselves.
"""

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.methods import reshape
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, broadcast_to_shape
from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.compiler.ops.collective.collectives import Groups
from shardwise.compiler.ops.collective.named import AssertReplicated, NamedMinMax, NamedSum, PVary, flat_axis_index
from shardwise.compiler.ops.collective.named_exchange import (
    NamedAllGather,
    NamedAllToAll,
    NamedExchangeOp,
    NamedPermute,
    NamedReduceScatter,
)
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.reduce.reductions import ReduceMax, ReduceMin
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.reduction import MAX, MIN, Reduction
from shardwise.errors import UnboundAxisError


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over all members. Of a Python number it is one: `psum(1, "i")` is the size of the axis.

    >>> jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([18, 18, 18], dtype=int32)
    """
    axes = _bound("psum", axis_name)
    groups = _groups("psum", axes, axis_index_groups)

    def total(leaf: Any) -> Any:
        if isinstance(leaf, PYTHON_SCALARS):
            return leaf * _members(axes, groups)
        operand = as_operand(leaf, "psum")
        if operand.type.dtype == np.bool_:
            operand = Convert(np.dtype(np.int32))(operand)
        if groups and len(axes) > 1:
            return Sum((0,))(_moved(NamedAllGather, operand, axes, groups, 0))
        for names, invariant in _by_kind(axes):
            operand = NamedSum(names, invariant and not groups, groups)(_varied(operand, names))
        return operand

    return tree.map(total, x)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over all members.

    >>> jax.vmap(lambda x: lax.pmean(x, "i"), axis_name="i")(jnp.array([5.0, 6.0, 7.0]))
    Array([6., 6., 6.], dtype=float32)
    """
    axes = _bound("pmean", axis_name)
    size = _members(axes, _groups("pmean", axes, axis_index_groups))
    return tree.map(lambda total: total / size, psum(x, axis_name, axis_index_groups=axis_index_groups))


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The largest over all members; NaN where any is.

    >>> jax.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 7, 7], dtype=int32)
    """
    return _extreme("pmax", MAX, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The smallest over all members; NaN where any is.

    >>> jax.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([5, 5, 5], dtype=int32)
    """
    return _extreme("pmin", MIN, x, axis_name, axis_index_groups)


def all_gather(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Any = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """The values of all members, stacked along a new dim `axis`; with `tiled`, joined along the dim that is there.

    `to`: what types say of the result along axes of shard_map: "varying", each device's own; or "invarying", one value
    for all, of whose cotangent each device takes its own part.

    >>> jax.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([[5, 6, 7],
           [5, 6, 7],
           [5, 6, 7]], dtype=int32)
    """
    if to not in ("varying", "reduced", "invarying"):
        raise ValueError(f"all_gather: to is 'varying', 'invarying' or 'reduced', not {to!r}")
    axes = _bound("all_gather", axis_name)
    groups = _groups("all_gather", axes, axis_index_groups)
    if to == "reduced" or (groups and to == "invarying"):
        raise NotImplementedError(f"all_gather: to {to!r}{' in groups' * (groups is not None)} is not here yet")
    alike = () if to == "varying" else tuple(axis for axis in axes if axis in tracked_axes())

    def gathered(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_gather")
        dim = _dim("all_gather", "axis", axis, operand, new=not tiled)
        if not alike:
            found = _moved(NamedAllGather, operand, axes, groups, dim)
        elif len(alike) == len(axes):
            found = NamedAllGather(tuple(axes), tuple(axes.values()), dim, None, True)(_varied(operand, axes))
        else:  # some names are a vmap's
            found = AssertReplicated(alike)(_moved(NamedAllGather, operand, axes, None, dim))
        return _merged(found, dim, 1 + tiled)

    return tree.map(gathered, x)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Of the sum over all members, each gets its own slice along `scatter_dimension`, which has one for each and is
    gone in the result; with `tiled`, its own block, and the dim stays.

    >>> jax.vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(jnp.arange(4).reshape(2, 2))
    Array([2, 4], dtype=int32)
    """
    axes = _bound("psum_scatter", axis_name)
    groups = _groups("psum_scatter", axes, axis_index_groups)

    def scattered(leaf: Any) -> Any:
        operand = as_operand(leaf, "psum_scatter")
        dim = _dim("psum_scatter", "scatter_dimension", scatter_dimension, operand)
        operand = _divided("psum_scatter", operand, dim, _members(axes, groups), tiled)
        return _moved(NamedReduceScatter, operand, axes, groups, dim)

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
    axes = _bound("all_to_all", axis_name)
    groups = _groups("all_to_all", axes, axis_index_groups)

    def exchanged(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_to_all")
        split = _dim("all_to_all", "split_axis", split_axis, operand)
        stack = _dim("all_to_all", "concat_axis", concat_axis, operand)
        operand = _divided("all_to_all", operand, split, _members(axes, groups), tiled)
        return _merged(_moved(NamedAllToAll, operand, axes, groups, split, stack), stack, 1 + tiled)

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
    axes = _bound("ppermute", axis_name)
    size = _members(axes)
    pairs = _numbers("ppermute: perm", perm, 2)
    if any(not 0 <= member < size for pair in pairs for member in pair):
        raise ValueError(
            f"ppermute: the members of {_named(axes)} are 0 to {size - 1}, not all of those in {list(pairs)}"
        )
    for members, what in (([a for a, _ in pairs], "sends"), ([b for _, b in pairs], "is sent to")):
        if len(set(members)) != len(members):
            raise ValueError(f"ppermute: a member {what} twice in {list(pairs)}: each may send once and receive once")
    return tree.map(lambda leaf: _moved(NamedPermute, as_operand(leaf, "ppermute"), axes, None, pairs), x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Member k gets the value of member `perm[k]`.

    >>> jax.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 5, 6], dtype=int32)
    """
    axes = _bound("pshuffle", axis_name)
    if sorted(perm) != list(range(_members(axes))):
        raise ValueError(
            f"pshuffle: {list(perm)} is not a permutation of the {_members(axes)} members of {_named(axes)}"
        )
    return ppermute(x, axis_name, [(sender, receiver) for receiver, sender in enumerate(perm)])


def axis_index(axis_name: Any) -> Any:
    """Each member's number along the axis.

    >>> jax.vmap(lambda x: lax.axis_index("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 1, 2], dtype=int32)
    """
    axes = _bound("axis_index", axis_name)
    return flat_axis_index(tuple(axes), tuple(axes.values()), tracked_axes())


def axis_size(axis_name: Any) -> int:
    """The number of members along the axis: a Python integer.

    >>> jax.vmap(lambda x: x * lax.axis_size("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([15, 18, 21], dtype=int32)
    """
    return _members(_bound("axis_size", axis_name))


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """The value of the member whose number is `source`, for all of them.

    >>> jax.vmap(lambda x: lax.pbroadcast(x, "i", 2), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 7, 7], dtype=int32)
    """
    axes = _bound("pbroadcast", axis_name)
    size = _members(axes)
    if not 0 <= source < size:
        raise ValueError(f"pbroadcast: the members of {_named(axes)} are 0 to {size - 1}, and {source} is none of them")

    def sent(leaf: Any) -> Any:
        operand = as_operand(leaf, "pbroadcast")
        chosen = broadcast_to_shape(axis_index(axis_name) == source, operand.type.shape)
        return psum(Select()(chosen, operand, zeros_like(operand)), axis_name)

    return tree.map(sent, x)


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """The value itself, as each member's own, where types say that it is one value for all: along axes of shard_map.
    Along axes of `vmap`, members know already whether they differ.

    >>> jax.vmap(lambda x: lax.pcast(x, "i", to="varying"), axis_name="i")(jnp.array([5, 6]))
    Array([5, 6], dtype=int32)
    """
    if to not in ("varying", "reduced", "unreduced"):
        raise ValueError(f"pcast: to is 'varying', 'reduced' or 'unreduced', not {to!r}")
    axes = _bound("pcast", axis_name)
    if to != "varying":
        raise NotImplementedError(f"pcast: to {to!r} is not here yet; 'varying' is")
    return tree.map(lambda leaf: _varied(as_operand(leaf, "pcast"), axes), x)


def pvary(x: Any, axis_name: Any) -> Any:
    """The value itself, as each member's own: `pcast` to "varying", by its older name.

    >>> jax.vmap(lambda x: lax.pvary(x, "i"), axis_name="i")(jnp.array([5, 6]))
    Array([5, 6], dtype=int32)
    """
    return pcast(x, axis_name, to="varying")


def _extreme(function: str, reduction: Reduction, x: Any, axis_name: Any, axis_index_groups: Any) -> Any:
    axes = _bound(function, axis_name)
    groups = _groups(function, axes, axis_index_groups)

    def extreme(leaf: Any) -> Any:
        operand = as_operand(leaf, function)
        if groups and len(axes) > 1:
            along = {MAX: ReduceMax, MIN: ReduceMin}[reduction]
            return along((0,))(_moved(NamedAllGather, operand, axes, groups, 0))
        for names, invariant in _by_kind(axes):
            operand = NamedMinMax(names, invariant and not groups, reduction, groups)(_varied(operand, names))
        return operand

    return tree.map(lambda leaf: extreme(leaf) if axes else leaf, x)


def _moved(op: type[NamedExchangeOp], x: Any, axes: dict[Any, int], groups: Groups | None, *parameters: Any) -> Any:
    """`x` where such an op brings it: along no axis, it is alone."""
    own = op(tuple(axes), tuple(axes.values()), *parameters, *([groups] if groups else ()))
    return own(_varied(x, axes)) if axes else own.resolved(x, None)[0]


def _by_kind(names: Iterable[Any]) -> list[tuple[tuple[Any, ...], bool]]:
    """The names, those along which types say what varies apart from the others; and whether they do."""
    tracked = tracked_axes()
    kinds = [tuple(name for name in names if (name in tracked) is kind) for kind in (False, True)]
    return [(mine, kind) for mine, kind in zip(kinds, (False, True), strict=True) if mine]


def _varied(x: Any, names: Iterable[Any]) -> Any:
    """`x` as each member's own along these axes, where types say that it is one value for all."""
    tracked = tracked_axes()
    more = tuple(name for name in names if name in tracked and name not in x.type.varying)
    return PVary(more)(x) if more else x


def _bound(function: str, axis_name: Any) -> dict[Any, int]:
    """The axes that are named, in order, with their sizes."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    bound = bound_axes()
    for name in names:
        if name not in bound:
            here = f"The names bound here: {', '.join(map(repr, bound))}." if bound else "No name is bound here."
            raise UnboundAxisError(
                f"unbound axis name {name!r}. {here} `vmap(fun, axis_name={name!r})` binds one in `fun`, as "
                "shard_map does the axes of its mesh.",
                name,
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{function}: a name repeats in {names}")
    return {name: bound[name] for name in names}


def _groups(function: str, axes: dict[Any, int], groups: Any) -> Groups | None:
    """The groups that are asked for: each member is in one, and they are of one size."""
    if groups is None:
        return None
    found = _numbers(f"{function}: axis_index_groups", groups)
    members = [member for group in found for member in group]
    size = math.prod(axes.values())
    if wrong := [member for member in members if not 0 <= member < size]:
        raise ValueError(
            f"{function}: axis_index_groups {list(map(list, found))} have {wrong[0]}, but the members of "
            f"{_named(axes)} are 0 to {size - 1}"
        )
    for member in range(size):
        if (often := members.count(member)) != 1:
            raise ValueError(
                f"{function}: axis_index_groups {list(map(list, found))} have member {member} of {_named(axes)} "
                f"{'in no group' if often == 0 else f'{often} times'}: each member is in one group, once"
            )
    if len({len(group) for group in found}) != 1:
        raise ValueError(
            f"{function}: axis_index_groups {list(map(list, found))} differ in size: each needs as many members as "
            "the first"
        )
    return found


def _numbers(what: str, lists: Any, length: int | None = None) -> Groups:
    """Lists of members that a user gave, as tuples, all of one length where that is given."""
    try:
        found = tuple(tuple(index(member) for member in each) for each in lists)
        if all(length in (None, len(each)) for each in found):
            return found
    except TypeError:
        pass
    kind = "lists of members, [[0, 1], [2, 3]]" if length is None else "pairs of members, [(0, 1), (1, 2)]"
    raise TypeError(f"{what} should be {kind}, not {lists!r}")


def _members(axes: dict[Any, int], groups: Groups | None = None) -> int:
    """How many members take part."""
    return len(groups[0]) if groups else math.prod(axes.values())


def _named(axes: dict[Any, int]) -> str:
    """The axes, for messages."""
    return repr(next(iter(axes))) if len(axes) == 1 else repr(tuple(axes))


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


def _divided(function: str, x: Any, dim: int, members: int, tiled: bool) -> Any:
    """`x` with a slice for each member along `dim`, followed, where it is `tiled`, by what is left of the dim."""
    length = x.type.shape[dim]
    if length % members if tiled else length != members:
        wanted = f"be a multiple of {members}" if tiled else f"be {members}"
        raise ValueError(f"{function}: dim {dim} of {x.type} must {wanted}, the number of members")
    rest = (length // members,) if tiled else ()
    return reshape(x, shape=(*x.type.shape[:dim], members, *rest, *x.type.shape[dim + 1 :]))

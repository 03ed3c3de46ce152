"""Collectives over named axes, which `vmap(fun, axis_name=...)`, `pmap` and `shard_map` bind.

Each works on the leaves of a pytree, the values of one member of the axis: one element of a batch, or one device.
Several axes are numbered as one, with the first axis slowest, as in the row-major order of an array. Along the axes of
shard_map, types track whether a value varies; the collectives make their operands varying first.
"""

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np

from shardwise import tree
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, broadcast_to_shape
from shardwise.compiler.ir.dispatch import tracked_axes
from shardwise.compiler.ops.collective.collectives import Groups
from shardwise.compiler.ops.collective.named import (
    AssertReplicated,
    NamedMinMax,
    NamedSum,
    flat_axis_index,
)
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
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.reduction import MAX, MIN, Reduction
from shardwise.compiler.trace.summed_gradients import forget_summed_gradients
from shardwise.lax.manual_axes import (
    AxisNames,
    axis_label,
    bound_axis_sizes,
    check_no_sums,
    make_varying,
    types_mesh,
    unreduced_axes,
)

_T = TypeVar("_T")


_UNBOUND = "UnboundAxisError: if an axis name is not bound."
_LEAVES = (
    "TypeError: if `axis_index_groups` is not a list of lists of integers, or a leaf is not an array\nor a number."
)
COLLECTIVE = Family(
    {
        "x": "a pytree of arrays.",
        "axis_name": "the name of an axis that `vmap`, `pmap` or `shard_map` binds, or a tuple of names.\n"
        "Several axes are numbered as one, the first axis slowest.",
        "axis_index_groups": Parameter(
            "lists of members that together contain each member once. The\n"
            "collective works within each group. Groups of different sizes need a single axis.",
            _LEAVES,
        ),
    },
    returns="A pytree like `x`.",
    raises=[_UNBOUND, "ValueError: if an axis name repeats, or the groups do not contain each member once."],
)
_EQUAL_GROUPS = {
    **COLLECTIVE.args,
    "axis_index_groups": Parameter(
        "lists of members, all of the same size, that together contain each member once. The\n"
        "collective works within each group.",
        _LEAVES,
    ),
}
# Each of these families has a collective and the function that starts it (`async_collectives.py`).
GATHER = Family(
    {
        **_EQUAL_GROUPS,
        "axis": "the dim of the result along which the values are stacked or concatenated.",
        "tiled": "concatenate the values along the existing dim `axis`, rather than stack them along a new one.",
        "to": 'the type of the result along the axes of shard_map: "varying"; "invarying" for replicated, whose\n'
        'cotangent is sliced and not summed; or "reduced", whose cotangent is unreduced, so that it is\n'
        "reduce-scattered.",
    },
    raises=[
        "ValueError: if `axis` does not exist, `to` is unknown, or the axis names or groups are invalid.",
        'NotImplementedError: if `to` is not "varying", with groups or with some axes that are not those of\n'
        "shard_map.",
        _UNBOUND,
    ],
)
SCATTER = Family(
    {
        **_EQUAL_GROUPS,
        "scatter_dimension": "the dim to scatter. Its size is the number of members; with `tiled`, a multiple of it.",
        "tiled": "keep the scattered dim: each member gets a block of it. Otherwise each member gets a slice\n"
        "without it.",
    },
    raises=[
        "ValueError: if the scattered dim does not exist or has the wrong size, or the axis names or groups are\n"
        "invalid.",
        _UNBOUND,
    ],
)
EXCHANGE = Family(
    {
        **_EQUAL_GROUPS,
        "split_axis": "the dim to split. Its size is the number of members; with `tiled`, a multiple of it.",
        "concat_axis": "the dim of the result along which the received slices are stacked or concatenated.",
        "tiled": "split `split_axis` into blocks and concatenate them along the existing dim `concat_axis`.\n"
        "Otherwise `split_axis` is removed and the slices are stacked along a new dim.",
    },
    raises=[
        "ValueError: if a dim does not exist or has the wrong size, or the axis names or groups are invalid.",
        _UNBOUND,
    ],
)
PERMUTE = Family(
    {
        **COLLECTIVE.args,
        "perm": "pairs (source, destination) of members. Each member may be the source of one pair and the\n"
        "destination of one.",
    },
    raises=[
        "ValueError: if `perm` contains members that do not exist, or a source or destination twice.",
        "TypeError: if `perm` does not consist of pairs of integers, or a leaf is not an array or a number.",
        _UNBOUND,
    ],
)


@documented(COLLECTIVE, returns="A pytree like `x`. Booleans are summed as int32.")
def psum(x: _T, axis_name: AxisNames, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> _T:
    """Sum over all members of a named axis (all-reduce).

    The sum of a Python number is computed statically: `psum(1, "i")` is the size of the axis.

    Example:
        >>> jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([18, 18, 18], dtype=int32)
    """
    axes = bound_axis_sizes("psum", axis_name)
    groups = check_groups("psum", axes, axis_index_groups, allow_uneven=True)

    def total(leaf: Any) -> Any:
        if isinstance(leaf, PYTHON_SCALARS):
            return leaf * _member_count(axes, groups)
        operand = as_operand(leaf, "psum")
        if operand.type.dtype == np.bool_:
            operand = Convert(np.dtype(np.int32))(operand)
        terms = unreduced_axes("psum", operand, axes, groups)
        if groups and len(axes) > 1:
            return Sum((0,))(_apply_collective(NamedAllGather, operand, axes, groups, 0))
        for names, invariant in split_by_tracking(axes):
            replicated = [name for name in names if name not in terms and name not in operand.type.varying]
            forget_summed_gradients(replicated)
            varying = make_varying(operand, replicated)
            operand = NamedSum(names, invariant and not groups, groups)(varying)
        return operand

    return tree.map(total, x)


@documented(COLLECTIVE, returns="A pytree like `x`, of floats or complex numbers.")
def pmean(x: _T, axis_name: AxisNames, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> _T:
    """Compute the mean over all members of a named axis.

    Example:
        >>> jax.vmap(lambda x: lax.pmean(x, "i"), axis_name="i")(jnp.array([5.0, 6.0, 7.0]))
        Array([6., 6., 6.], dtype=float32)
    """
    axes = bound_axis_sizes("pmean", axis_name)
    size = _member_count(axes, check_groups("pmean", axes, axis_index_groups, allow_uneven=True))
    return tree.map(lambda total: total / size, psum(x, axis_name, axis_index_groups=axis_index_groups))


@documented(COLLECTIVE)
def pmax(x: _T, axis_name: AxisNames, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> _T:
    """Compute the maximum over all members of a named axis; NaN if any value is NaN.

    Example:
        >>> jax.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([7, 7, 7], dtype=int32)
    """
    return _reduce_extremum("pmax", MAX, x, axis_name, axis_index_groups)


@documented(COLLECTIVE)
def pmin(x: _T, axis_name: AxisNames, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> _T:
    """Compute the minimum over all members of a named axis; NaN if any value is NaN.

    Example:
        >>> jax.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([5, 5, 5], dtype=int32)
    """
    return _reduce_extremum("pmin", MIN, x, axis_name, axis_index_groups)


@documented(GATHER, returns="A pytree like `x`, with the values of all members.")
def all_gather(
    x: _T,
    axis_name: AxisNames,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> _T:
    """Gather the values of all members of a named axis.

    Example:
        >>> jax.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([[5, 6, 7],
               [5, 6, 7],
               [5, 6, 7]], dtype=int32)
    """
    if to not in ("varying", "reduced", "invarying"):
        raise ValueError(f"all_gather: to must be 'varying', 'invarying' or 'reduced', not {to!r}")
    axes = bound_axis_sizes("all_gather", axis_name)
    groups = check_groups("all_gather", axes, axis_index_groups)
    invariant_axes = () if to == "varying" else tuple(axis for axis in axes if axis in tracked_axes())
    mixed = to == "reduced" and 0 < len(invariant_axes) < len(axes)
    if (groups and to != "varying") or mixed:
        where = "over axes of which only some are those of shard_map" if mixed else "with axis_index_groups"
        raise NotImplementedError(f"all_gather: to={to!r} {where} is not supported")
    reduced = types_mesh() if to == "reduced" and invariant_axes else None

    def gather(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_gather")
        check_no_sums("all_gather", operand, axes)
        dim = _normalize_dim("all_gather", "axis", axis, operand, new=not tiled)
        if not invariant_axes:
            gathered = _apply_collective(NamedAllGather, operand, axes, groups, dim)
        elif len(invariant_axes) == len(axes):
            gather = NamedAllGather(tuple(axes), tuple(axes.values()), dim, None, not reduced, reduced)
            gathered = gather(make_varying(operand, axes))
        else:  # some names are a vmap's
            gathered = AssertReplicated(invariant_axes)(_apply_collective(NamedAllGather, operand, axes, None, dim))
        return _merge_dims(gathered, dim, 1 + tiled)

    return tree.map(gather, x)


@documented(SCATTER, returns="A pytree like `x`, with each member's part of the sum.")
def psum_scatter(
    x: _T,
    axis_name: AxisNames,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> _T:
    """Sum over all members of a named axis, and scatter the sum among them (reduce-scatter).

    Example:
        >>> jax.vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(jnp.arange(4).reshape(2, 2))
        Array([2, 4], dtype=int32)
    """
    axes = bound_axis_sizes("psum_scatter", axis_name)
    groups = check_groups("psum_scatter", axes, axis_index_groups)

    def scatter(leaf: Any) -> Any:
        operand = as_operand(leaf, "psum_scatter")
        terms = unreduced_axes("psum_scatter", operand, axes, groups)
        dim = _normalize_dim("psum_scatter", "scatter_dimension", scatter_dimension, operand)
        operand = _split_dim("psum_scatter", operand, dim, _member_count(axes, groups), tiled)
        if terms:
            return NamedReduceScatter(tuple(axes), tuple(axes.values()), dim, None, True)(operand)
        return _apply_collective(NamedReduceScatter, operand, axes, groups, dim)

    return tree.map(scatter, x)


@documented(EXCHANGE, returns="A pytree like `x`, with the received slices.")
def all_to_all(
    x: _T,
    axis_name: AxisNames,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> _T:
    """Exchange slices between all members of a named axis: member j gets slice j of each member.

    Example:
        >>> jax.vmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(jnp.arange(4).reshape(2, 2))
        Array([[0, 2],
               [1, 3]], dtype=int32)
    """
    axes = bound_axis_sizes("all_to_all", axis_name)
    groups = check_groups("all_to_all", axes, axis_index_groups)

    def exchange(leaf: Any) -> Any:
        operand = as_operand(leaf, "all_to_all")
        split = _normalize_dim("all_to_all", "split_axis", split_axis, operand)
        stack = _normalize_dim("all_to_all", "concat_axis", concat_axis, operand)
        operand = _split_dim("all_to_all", operand, split, _member_count(axes, groups), tiled)
        received = _apply_collective(NamedAllToAll, operand, axes, groups, split, stack)
        return _merge_dims(received, stack, 1 + tiled)

    return tree.map(exchange, x)


@documented(COLLECTIVE)
def pswapaxes(
    x: _T, axis_name: AxisNames, axis: int, *, axis_index_groups: Sequence[Sequence[int]] | None = None
) -> _T:
    """Swap a named axis with a dim of the same size.

    Args:
        axis: the dim to swap with.
        axis_index_groups: lists of members, all of the same size, that together contain each member once. The
            collective works within each group.

    Raises:
        ValueError: if the dim does not exist or has the wrong size, or the axis names or groups are invalid.

    Example:
        >>> jax.vmap(lambda x: lax.pswapaxes(x, "i", 0), axis_name="i")(jnp.arange(4).reshape(2, 2))
        Array([[0, 2],
               [1, 3]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


@documented(PERMUTE)
def ppermute(x: _T, axis_name: AxisNames, perm: Sequence[tuple[int, int]]) -> _T:
    """Send values between members of a named axis (collective-permute).

    Returns:
        A pytree like `x`. A member that is the destination of no pair gets zeros.

    Example:
        >>> jax.vmap(lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2)]), axis_name="i")(jnp.array([5, 6, 7]))
        Array([0, 5, 6], dtype=int32)
    """
    axes = bound_axis_sizes("ppermute", axis_name)
    size = _member_count(axes)
    pairs = _as_tuples("ppermute: perm", perm, 2)
    if any(not 0 <= member < size for pair in pairs for member in pair):
        raise ValueError(
            f"ppermute: perm {list(pairs)} must contain only the members 0 to {size - 1} of {axis_label(axes)}"
        )
    for role, members in (("source", [a for a, _ in pairs]), ("destination", [b for _, b in pairs])):
        if len(set(members)) != len(members):
            raise ValueError(f"ppermute: a {role} repeats in {list(pairs)}; each member may send and receive only once")
    return tree.map(lambda leaf: _apply_collective(NamedPermute, as_operand(leaf, "ppermute"), axes, None, pairs), x)


@documented(COLLECTIVE)
def pshuffle(x: _T, axis_name: AxisNames, perm: Sequence[int]) -> _T:
    """Permute values between the members of a named axis: member j gets the value of member `perm[j]`.

    Args:
        perm: a permutation of the members.

    Raises:
        ValueError: if `perm` is not a permutation of the members.
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> jax.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([5, 6, 7]))
        Array([7, 5, 6], dtype=int32)
    """
    axes = bound_axis_sizes("pshuffle", axis_name)
    if sorted(perm) != list(range(_member_count(axes))):
        raise ValueError(
            f"pshuffle: {list(perm)} is not a permutation of the {_member_count(axes)} members of {axis_label(axes)}"
        )
    return ppermute(x, axis_name, [(sender, receiver) for receiver, sender in enumerate(perm)])


@documented(COLLECTIVE, returns="An int32 scalar.", raises=["ValueError: if an axis name repeats."])
def axis_index(axis_name: AxisNames) -> Array:
    """Return the index of the current member along a named axis.

    Example:
        >>> jax.vmap(lambda x: lax.axis_index("i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([0, 1, 2], dtype=int32)
    """
    axes = bound_axis_sizes("axis_index", axis_name)
    return flat_axis_index(tuple(axes), tuple(axes.values()), tracked_axes())


@documented(COLLECTIVE, returns="A Python integer.", raises=["ValueError: if an axis name repeats."])
def axis_size(axis_name: AxisNames) -> int:
    """Return the number of members of a named axis.

    Example:
        >>> jax.vmap(lambda x: x * lax.axis_size("i"), axis_name="i")(jnp.array([5, 6, 7]))
        Array([15, 18, 21], dtype=int32)
    """
    return _member_count(bound_axis_sizes("axis_size", axis_name))


@documented(COLLECTIVE)
def pbroadcast(x: _T, axis_name: AxisNames, source: int) -> _T:
    """Broadcast the value of one member of a named axis to all of them.

    Args:
        source: the member whose value is broadcast.

    Raises:
        ValueError: if `source` does not exist.
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> jax.vmap(lambda x: lax.pbroadcast(x, "i", 2), axis_name="i")(jnp.array([5, 6, 7]))
        Array([7, 7, 7], dtype=int32)
    """
    axes = bound_axis_sizes("pbroadcast", axis_name)
    size = _member_count(axes)
    if not 0 <= source < size:
        raise ValueError(
            f"pbroadcast: source must be one of the members 0 to {size - 1} of {axis_label(axes)}, not {source}"
        )

    def broadcast(leaf: Any) -> Any:
        operand = as_operand(leaf, "pbroadcast")
        is_source = broadcast_to_shape(axis_index(axis_name) == source, operand.type.shape)
        return psum(Select()(is_source, operand, zeros_like(operand)), axis_name)

    return tree.map(broadcast, x)


def _reduce_extremum(
    function: str, reduction: Reduction, x: Any, axis_name: AxisNames, axis_index_groups: Sequence[Sequence[int]] | None
) -> Any:
    axes = bound_axis_sizes(function, axis_name)
    groups = check_groups(function, axes, axis_index_groups, allow_uneven=True)

    def reduce_leaf(leaf: Any) -> Any:
        operand = as_operand(leaf, function)
        check_no_sums(function, operand, axes)
        if groups and len(axes) > 1:
            reduce_op = {MAX: ReduceMax, MIN: ReduceMin}[reduction]
            return reduce_op((0,))(_apply_collective(NamedAllGather, operand, axes, groups, 0))
        for names, invariant in split_by_tracking(axes):
            operand = NamedMinMax(names, invariant and not groups, reduction, groups)(make_varying(operand, names))
        return operand

    return tree.map(lambda leaf: reduce_leaf(leaf) if axes else leaf, x)


def _apply_collective(
    op_type: type[NamedExchangeOp], x: Any, axes: dict[Any, int], groups: Groups | None, *parameters: Any
) -> Any:
    """Apply a collective op to `x`. Over no axes there is one member, and the op is resolved locally."""
    op = op_type(tuple(axes), tuple(axes.values()), *parameters, *([groups] if groups else ()))
    return op(make_varying(x, axes)) if axes else op.along_dim(x, None)[0]


def split_by_tracking(names: Iterable[Any]) -> list[tuple[tuple[Any, ...], bool]]:
    """Group axis names by whether types track variance along them. Return the non-empty groups with that flag."""
    tracked = tracked_axes()
    split = [
        (tuple(name for name in names if (name in tracked) is is_tracked), is_tracked) for is_tracked in (False, True)
    ]
    return [(group, is_tracked) for group, is_tracked in split if group]


def check_groups(function: str, axes: dict[Any, int], groups: Any, allow_uneven: bool = False) -> Groups | None:
    """Check `axis_index_groups`: each member must be in one group; all must have one size, unless `allow_uneven`."""
    if groups is None:
        return None
    checked = _as_tuples(f"{function}: axis_index_groups", groups)
    listed = list(map(list, checked))
    members = [member for group in checked for member in group]
    size = math.prod(axes.values())
    if wrong := [member for member in members if not 0 <= member < size]:
        raise ValueError(
            f"{function}: axis_index_groups {listed} contain {wrong[0]}, but the members of {axis_label(axes)} are "
            f"0 to {size - 1}"
        )
    for member in range(size):
        if (count := members.count(member)) != 1:
            raise ValueError(
                f"{function}: axis_index_groups {listed} contain member {member} of {axis_label(axes)} {count} times; "
                "each member must be in exactly one group"
            )
    if len({len(group) for group in checked}) != 1:
        if not allow_uneven:
            raise ValueError(f"{function}: axis_index_groups {listed} must all have the same size")
        if len(axes) > 1:
            raise ValueError(f"{function}: over several axes, axis_index_groups {listed} must all have the same size")
    return checked


def _as_tuples(argument: str, lists: Any, length: int | None = None) -> Groups:
    """Convert lists of members to tuples; all must have `length`, if it is given."""
    try:
        tuples = tuple(tuple(index(member) for member in each) for each in lists)
        if all(length in (None, len(each)) for each in tuples):
            return tuples
    except TypeError:
        pass
    expected = "lists of members such as [[0, 1], [2, 3]]"
    if length is not None:
        expected = "pairs of members such as [(0, 1), (1, 2)]"
    raise TypeError(f"{argument} must be {expected}, not {lists!r}")


def _member_count(axes: dict[Any, int], groups: Groups | None = None) -> Any:
    """Return the number of participating members: an array, if it is not the same for all."""
    if not groups:
        return math.prod(axes.values())
    if len({len(group) for group in groups}) == 1:
        return len(groups[0])
    (name,) = axes
    return NamedSum((name,), False, groups)(make_varying(full((), 1, np.int32), axes))


def _normalize_dim(function: str, argument: str, axis: int, x: Any, new: bool = False) -> int:
    """Convert `axis` to a dim from 0. With `new`, it is a dim of an array with one more dim."""
    rank: int = x.type.ndim + new
    if not -rank <= axis < rank:
        raise ValueError(f"{function}: {argument} {axis} does not exist in {x.type}" + " with one more dim" * new)
    return axis % rank


def _merge_dims(x: Any, dim: int, count: int) -> Any:
    """Merge `count` dims, starting at `dim`."""
    shape = x.type.shape
    return reshape(x, shape=(*shape[:dim], math.prod(shape[dim : dim + count]), *shape[dim + count :]))


def _split_dim(function: str, x: Any, dim: int, members: int, tiled: bool) -> Any:
    """Split `dim` into one slice per member. With `tiled`, the rest of the dim follows as a separate dim."""
    length = x.type.shape[dim]
    if length % members if tiled else length != members:
        expected = f"a multiple of {members}" if tiled else f"{members}"
        raise ValueError(f"{function}: the size of dim {dim} of {x.type} must be {expected}, the number of members")
    rest = (length // members,) if tiled else ()
    return reshape(x, shape=(*x.type.shape[:dim], members, *rest, *x.type.shape[dim + 1 :]))

"""Named axes as types see them: whether a value varies, is unreduced or is reduced along an axis of shard_map."""

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from shardwise import tree
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.compiler.ops.collective.collectives import Groups
from shardwise.compiler.ops.collective.named import PReduced, PUnreduced, PVary
from shardwise.compiler.shardings.mesh import AbstractMesh, mesh_context, mesh_of_types
from shardwise.errors import UnboundAxisError

# The name of an axis that `vmap`, `pmap` or `shard_map` binds, or several names.
AxisNames: TypeAlias = Hashable | Sequence[Hashable]

_T = TypeVar("_T")


def pcast(x: _T, axis_name: AxisNames, *, to: str) -> _T:
    """Cast a value to another type along axes of shard_map, without communication.

    A replicated value becomes varying or reduced, a reduced one varying, and a varying one unreduced: each device then
    holds a term of the sum. Along axes whose types do not track this, those of `vmap` or of a shard_map with
    `check_vma=False`, the cast does nothing.

    Args:
        x: a pytree of arrays.
        axis_name: the name of an axis that `vmap`, `pmap` or `shard_map` binds, or a tuple of names.
        to: "varying", "reduced" or "unreduced".

    Returns:
        A pytree like `x`.

    Raises:
        UnboundAxisError: if an axis name is not bound.
        ValueError: if `to` is unknown, or if a leaf cannot be cast to it.
        TypeError: if `axis_name` is a set, or if a leaf is not an array or a number.

    Example:
        >>> jax.vmap(lambda x: lax.pcast(x, "i", to="varying"), axis_name="i")(jnp.array([5, 6]))
        Array([5, 6], dtype=int32)
    """
    if to not in ("varying", "reduced", "unreduced"):
        raise ValueError(f"pcast: to must be 'varying', 'reduced' or 'unreduced', not {to!r}")
    if isinstance(axis_name, (set, frozenset)):
        raise TypeError(f"pcast: axis_name must be a name or a tuple of names, not {axis_name!r}")
    tracked = tracked_axes()
    axes = tuple(axis for axis in bound_axis_sizes("pcast", axis_name) if axis in tracked)
    return tree.map(lambda leaf: _cast(as_operand(leaf, "pcast"), axes, to), x)


def _cast(x: Any, axes: tuple[str, ...], to: str) -> Any:
    """Cast `x` along axes of shard_map."""
    if to == "varying":
        axes = tuple(axis for axis in axes if axis not in x.type.varying)
    if not axes:
        return x
    before = {_state(x, axis) for axis in axes}
    allowed = {"varying": {"replicated", "reduced"}, "reduced": {"replicated"}, "unreduced": {"varying"}}
    if not before <= allowed[to]:
        states = ", ".join(f"{_state(x, axis)} along {axis!r}" for axis in axes)
        raise ValueError(
            f"pcast: a value of type {x.type} cannot be cast to {to} along {axis_label(axes)}: it is "
            f"{states}. A replicated value can become varying or reduced, a reduced one varying, and a varying one "
            "unreduced."
        )
    if to == "varying":
        return PVary(axes)(x)
    return {"reduced": PReduced, "unreduced": PUnreduced}[to](axes, types_mesh())(x)


def _state(x: Any, axis: str) -> str:
    """Return how the type of `x` describes it along an axis of shard_map."""
    mat = x.type.mat
    states = {"varying": mat.varying, "unreduced": mat.unreduced, "reduced": mat.reduced}
    return next((state for state, axes in states.items() if axis in axes), "replicated")


def pvary(x: _T, axis_name: AxisNames) -> _T:
    """Cast a replicated value to a varying one: the older name of `pcast(x, axis_name, to="varying")`.

    Args:
        x: a pytree of arrays.
        axis_name: the name of an axis that `vmap`, `pmap` or `shard_map` binds, or a tuple of names. Several axes are
            numbered as one, the first axis slowest.

    Returns:
        A pytree like `x`.

    Raises:
        UnboundAxisError: if an axis name is not bound.
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> jax.vmap(lambda x: lax.pvary(x, "i"), axis_name="i")(jnp.array([5, 6]))
        Array([5, 6], dtype=int32)
    """
    return pcast(x, axis_name, to="varying")


def types_mesh() -> AbstractMesh:
    """Return the mesh to which the types inside a shard_map refer."""
    assert mesh_context.region_mesh is not None
    return mesh_of_types(mesh_context.region_mesh).abstract


def unreduced_axes(function: str, x: Any, axes: dict[Any, int], groups: Groups | None) -> tuple[str, ...]:
    """Return those of the axes over which the operand of a sum is unreduced: all of those of shard_map, or none."""
    terms = tuple(axis for axis in axes if axis in x.type.mat.unreduced)
    if terms and (groups or len(terms) < len(axes)):
        raise ValueError(
            f"{function}: a value of type {x.type} is unreduced over {axis_label(terms)}: sum it "
            f"over exactly these axes{', without axis_index_groups' * (groups is not None)}."
        )
    check_no_sums(function, x, {axis: size for axis, size in axes.items() if axis not in terms})
    return terms


def check_no_sums(function: str, x: Any, axes: dict[Any, int]) -> None:
    """Raise ValueError if a value is unreduced or reduced along one of the axes of a collective."""
    for axis in axes:
        if axis in x.type.mat.unreduced:
            raise ValueError(
                f"{function}: a value of type {x.type} is unreduced over {axis!r}. Reduce it first: `lax.psum(x, "
                f"{axis!r})`."
            )
        if axis in x.type.mat.reduced:
            raise ValueError(
                f"{function}: a value of type {x.type} is reduced along {axis!r}: all devices have the same value. "
                f"Cast it first, if each of them is meant: `lax.pcast(x, {axis!r}, to='varying')`."
            )


def make_varying(x: Any, names: Iterable[Any]) -> Any:
    """Cast `x` to varying along the named axes whose variance types track."""
    tracked = tracked_axes()
    missing = tuple(name for name in names if name in tracked and name not in x.type.varying)
    return PVary(missing)(x) if missing else x


def bound_axis_sizes(function: str, axis_name: AxisNames) -> dict[Any, int]:
    """Return the sizes of the named axes, in the given order."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    bound = bound_axes()
    for name in names:
        if name not in bound:
            listed = f"The bound names are: {', '.join(map(repr, bound))}." if bound else "No axis name is bound."
            if near := get_close_matches(str(name), [other for other in bound if isinstance(other, str)], 1):
                listed = f"Did you mean {near[0]!r}? {listed}"
            raise UnboundAxisError(
                f"unbound axis name {name!r}. {listed} `vmap(fun, axis_name={name!r})` binds a name in `fun`, and "
                "shard_map binds the axes of its mesh.",
                name,
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{function}: an axis name repeats in {names}")
    return {name: bound[name] for name in names}


def axis_label(axes: Iterable[Any]) -> str:
    """Return axis names as text, for messages."""
    names = tuple(axes)
    return repr(names[0]) if len(names) == 1 else repr(names)

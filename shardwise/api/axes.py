"""Checks of `in_axes` and `out_axes`, the tree prefixes of axes that vmap, pmap and smap accept.

`label` names the transformation and the function in messages: "vmap of `loss` (train.py:12)".
"""

from typing import Any

from shardwise import tree
from shardwise.api.arguments import prefix_error
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.spec import PartitionSpec

Axes = list[int | None]  # the mapped axis of each leaf; None: the leaf is not mapped


def check_axes(label: str, in_axes: object, axis_name: object = None, axis_size: object = None) -> None:
    """Check everything that does not depend on the arguments."""
    is_prefix = in_axes is None or isinstance(in_axes, (int, tuple, list))
    if not is_prefix or any(type(axis) is not int for axis in tree.leaves(in_axes)):
        raise TypeError(
            f"{label}: in_axes must be an integer, None, or a tuple with one entry per positional argument "
            f"(pytrees of integers and None), not {in_axes!r}"
        )
    if axis_size is not None and (type(axis_size) is not int or axis_size < 0):
        raise TypeError(f"{label}: axis_size must be a nonnegative integer, not {axis_size!r}")
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(f"{label}: axis_name must be hashable, not {axis_name!r}") from None


def check_nonnegative_axes(label: str, parameter: str, axes: object) -> None:
    """Check that all axes are nonnegative: they become PartitionSpecs before the rank of a result is known."""
    for axis in tree.leaves(axes):
        if type(axis) is not int or axis < 0:
            raise ValueError(f"{label}: {parameter} must hold nonnegative integers and None, not {axis!r}")


def argument_axes(label: str, in_axes: object, args: object, keywords: object) -> Axes:
    """Return the mapped axis of each leaf of the arguments; keyword arguments are mapped over axis 0."""
    prefix = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    try:
        axes = tree.broadcast_prefix(prefix, args, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{label}: {prefix_error(mismatch, 'in_axes')}") from None
    return [*axes, *[0] * len(tree.leaves(keywords))]


def output_axes(label: str, out_axes: object, structure: tree.Structure) -> Axes:
    """Return the axis that the user asks for in each leaf of the results."""
    results = structure.unflatten(list(range(structure.num_leaves)))
    try:
        return tree.broadcast_prefix(out_axes, results, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{label}: {prefix_error(mismatch, 'out_axes')}") from None


def axes_to_specs(axes: object, name: str) -> Any:
    """Replace each axis in a pytree by the PartitionSpec that shards that dim along the mesh axis `name`."""
    return tree.map(
        lambda axis: PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, name),
        axes,
        is_leaf=lambda axis: axis is None,
    )


def mapped_dim(label: str, axis: int, type: ArrayType, name: str) -> int:
    """Return the dim of argument `name` that the possibly negative `axis` denotes."""
    if not -type.ndim <= axis < type.ndim:
        raise ValueError(f"{label}: in_axes maps axis {axis} of {name}, which is {type} and has rank {type.ndim}")
    return axis % type.ndim


def common_size(label: str, axis_size: int | None, sizes: dict[str, int]) -> int:
    """Return the one size of all mapped axes; `sizes` holds the size for each argument's name."""
    size_sources = {f"{name} has": size for name, size in sizes.items()}
    if axis_size is not None:
        size_sources["axis_size is"] = axis_size
    if not size_sources:
        raise ValueError(
            f"{label}: in_axes maps no argument, so the size of the mapped axis is unknown: map at least one argument, "
            "or pass axis_size"
        )
    if len(set(size_sources.values())) > 1:
        lines = "".join(f"\n  {source} {size}" for source, size in size_sources.items())
        raise ValueError(f"{label}: all mapped axes must have the same size:{lines}")
    return int(next(iter(size_sources.values())))

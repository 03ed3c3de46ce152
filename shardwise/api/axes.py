"""Axes of arguments and results, given as tree prefixes: `in_axes` and `out_axes` of vmap, pmap and smap.

`what` names the transformation and the function in messages: "vmap of `loss` (train.py:12)".
"""

from typing import Any

from shardwise import tree
from shardwise.api.arguments import describe_mismatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.spec import PartitionSpec

Axes = list[int | None]  # for each array, the axis that is mapped; None: it is not


def check_axes(what: str, in_axes: Any, axis_name: Any = None, axis_size: Any = None) -> None:
    """What can be told before there are arguments."""
    is_prefix = in_axes is None or isinstance(in_axes, (int, tuple, list))
    if not is_prefix or any(type(axis) is not int for axis in tree.leaves(in_axes)):
        raise TypeError(
            f"{what}: in_axes must be an integer, None, or a tuple with an entry for each positional "
            f"argument (integers and None, in trees), not {in_axes!r}"
        )
    if axis_size is not None and (type(axis_size) is not int or axis_size < 0):
        raise TypeError(f"{what}: axis_size must be an integer of 0 or more, not {axis_size!r}")
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(f"{what}: axis_name must be hashable, not {axis_name!r}") from None


def check_nonnegative_axes(what: str, given: str, axes: Any) -> None:
    """Axes that become specs count from the front: how many dims a result will have is not known."""
    for axis in tree.leaves(axes):
        if type(axis) is not int or axis < 0:
            raise ValueError(f"{what}: {given} has {axis!r}: axes are integers that count from 0, or None")


def argument_axes(what: str, in_axes: Any, args: Any, keywords: Any) -> Axes:
    """The axis that is asked for each leaf of the arguments; those given by keyword are mapped over their first."""
    prefix = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    try:
        given = tree.broadcast_prefix(prefix, args, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{what}: in_axes do not fit.\n  {describe_mismatch(mismatch, 'in_axes')}") from None
    return [*given, *[0] * len(tree.leaves(keywords))]


def output_axes(what: str, out_axes: Any, structure: tree.Structure) -> Axes:
    """The axis that is asked for each result."""
    results = structure.unflatten(list(range(structure.num_leaves)))
    try:
        return tree.broadcast_prefix(out_axes, results, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{what}: out_axes do not fit.\n  {describe_mismatch(mismatch, 'out_axes')}") from None


def axes_to_specs(axes: Any, name: str) -> Any:
    """The same tree, with the spec of an array that the mesh axis `name` cuts there in place of each axis."""
    return tree.map(
        lambda axis: PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, name),
        axes,
        is_leaf=lambda axis: axis is None,
    )


def mapped_dim(what: str, axis: int, type: ArrayType, name: str) -> int:
    """The dim of an argument that `axis` means."""
    if not -type.ndim <= axis < type.ndim:
        raise ValueError(f"{what}: in_axes gives axis {axis} for {name}, which is {type} and has rank {type.ndim}")
    return axis % type.ndim


def common_size(what: str, axis_size: int | None, sizes: dict[str, int]) -> int:
    """The size that the mapped axes of all arguments, by their names, have."""
    said = {f"{name} has": size for name, size in sizes.items()}
    if axis_size is not None:
        said["axis_size is"] = axis_size
    if not said:
        raise ValueError(
            f"{what}: in_axes maps no argument; at least one axis must not be None, or axis_size "
            "must say how large the new dim is"
        )
    if len(set(said.values())) > 1:
        lines = "".join(f"\n  {who} {size}" for who, size in said.items())
        raise ValueError(f"{what}: the mapped axes must have one size:{lines}")
    return int(next(iter(said.values())))

"""Compare the leaves of a checkpoint with the leaves that a program requests."""

from collections.abc import Mapping, Sequence

from shardwise.checkpoints.manifest import ArrayLeaf, Leaf
from shardwise.checkpoints.target import Target, logical_type
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import is_key
from shardwise.errors import CheckpointMismatch

_MOST = 50  # lines in a message


def listed(lines: Sequence[str]) -> str:
    """Format the end of a message that lists `lines`; only the first if there are many."""
    shown = "".join(f"\n  {line}" for line in lines[:_MOST])
    return shown if len(lines) <= _MOST else f"{shown}\n  and {len(lines) - _MOST} more"


def check_targets(
    path: str,
    leaves: Mapping[str, Leaf],
    targets: Mapping[str, Target],
    *,
    cast: bool,
    allow_missing: bool,
    allow_extra: bool,
) -> None:
    """Raise one error that lists all differences, if there are any.

    Args:
        path: the checkpoint.
        leaves: its leaves, by name.
        targets: the targets of the program, by name.
        cast: whether dtypes may differ.
        allow_missing: whether the checkpoint may lack leaves.
        allow_extra: whether it may have leaves that are not requested.

    Raises:
        CheckpointMismatch: if they differ.
    """
    differences = []
    for name, target in targets.items():
        if name in leaves:
            if difference := _difference(leaves[name], target, cast):
                differences.append(f"{name}: {difference}")
        elif not allow_missing:
            differences.append(f"{name}: missing in the checkpoint; the program asks for {target}")
    if not allow_extra:
        differences += [
            f"{name}: the checkpoint has {leaf}, and the program does not ask for it"
            for name, leaf in leaves.items()
            if name not in targets
        ]
    if differences:
        raise CheckpointMismatch(
            f"{path} differs from what the program asks for in {len(differences)} leaves:{listed(differences)}\n"
            "cast=True converts dtypes; allow_missing=True keeps the program's leaves; allow_extra=True ignores those "
            "of the checkpoint.",
            tuple(differences),
        )


def _difference(leaf: Leaf, target: Target, cast: bool) -> str | None:
    """Describe how a leaf differs from its target; None if it does not."""
    if not isinstance(leaf, ArrayLeaf) or target.shape is None:
        is_same_kind = not isinstance(leaf, ArrayLeaf) and target.shape is None
        return None if is_same_kind else f"the checkpoint has {leaf}; the program asks for {target}"
    shape, dtype = logical_type(leaf)
    if shape != target.shape:
        return f"the checkpoint has {leaf}; the program asks for {target}, of another shape"
    if dtype != target.dtype and (not cast or is_key(dtype) or is_key(target.dtype)):
        return f"the checkpoint has {leaf}; the program asks for {target}, of another dtype"
    if target.sharding is not None and target.dtype != canonical_dtype(target.dtype):
        return (
            f"the checkpoint has {leaf}, and 64-bit dtypes are disabled on devices: enable them with "
            "`config.update('jax_enable_x64', True)`"
        )
    return None

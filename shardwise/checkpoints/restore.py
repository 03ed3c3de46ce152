"""Restore checkpoints: each device receives its shard directly from the files that hold it."""

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from shardwise import tree_util
from shardwise.api.creation import devices_by_box, put_box, writable_shards
from shardwise.api.meshes.placement import broadcast_shardings, device_put
from shardwise.checkpoints.compare import check_targets
from shardwise.checkpoints.identity import check_unchanged, identity_of
from shardwise.checkpoints.location import location_of
from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Manifest, ValueLeaf
from shardwise.checkpoints.names import nested
from shardwise.checkpoints.read import HostArray, Reader
from shardwise.checkpoints.run_ahead import run_ahead
from shardwise.checkpoints.snapshot import named_leaves
from shardwise.checkpoints.target import Target, default_target, target_of
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.array import ArrayImpl, array_signature, join_shards, key_data_sharding
from shardwise.runtime.box import Box, whole


def restore(
    path: str | os.PathLike[str] | Reader,
    like: object = None,
    *,
    shardings: object = None,
    only: str | None = None,
    cast: bool = False,
    allow_missing: bool = False,
    allow_extra: bool = False,
    memory_limit: int = 1 << 31,
) -> Any:
    """Restore a checkpoint.

    Every process calls it with the same arguments. Each reads the blocks that its devices need, whatever the mesh and
    the number of processes were when they were saved. Every block is compared with its checksum.

    Args:
        path: the folder or URL of the checkpoint, or a `Reader` that has opened it.
        like: a pytree of arrays or `ShapeDtypeStruct`s, whose structure, types and shardings the result has. If an
            array is uncommitted, the restored one is too. Without `like`, the result is nested dicts and lists of numpy
            arrays.
        shardings: a sharding for all arrays, instead of the shardings of `like`; or a tree prefix of `like` with
            shardings. Without `like`, a tree prefix of the result; arrays whose sharding is None are numpy arrays.
        only: a regular expression; leaves whose names it does not match are omitted, or kept from `like`.
        cast: whether arrays are converted to the dtypes of `like`, and on devices to 32-bit dtypes if 64-bit dtypes are
            disabled.
        allow_missing: whether leaves that the checkpoint lacks are kept from `like`.
        allow_extra: whether leaves that `like` lacks are ignored.
        memory_limit: the bytes of host memory that reading may use; a larger shard is read alone.

    Returns:
        The restored pytree.

    Raises:
        CheckpointError: if it cannot be read.
        CheckpointNotFound: if there is no checkpoint at `path`, or if it was deleted or replaced while it was read.
        CorruptCheckpoint: if it was changed after it was written; the message names the array.
        CheckpointMismatch: if it differs from `like`, or if arrays with 64-bit dtypes are restored to devices while
            these dtypes are disabled; the message lists all such leaves.
        ShardingError: if `shardings` is not a tree prefix.
        ValueError: if `only` is not a regular expression.

    Example:
        >>> jax.checkpoints.save(folder / "step-7", {"w": jnp.arange(4.0)}).wait()
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> like = {"w": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=rows)}
        >>> jax.checkpoints.restore(folder / "step-7", like)["w"].sharding.spec
        P('rows')
    """
    if isinstance(path, Reader):
        return _restore(path, like, shardings, only, cast, allow_missing, allow_extra, memory_limit)
    location = location_of(path)
    with check_unchanged(location, identity_of(location)):
        reader = Reader(path)
        return _restore(reader, like, shardings, only, cast, allow_missing, allow_extra, memory_limit)


def _restore(
    reader: Reader,
    like: object,
    shardings: object,
    only: str | None,
    cast: bool,
    allow_missing: bool,
    allow_extra: bool,
    memory_limit: int,
) -> Any:
    """Restore the checkpoint that a reader has opened."""
    pattern = _compiled(only) if only is not None else None
    leaves = {name: leaf for name, leaf in reader.manifest.leaves.items() if not pattern or pattern.search(name)}
    if like is None:
        tree = nested({name: (list(leaf.positions), name) for name, leaf in leaves.items()})
        by_name = dict(zip(tree_util.tree_leaves(tree), _broadcast(shardings, tree, "the checkpoint"), strict=True))
        targets = {name: default_target(name, leaf, by_name[name], cast) for name, leaf in leaves.items()}
    else:
        named = named_leaves(like)
        by_name = dict(zip(named, _broadcast(shardings, like, "like"), strict=True))
        targets = {
            name: target_of(name, leaf, by_name[name], cast)
            for name, (_, leaf) in named.items()
            if pattern is None or pattern.search(name)
        }
    check_targets(reader.path, leaves, targets, cast=cast, allow_missing=allow_missing, allow_extra=allow_extra)
    present = {name: target for name, target in targets.items() if name in leaves}
    restored = _restore_leaves(reader, present, memory_limit)
    if like is None:
        return nested({name: (list(leaf.positions), restored[name]) for name, leaf in leaves.items()})
    structure = tree_util.tree_structure(like, is_leaf=lambda node: node is None)
    return structure.unflatten([restored.get(name, leaf) for name, (_, leaf) in named.items()])


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a checkpoint, without reading its arrays.

    Args:
        path: the folder or URL of the checkpoint.

    Returns:
        The manifest: `leaves` by name, `metadata`, `versions` and `created`.

    Raises:
        CheckpointNotFound: if there is no checkpoint at `path`.
        CorruptCheckpoint: if its manifest is invalid.

    Example:
        >>> jax.checkpoints.save(folder / "step-9", {"w": jnp.arange(4.0)}, metadata={"run": 1}).wait()
        >>> jax.checkpoints.read_manifest(folder / "step-9").metadata
        {'run': 1}
    """
    return Reader(path).manifest


def _compiled(only: str) -> re.Pattern[str]:
    """Return the pattern of the leaves to restore.

    Raises:
        ValueError: if it is not a regular expression.
    """
    try:
        return re.compile(only)
    except re.error as error:
        raise ValueError(f"only={only!r} is not a regular expression: {error}") from None


def _broadcast(shardings: object, tree: object, tree_name: str) -> list[Any]:
    """Return a sharding or None for each leaf of a tree, where None counts as a leaf."""
    marked = tree_util.tree_map(lambda _: 0, tree, is_leaf=lambda node: node is None)
    return broadcast_shardings("checkpoints.restore", "shardings", shardings, marked, tree_name)


def _restore_leaves(reader: Reader, targets: Mapping[str, Target], memory_limit: int) -> dict[str, Any]:
    """Return the restored leaves, by name."""
    restored: dict[str, Any] = {}
    small, large = [], []
    for name in targets:
        leaf = reader.manifest.leaves[name]
        if isinstance(leaf, ValueLeaf):
            restored[name] = leaf.value
        elif isinstance(leaf.storage, Chunked):
            large.append(name)
        else:
            small.append(name)
    for names in reader.batches(small, memory_limit // 2):  # halved, because they are in memory as bytes and as arrays
        for name, data in reader.read_small(names):
            restored[name] = _placed(data, targets[name])
    restored |= _restore_large(reader, {name: targets[name] for name in large}, memory_limit)
    return {name: _as_committed(leaf, targets[name]) for name, leaf in restored.items()}


def _restore_large(reader: Reader, targets: Mapping[str, Target], memory_limit: int) -> dict[str, Any]:
    """Return the restored arrays that have their own folders, by name."""
    restored: dict[str, Any] = {}
    devices = {name: _boxes(reader.manifest.arrays[name], target) for name, target in targets.items()}
    left = {name: len(boxes) for name, boxes in devices.items()}
    written: dict[tuple[str, Box], Any] = {}  # shards on CPU devices, into whose memory the elements are read
    done: dict[str, dict[Any, Any]] = {name: {} for name in targets}  # array name → device → shard
    boxes = [(name, box) for name in targets for box in devices[name]]

    def allocate(name: str, box: Box) -> HostArray:
        """Return memory to read a box into."""
        stored, target = reader.manifest.arrays[name], targets[name]
        if target.sharding is not None and (is_key(target.dtype) or target.dtype == stored.dtype):
            shards = writable_shards(box, stored.dtype, devices[name][box], stored.shape, _stored_sharding(target))
            if shards is not None:
                written[name, box], memory = shards
                return memory
        return reader.empty(name, box)

    with run_ahead(partial(allocate, name, box) for name, box in boxes) as memories:
        for name, box, data in reader.read_boxes(boxes, memory_limit, lambda name, box: next(memories)):
            stored, target = reader.manifest.arrays[name], targets[name]
            left[name] -= 1
            if target.sharding is None:
                restored[name] = data.astype(target.dtype, copy=False)
            else:
                if (name, box) in written:
                    done[name] |= written.pop((name, box))
                else:
                    block = data if is_key(target.dtype) else data.astype(target.dtype, copy=False)
                    done[name] |= put_box(block, devices[name][box], stored.shape, _stored_sharding(target))
                    del block
                if not left[name]:
                    restored[name] = _assembled(done.pop(name), stored, target)
            del data  # free it before the next box is read
    for name in targets:  # no device of this process holds a part of it
        if name not in restored:
            restored[name] = _assembled({}, reader.manifest.arrays[name], targets[name])
    return restored


def _as_committed(leaf: object, target: Target) -> object:
    """Return a leaf that is committed to its devices if its target is."""
    if target.committed or not isinstance(leaf, ArrayImpl):
        return leaf
    return leaf.with_signature(array_signature(leaf.type, leaf.sharding, False))


def _boxes(leaf: ArrayLeaf, target: Target) -> dict[Box, list[Any]]:
    """Return the distinct blocks of a stored array that this process needs, each with the devices that hold it."""
    if target.sharding is None:
        return {whole(leaf.shape): []}
    return devices_by_box(leaf.shape, _stored_sharding(target))


def _placed(data: HostArray, target: Target) -> Any:
    """Return a small array on the devices of its target, or in host memory."""
    if target.sharding is None:
        return data.astype(target.dtype, copy=False)
    if not is_key(target.dtype):
        return device_put(data.astype(target.dtype, copy=False), target.sharding)
    return _as_keys(device_put(data, key_data_sharding(target.sharding)), target)


def _assembled(shards: Mapping[Any, Any], leaf: ArrayLeaf, target: Target) -> Any:
    """Assemble an array from padded shards on the devices of this process."""
    sharding = _stored_sharding(target)
    local = [shards[device] for device in sharding.local_devices]
    if is_key(target.dtype):
        return _as_keys(join_shards(local, ArrayType(leaf.shape, leaf.dtype), sharding), target)
    return join_shards(local, ArrayType(leaf.shape, target.dtype), sharding)


def _stored_sharding(target: Target) -> Sharding:
    """Return the sharding of the stored array; for keys, the sharding of their words."""
    assert target.sharding is not None
    return key_data_sharding(target.sharding) if is_key(target.dtype) else target.sharding


def _as_keys(words: ArrayImpl, target: Target) -> ArrayImpl:
    """Wrap words as keys that share their memory."""
    assert target.shape is not None and target.sharding is not None
    signature = array_signature(ArrayType(target.shape, target.dtype), target.sharding, True)
    keys: ArrayImpl = words.with_signature(signature)
    return keys

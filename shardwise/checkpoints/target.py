"""Target: the shape, dtype and sharding to which a leaf of a checkpoint is restored."""

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.meshes.placement import as_sharding
from shardwise.checkpoints.manifest import ArrayLeaf, Leaf, Shape, ValueLeaf
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import KEY_DTYPES, is_key
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import CheckpointError
from shardwise.execute.request import default_device
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.client import process_count
from shardwise.runtime.sharding import SingleDeviceSharding
from shardwise.typing import DTypeLike


@final
@dataclass(frozen=True)
class Target:
    """The type of a restored leaf.

    Attributes:
        shape: the shape of the array; None for a Python value.
        dtype: the dtype, which may be a dtype of PRNG keys; None for a Python value.
        sharding: the sharding; None for a numpy array and for a Python value.
        committed: whether the array is committed to the sharding, like an array that the user placed.
    """

    shape: Shape | None = None
    dtype: Any = None
    sharding: Sharding | None = None
    committed: bool = True

    def __str__(self) -> str:
        if self.shape is None:
            return "a Python value"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def target_of(name: str, like: object, sharding: object, cast: bool) -> Target:
    """Return the target for a leaf of `like`.

    Args:
        name: the name of the leaf.
        like: the leaf.
        sharding: replaces its own sharding; None keeps it.
        cast: whether a 64-bit dtype becomes a 32-bit one on devices if 64-bit dtypes are disabled.

    Raises:
        CheckpointError: if the devices of the array are unknown.
    """
    if not isinstance(like, (ArrayImpl, ShapeDtypeStruct, np.ndarray, np.generic)):
        return Target()
    if isinstance(like, (np.ndarray, np.generic)) and sharding is None:
        return Target(like.shape, like.dtype)
    target = _device_target(name, like.shape, like.dtype, sharding or getattr(like, "sharding", None), cast)
    return replace(target, committed=sharding is not None or not isinstance(like, ArrayImpl) or like.committed)


def default_target(name: str, leaf: Leaf, sharding: object, cast: bool) -> Target:
    """Return the target for a leaf without a `like`: a numpy array, unless `sharding` is not None."""
    if isinstance(leaf, ValueLeaf):
        return Target()
    shape, dtype = logical_type(leaf)
    if sharding is None and not is_key(dtype):
        return Target(shape, dtype)
    return _device_target(name, shape, dtype, sharding, cast)


def logical_type(leaf: ArrayLeaf) -> tuple[Shape, Any]:
    """Return the public shape and dtype of an array: for PRNG keys, without the dim of words."""
    if leaf.key_impl is None:
        return leaf.shape, leaf.dtype
    return leaf.shape[:-1], KEY_DTYPES[leaf.key_impl]


def _device_target(name: str, shape: Shape, dtype: DTypeLike, sharding: object, cast: bool) -> Target:
    """Return the target of an array on devices; without a sharding, on the default device."""
    target = Target(tuple(shape), canonical_dtype(dtype) if cast else dtype)
    if (resolved := as_sharding("checkpoints.restore", sharding)) is not None:
        return replace(target, sharding=resolved)
    if process_count() > 1:
        raise CheckpointError(
            f"the sharding of {name!r} is not known, and there are several processes: pass `shardings`, or `like` with "
            "shardings"
        )
    return replace(target, sharding=SingleDeviceSharding(default_device()))

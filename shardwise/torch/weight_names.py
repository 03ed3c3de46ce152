"""Names, shapes and dtypes of weights in files: what reading and writing all formats share."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, final

import numpy as np

import shardwise as jax
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import TorchModuleError
from shardwise.torch.fused_projections import FusedProjections
from shardwise.torch.stored_tensors import Bounds, StoredTensor

_NAMES = 5  # the number of names to list in an error


@final
@dataclass(frozen=True)
class WeightReader:
    """Reads tensors of files into arrays.

    Attributes:
        caller: the public function, for errors.
        path: the file or folder, for errors.
        rename: returns the name in the file of a parameter's name.
        fused: the fused projections whose parts are stored apart in arrays, but not in files.
        ignore: a regular expression: tensors of the file whose names it matches need not be parameters.
        cast: whether dtypes may differ.
    """

    caller: str
    path: str | PathLike[str]
    rename: Callable[[str], str]
    fused: FusedProjections
    ignore: str | None
    cast: bool

    def check_names(self, like: Collection[str], found: Collection[str], other: Collection[str] = ()) -> dict[str, str]:
        """Return the name in the file of the parameter of each leaf.

        Args:
            like: the names of the leaves.
            found: the names of the tensors in the file.
            other: names in the file that are not tensors, or that are tied to other ones.

        Raises:
            TorchModuleError: if the file lacks a parameter, or has other tensors.
        """
        names = {leaf: self.rename(self.fused.parameter_name(leaf)) for leaf in like}
        wanted = set(names.values())
        if wrong := sorted(wanted & set(other) - set(found)):
            raise TorchModuleError(f"{self.caller}: {wrong[0]!r} in {self.path} is not a tensor")
        extra = [name for name in found if self.ignore is None or not re.search(self.ignore, name)]
        problems = (
            ("lacks", sorted(wanted - set(found))),
            ("has other tensors:", sorted(set(extra) - wanted - set(other))),
        )
        texts = []
        for verb, listed in problems:
            if listed:
                more = f" and {len(listed) - _NAMES} more" if len(listed) > _NAMES else ""
                texts.append(f"{verb} {', '.join(map(repr, listed[:_NAMES]))}{more}")
        if texts:
            raise TorchModuleError(
                f"{self.caller}: {self.path} {'; it '.join(texts)}. Pass `rename` if the names of the file differ by "
                "a prefix, `ignore` (a regular expression) for tensors that are not parameters, and only those "
                "parameters that the file should have."
            )
        return names

    def read(self, name: str, stored: StoredTensor, leaf: Array | ShapeDtypeStruct) -> Array:
        """Read one array, each of its shards alone.

        Raises:
            TorchModuleError: if the shape or the dtype differs.
        """
        if (fused := self.fused.parameter_of(name)) is not None:
            if stored.shape != fused.shape:
                raise TorchModuleError(
                    f"{self.caller}: {fused.name!r} has shape {fused.shape}, and {stored.shape} in the file"
                )
            stored = fused.stored_leaf(name, stored)
        shape = stored.shape
        if shape != tuple(leaf.shape):
            raise TorchModuleError(f"{self.caller}: {name!r} has shape {tuple(leaf.shape)}, and {shape} in the file")
        if leaf.sharding is None:
            return jax.numpy.asarray(self._block(name, stored, leaf, tuple((0, size) for size in shape)))
        devices_of: dict[Bounds, list[Any]] = {}  # replicas of a shard have one block
        for device, index in leaf.sharding.addressable_devices_indices_map(shape).items():
            bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
            devices_of.setdefault(bounds, []).append(device)
        shards = []
        for bounds, devices in devices_of.items():
            block = self._block(name, stored, leaf, bounds)
            shards += [jax.device_put(block, device) for device in devices]
        return jax.make_array_from_single_device_arrays(shape, leaf.sharding, shards)

    def _block(
        self, name: str, stored: StoredTensor, leaf: Array | ShapeDtypeStruct, bounds: Bounds
    ) -> np.ndarray[Any, Any]:
        values = stored.read(bounds)
        if values.dtype != leaf.dtype and not self.cast:
            raise TorchModuleError(
                f"{self.caller}: {name!r} has dtype {leaf.dtype}, and {values.dtype} in the file: pass cast=True, or "
                "parameters of that dtype"
            )
        return values.astype(leaf.dtype, copy=False)


def names_in_file(
    caller: str, params: Mapping[str, Array], rename: Callable[[str], str], fused: FusedProjections
) -> dict[str, tuple[str, ...]]:
    """Return the names in a file to be written, each with the names of its leaves.

    Raises:
        TorchModuleError: if an array has shards in other processes, if a part of a fused parameter is missing, or if
            two parameters have one name.
    """
    if remote := next((name for name, array in params.items() if not array.is_fully_addressable), None):
        raise TorchModuleError(
            f"{caller}: {remote!r} has shards in other processes: save a checkpoint (`shardwise.checkpoints`)"
        )
    leaves_of = {name: fused.leaf_names(name) for name in dict.fromkeys(map(fused.parameter_name, params))}
    if missing := [leaf for leaves in leaves_of.values() for leaf in leaves if leaf not in params]:
        raise TorchModuleError(f"{caller}: {missing[0]!r} is missing, a part of a fused parameter")
    stored = {rename(name): leaves for name, leaves in leaves_of.items()}
    if len(stored) < len(leaves_of):
        raise TorchModuleError(f"{caller}: `rename` returns one name for several parameters")
    return stored

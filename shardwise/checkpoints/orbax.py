"""Read Orbax's checkpoints, with zarr2 or zarr3 arrays, in OCDBT or not. Orbax need not be installed."""

import json
import os
from pathlib import Path
from typing import Any, final

import numpy as np

from shardwise.checkpoints.context import read_context
from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.location import MANIFEST, check_tensorstore, ts
from shardwise.checkpoints.names import check_name, join_keys, nested
from shardwise.checkpoints.save import Save
from shardwise.checkpoints.sources import save_sources
from shardwise.errors import CheckpointError, CorruptCheckpoint

_METADATA = "_METADATA"
_STRINGS = "_strings.json"
_POSITION = 1  # Orbax's type of keys that are positions in a sequence


@final
class OrbaxArray:
    """An array of an Orbax checkpoint, which is read when it is indexed."""

    def __init__(self, name: str, store: Any):
        self._name = name
        self._store = store
        self.shape: tuple[int, ...] = tuple(store.shape)
        self.dtype: np.dtype[Any] = np.dtype(store.dtype.numpy_dtype)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(self._store[index].read().result())
        except Exception as error:
            raise CorruptCheckpoint(f"{self._name}: {error}") from error


def import_orbax(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> Save:
    """Save an Orbax checkpoint as one of ours, with one block in memory at a time.

    Args:
        path: the folder of Orbax's checkpoint, or of one item of it.
        target: where the checkpoint will be.

    Returns:
        The save that is being written.

    Raises:
        CheckpointError: if there is no Orbax checkpoint at `path`.
        CorruptCheckpoint: if it is truncated or not valid.
    """
    return save_sources(target, _leaves(path), {"imported from": str(path)})


def read_orbax(path: str | os.PathLike[str]) -> Any:
    """Read an Orbax checkpoint.

    Args:
        path: the folder of Orbax's checkpoint, or of one item of it.

    Returns:
        Nested dicts and lists of numpy arrays and Python values.

    Raises:
        CheckpointError: if there is no Orbax checkpoint at `path`.
        CorruptCheckpoint: if it is truncated or not valid.
    """
    return nested(
        {
            name: (list(positions), leaf[()] if isinstance(leaf, OrbaxArray) else leaf)
            for name, (positions, leaf) in _leaves(path).items()
        }
    )


def _leaves(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[bool, ...], Any]]:
    """Return the leaves by name, each with whether the keys of its path are positions."""
    check_tensorstore()
    folder = _item_folder(Path(path).absolute())
    metadata = Fields(_read_json(folder / _METADATA), str(folder / _METADATA))
    strings = _read_json(folder / _STRINGS) if (folder / _STRINGS).exists() else {}
    context = read_context()
    leaves: dict[str, tuple[tuple[bool, ...], Any]] = {}
    for text, entry in metadata.mapping("tree_metadata").items():
        fields = Fields(entry, f"{folder}: {text}")
        keys = [Fields(key, fields.where) for key in fields.list("key_metadata")]
        names = [str(key["key"]) for key in keys]
        name = check_name(join_keys(names))
        positions = tuple(key["key_type"] == _POSITION for key in keys)
        kind = Fields(fields["value_metadata"], fields.where).text("value_type")
        stored = ".".join(names)
        if kind == "None":
            leaves[name] = positions, None
        elif kind == "string":
            leaves[name] = positions, strings.get(stored)
        else:
            array = OrbaxArray(f"{folder}: {name!r}", _open(folder, stored, metadata, context))
            leaves[name] = positions, array[()].item() if kind == "scalar" else array
    return leaves


def _item_folder(folder: Path) -> Path:
    """Return the folder with the metadata of arrays: the checkpoint itself, or its only item that has some."""
    if (folder / _METADATA).exists():
        return folder
    items = sorted(item.parent for item in folder.glob(f"*/{_METADATA}"))
    if not items:
        hint = ". It is a checkpoint of Shardwise, which needs no import" if (folder / MANIFEST).is_file() else ""
        raise CheckpointError(f"there is no Orbax checkpoint at {folder}: it has no {_METADATA} file{hint}")
    if len(items) > 1:
        names = ", ".join(item.name for item in items)
        raise CheckpointError(f"{folder} has several items, {names}: pass the folder of one")
    return items[0]


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file} is not JSON: {error}") from None


def _open(folder: Path, name: str, metadata: Fields, context: Any) -> Any:
    if metadata.flag("use_ocdbt") if "use_ocdbt" in metadata else (folder / "manifest.ocdbt").exists():
        kvstore = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "path": f"{name}/"}
    else:
        kvstore = {"driver": "file", "path": f"{folder}/{name}/"}
    driver = "zarr3" if "use_zarr3" in metadata and metadata.flag("use_zarr3") else "zarr"
    spec = {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False}
    try:
        return ts.open(spec, context=context, open=True).result()
    except Exception as error:
        raise CorruptCheckpoint(f"{folder}: {name!r} cannot be opened: {error}") from error

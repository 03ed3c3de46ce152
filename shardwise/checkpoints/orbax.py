"""Read Orbax's checkpoints, with zarr2 or zarr3 arrays, in OCDBT or not. Orbax need not be installed."""

import os
from pathlib import Path
from typing import Any, final

import numpy as np

from shardwise.base.object_store import ts
from shardwise.checkpoints.blocks import storage_error_text
from shardwise.checkpoints.context import read_context
from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.foreign_zarr import ForeignZarr, check_zarr
from shardwise.checkpoints.host_memory import empty_host_array
from shardwise.checkpoints.location import MANIFEST, Folder, check_tensorstore, folder_size
from shardwise.checkpoints.names import check_name, join_keys, nested
from shardwise.checkpoints.save import Save
from shardwise.checkpoints.sources import save_sources
from shardwise.checkpoints.untrusted_json import parse_json
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.runtime.box import box_index, box_of, box_shape, box_text, whole

_METADATA = "_METADATA"
_STRINGS = "_strings.json"
_DATABASE = "manifest.ocdbt"
_LARGEST_METADATA = 1 << 28  # bytes
_LARGEST_DATABASE_MANIFEST = 1 << 26  # bytes
_POSITION = 1  # Orbax's key type for positions in a sequence


@final
class OrbaxArray:
    """An array of an Orbax checkpoint, which is read when it is indexed.

    Args:
        name: its name, for errors.
        store: TensorStore's array.
        keys: TensorStore's key-value store with its chunks.
        zarr: its layout.
        context: TensorStore's context.
    """

    def __init__(self, name: str, store: Any, keys: Any, zarr: ForeignZarr, context: Any):
        self._name, self._store, self._keys, self._zarr, self._context = name, store, keys, zarr, context
        self.shape: tuple[int, ...] = tuple(store.shape)
        self.dtype: np.dtype[Any] = np.dtype(store.dtype.numpy_dtype)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        box = box_of(index) if index else whole(self.shape)
        try:
            self._zarr.check_chunks(self._keys, box, self.dtype.itemsize)
            elements = empty_host_array(box_shape(box), self.dtype, f"{self._name}, {box_text(box)},")
            ts.array(elements, copy=False, context=self._context).write(self._store[box_index(box)]).result()
        except CheckpointError:
            raise
        except Exception as error:
            raise CorruptCheckpoint(f"{self._name}: {storage_error_text(error)}") from error
        return elements


def import_orbax(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> Save:
    """Save an Orbax checkpoint as one of ours, with one block in memory at a time.

    Args:
        path: the folder of Orbax's checkpoint, or of one item of it.
        target: where the checkpoint will be.

    Returns:
        The save that is being written.

    Raises:
        CheckpointError: if there is no Orbax checkpoint at `path`.
        CorruptCheckpoint: if it is truncated or invalid.
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
        CorruptCheckpoint: if it is truncated or invalid.
    """
    return nested(
        {
            name: (list(positions), leaf[()] if isinstance(leaf, OrbaxArray) else leaf)
            for name, (positions, leaf) in _leaves(path).items()
        }
    )


def _leaves(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[bool, ...], Any]]:
    """Return the leaves by name, each with flags for the keys of its path that are positions."""
    check_tensorstore()
    folder = _item_folder(Path(path).absolute())
    _check_files(folder)
    metadata = Fields(_read_json(folder / _METADATA), str(folder / _METADATA))
    strings = Fields(_read_json(folder / _STRINGS) if (folder / _STRINGS).exists() else {}, str(folder / _STRINGS))
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
        if not {"", ".", ".."}.isdisjoint(stored.split("/")):
            raise CorruptCheckpoint(f"{fields.where}: the path {stored!r} leaves the checkpoint's folder")
        if kind == "None":
            leaves[name] = positions, None
        elif kind == "string":
            leaves[name] = positions, strings.text(stored)
        else:
            array = _open(folder, stored, metadata, context, f"{folder}: {name!r}")
            leaves[name] = positions, array[()].item() if kind == "scalar" else array
    return leaves


def _item_folder(folder: Path) -> Path:
    """Return the folder with the metadata of arrays: the checkpoint itself, or its only item that has such metadata."""
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


def _check_files(folder: Path) -> None:
    """Check the files that TensorStore opens.

    Raises:
        CorruptCheckpoint: if there is a FIFO or a device, or if the manifest of a database is too large, because
            TensorStore reads it at once.
    """
    folder_size(folder)
    for file in folder.rglob(_DATABASE):
        if file.is_file() and file.stat().st_size > _LARGEST_DATABASE_MANIFEST:
            raise CorruptCheckpoint(f"{file} has more than {_LARGEST_DATABASE_MANIFEST:,} bytes")


def _read_json(file: Path) -> Any:
    content = Folder(file.parent).read(file.name, _LARGEST_METADATA)
    if content is None:
        raise CorruptCheckpoint(f"{file} is missing")
    return parse_json(content, str(file))


def _open(folder: Path, name: str, metadata: Fields, context: Any, where: str) -> OrbaxArray:
    if metadata.flag("use_ocdbt") if "use_ocdbt" in metadata else (folder / _DATABASE).exists():
        kvstore = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "path": f"{name}/"}
    else:
        kvstore = {"driver": "file", "path": f"{folder}/{name}/"}
    is_zarr3 = "use_zarr3" in metadata and metadata.flag("use_zarr3")
    spec = {"driver": "zarr3" if is_zarr3 else "zarr", "kvstore": kvstore, "fill_missing_data_reads": False}
    try:
        keys = ts.KvStore.open(kvstore, context=context).result()
        zarr = check_zarr(keys, is_zarr3, where)
        store = ts.open(spec, context=context, open=True).result()
    except CheckpointError:
        raise
    except Exception as error:
        raise CorruptCheckpoint(f"{where} cannot be opened: {storage_error_text(error)}") from error
    return OrbaxArray(where, store, keys, zarr, context)

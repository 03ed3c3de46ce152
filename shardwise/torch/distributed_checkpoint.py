"""Folders of `torch.distributed.checkpoint`: read shard by shard into sharded arrays, and written from their shards.

A folder has the file `.metadata`, which is pickled, and files `*.distcp`. A tensor is one chunk, or several at their
offsets; a chunk is a section of a file, which has the format of `torch.save`. The metadata is unpickled with a fixed
list of classes, and chunks are mapped into memory: only the values of a shard are read.
"""

import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata as formats
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.serialization import _get_layout

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import TorchModuleError
from shardwise.torch.fused_projections import NOT_FUSED, FusedParameter, FusedProjections
from shardwise.torch.module_state import from_numpy, numpy_dtype
from shardwise.torch.stored_tensors import Bounds, StoredTensor
from shardwise.torch.weight_names import WeightReader, names_in_file

_LOAD, _SAVE = "load_distributed_checkpoint", "save_distributed_checkpoint"
_METADATA = ".metadata"
# The classes and functions of the metadata that PyTorch writes, besides dtypes and paths.
_PERMITTED = {
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(formats, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _StorageInfo,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("torch", "Size"): torch.Size,
}


def load_distributed_checkpoint(
    path: str | PathLike[str],
    like: Mapping[str, Array | ShapeDtypeStruct],
    *,
    rename: Callable[[str], str] = lambda name: name,
    fused: FusedProjections = NOT_FUSED,
    ignore: str | None = None,
    cast: bool = False,
) -> dict[str, Array]:
    """Read weights of a folder of `torch.distributed.checkpoint` into sharded arrays.

    Each shard is read alone, also where it is in several chunks, or a part of one: no process holds a whole tensor that
    is sharded. Names of nested state dicts are joined by dots, as PyTorch does. Values that are not tensors, such as
    the number of a step, are not read.

    Args:
        path: the folder.
        like: the parameters by name: arrays, or ShapeDtypeStructs with shardings. `functional` of a module on the
            `meta` device returns such types. Without a sharding, an array is on the default device.
        rename: returns the name in the folder of a parameter's name, such as one with the prefix `model.`.
        fused: the fused projections of a function whose parts are stored apart: `function.fused`.
        ignore: a regular expression for names of tensors that are not parameters, and are not read, such as those of
            an optimizer and the further names of tied parameters.
        cast: whether dtypes may differ. Values then have the dtype of `like`.

    Returns:
        Arrays with the names, shapes, dtypes and shardings of `like`.

    Raises:
        FileNotFoundError: if there is no such folder, or if it lacks a file.
        TorchModuleError: if the folder is damaged, lacks a parameter or has others, or if a shape or a dtype differs.
    """
    reader = WeightReader(_LOAD, path, rename, fused, ignore, cast)
    folder = _Folder(Path(path))
    tensors = {name: entry for name, entry in folder.entries.items() if entry is not None}
    names = reader.check_names(like, tensors, folder.entries.keys() - tensors.keys())
    return {
        name: reader.read(name, folder.stored_tensor(stored, tensors[stored]), like[name])
        for name, stored in names.items()
    }


@final
@dataclass(frozen=True)
class _StoredChunk:
    """A block of a tensor, and the section of the file that has it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@final
@dataclass(frozen=True)
class _StoredEntry:
    """A tensor of a folder."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[_StoredChunk, ...]


@final
class _Folder:
    """The tensors of a folder, by name.

    Attributes:
        entries: the tensors, and None for values that are not tensors.
    """

    def __init__(self, path: Path):
        self._path = path
        self._maps: dict[Path, np.ndarray[Any, Any]] = {}
        metadata = _read_metadata(path / _METADATA)
        try:
            self.entries = {str(name): self._entry(name, metadata) for name in metadata.state_dict_metadata}
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise TorchModuleError(
                f"{_LOAD}: {path / _METADATA} is not the metadata of a checkpoint: {error!r}"
            ) from None

    def _entry(self, name: str, metadata: Any) -> _StoredEntry | None:
        entry = metadata.state_dict_metadata[name]
        if not isinstance(entry, formats.TensorStorageMetadata):
            return None
        chunks = []
        for chunk in entry.chunks:
            section = (metadata.storage_data or {}).get(formats.MetadataIndex(name, chunk.offsets))
            if section is None:
                raise TorchModuleError(f"{_LOAD}: the metadata of {self._path} does not say where {name!r} is")
            if getattr(section, "transform_descriptors", None):
                raise TorchModuleError(
                    f"{_LOAD}: {name!r} in {self._path} is encoded with {section.transform_descriptors}, which is not "
                    "supported: save it without extensions"
                )
            offsets, sizes = tuple(map(int, chunk.offsets)), tuple(map(int, chunk.sizes))
            if len(offsets) != len(sizes) or len(sizes) != len(entry.size):
                raise ValueError(f"the chunks of {name!r} have another rank than the tensor")
            file = Path(section.relative_path).name  # a file of this folder, whatever the metadata says
            chunks.append(_StoredChunk(offsets, sizes, file, int(section.offset), int(section.length)))
        if not isinstance(entry.properties.dtype, torch.dtype):
            raise TypeError(f"{name!r} has no dtype")
        return _StoredEntry(tuple(map(int, entry.size)), entry.properties.dtype, tuple(chunks))

    def stored_tensor(self, name: str, entry: _StoredEntry) -> StoredTensor:
        """Return a tensor whose blocks are copied from its chunks."""
        dtype = numpy_dtype(_LOAD, name, entry.dtype)
        views: dict[_StoredChunk, np.ndarray[Any, Any]] = {}

        def read(bounds: Bounds) -> np.ndarray[Any, Any]:
            block = np.empty([stop - start for start, stop in bounds], dtype)
            copied = 0
            for chunk in entry.chunks:
                ends = [offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=True)]
                both = [(max(a, o), min(b, e)) for (a, b), o, e in zip(bounds, chunk.offsets, ends, strict=True)]
                if any(start >= stop for start, stop in both):
                    continue
                if chunk not in views:
                    views[chunk] = self._view(name, chunk, dtype)
                source = views[chunk][_shifted(both, chunk.offsets)]
                block[_shifted(both, [start for start, _ in bounds])] = source
                copied += source.size
            if copied != block.size:
                raise TorchModuleError(
                    f"{_LOAD}: the chunks of {name!r} in {self._path} have {copied} of the {block.size} values of the "
                    f"block {bounds}: the folder is not complete"
                )
            return block

        return StoredTensor(entry.shape, read)

    def _view(self, name: str, chunk: _StoredChunk, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return the values of a chunk in its file."""
        file = self._path / chunk.file
        try:
            with file.open("rb") as opened, FakeTensorMode():
                # Under FakeTensorMode, storages have no values, but the offset of these in the file.
                tensor = torch.load(_Section(opened, chunk.start, chunk.length), weights_only=True)
            start = chunk.start + tensor.untyped_storage()._checkpoint_offset
            if (tuple(tensor.shape), numpy_dtype(_LOAD, name, tensor.dtype)) != (chunk.sizes, dtype):
                raise ValueError(
                    f"a chunk is {tuple(tensor.shape)} of {tensor.dtype}, and {chunk.sizes} in the metadata"
                )
            return np.ndarray(
                chunk.sizes,
                dtype,
                self._map_file(file),
                start + tensor.storage_offset() * dtype.itemsize,
                [stride * dtype.itemsize for stride in tensor.stride()],
            )
        except FileNotFoundError:
            raise FileNotFoundError(f"{_LOAD}: there is no {file}, which the metadata names") from None
        except TorchModuleError:
            raise
        except Exception as error:  # a damaged pickle may raise any error
            raise TorchModuleError(f"{_LOAD}: {name!r} in {file} is damaged: {error}") from None

    def _map_file(self, file: Path) -> np.ndarray[Any, Any]:
        if file not in self._maps:
            self._maps[file] = np.memmap(file, mode="r")
        return self._maps[file]


def _shifted(bounds: Iterable[tuple[int, int]], origin: Iterable[int]) -> tuple[slice, ...]:
    """Return bounds relative to an origin, as an index."""
    return tuple(slice(start - o, stop - o) for (start, stop), o in zip(bounds, origin, strict=True))


@final
class _Section(io.RawIOBase):
    """A section of a file, as a file."""

    def __init__(self, file: BinaryIO, offset: int, length: int):
        self._file, self._offset, self._length, self._position = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._position))
        self._file.seek(self._offset + self._position)
        values = self._file.read(count)
        buffer[: len(values)] = values
        self._position += len(values)
        return len(values)


def _read_metadata(file: Path) -> Any:
    """Read the metadata of a folder."""
    try:
        with file.open("rb") as opened:
            metadata = _MetadataUnpickler(opened).load()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{_LOAD}: there is no {file}: a folder of torch.distributed.checkpoint has one"
        ) from None
    except TorchModuleError:
        raise
    except Exception as error:  # a damaged pickle may raise any error
        raise TorchModuleError(f"{_LOAD}: {file} is not the metadata of a checkpoint: {error!r}") from None
    if not isinstance(metadata, formats.Metadata):
        raise TorchModuleError(f"{_LOAD}: {file} is not the metadata of a checkpoint: it is {type(metadata).__name__}")
    return metadata


@final
class _MetadataUnpickler(pickle.Unpickler):
    """Unpickles the classes of the metadata only: a pickle may call any function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PERMITTED:
            return _PERMITTED[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in ("pathlib", "pathlib._local") and name.endswith("Path"):
            return PurePosixPath  # the folder into which the checkpoint was written
        raise TorchModuleError(f"{_LOAD}: the metadata names {module}.{name}, which a checkpoint does not need")


def save_distributed_checkpoint(
    path: str | PathLike[str],
    params: Mapping[str, Array],
    *,
    rename: Callable[[str], str] = lambda name: name,
    fused: FusedProjections = NOT_FUSED,
) -> None:
    """Write weights to a folder that `torch.distributed.checkpoint.load` reads.

    Each shard is a chunk, so PyTorch can read them on any number of ranks. All values must be addressable: in several
    processes, save a checkpoint instead. Of each array, one shard at a time is in host memory.

    Args:
        path: the folder, which is created. A checkpoint that it has is replaced.
        params: the arrays by name.
        rename: returns the name in the folder of a parameter's name, such as one with the prefix `model.`.
        fused: the fused projections of a function whose parts are stored apart: `function.fused`.

    Raises:
        TorchModuleError: if an array has shards in other processes, if a part of a fused parameter is missing, or if
            two parameters have one name.
        OSError: if a file cannot be written.
    """
    leaves_of = names_in_file(_SAVE, params, rename, fused)
    tensors = {}
    for name, leaves in leaves_of.items():
        parameter = fused.parameter_of(leaves[0])
        shape = tuple(params[leaves[0]].shape) if parameter is None else parameter.shape
        tensors[name] = _WrittenTensor(shape, [c for leaf in leaves for c in _chunks(leaf, params[leaf], parameter)])
    planner = _ShardPlanner(tensors)
    with warnings.catch_warnings():
        # PyTorch warns that no process group is used, and that a checkpoint is replaced.
        warnings.simplefilter("ignore", UserWarning)
        # Without copies ahead: those need streams, which torchax's device module, registered with PyTorch, lacks.
        writer = checkpoint.FileSystemWriter(Path(path), per_thread_copy_ahead=0)
        checkpoint.save({}, storage_writer=writer, planner=planner, no_dist=True)


@final
@dataclass(frozen=True)
class _WrittenChunk:
    """A block of a tensor to be written: a shard, or an element along the parts of a shard.

    Attributes:
        offsets: its position in the tensor.
        shape: its shape.
        shard: the shard.
        index: its index in the shard.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    shard: Array
    index: tuple[slice | int, ...]


@final
@dataclass(frozen=True)
class _WrittenTensor:
    """A tensor to be written."""

    shape: tuple[int, ...]
    chunks: list[_WrittenChunk]


def _chunks(leaf: str, array: Array, parameter: FusedParameter | None) -> Iterator[_WrittenChunk]:
    """Yield the blocks of a tensor that the shards of a leaf have, each shard once."""
    starts = set()
    for shard in array.addressable_shards:
        start = tuple(part.indices(size)[0] for part, size in zip(shard.index, array.shape, strict=True))
        if start in starts or (array.size and not shard.data.size):
            continue
        starts.add(start)
        if parameter is None:
            yield _WrittenChunk(start, tuple(shard.data.shape), shard.data, ())
        else:
            for offsets, index, shape in parameter.chunks(leaf, start, shard.data):
                yield _WrittenChunk(offsets, shape, shard.data, index)


@final
class _ShardPlanner(checkpoint.SavePlanner):  # type: ignore[misc]  # mypy does not follow PyTorch
    """Plans the chunks of arrays."""

    def __init__(self, tensors: Mapping[str, _WrittenTensor]):
        self._tensors = tensors

    def set_up_planner(self, state_dict: object, storage_meta: object = None, is_coordinator: bool = False) -> None:
        pass  # the arrays are the state

    def create_local_plan(self) -> checkpoint.SavePlan:
        items = []
        for name, tensor in self._tensors.items():
            for index, chunk in enumerate(tensor.chunks):
                data = TensorWriteData(
                    checkpoint.ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.shape)),
                    formats.TensorProperties(dtype=from_numpy(np.empty(0, chunk.shard.dtype)).dtype),
                    torch.Size(tensor.shape),
                )
                position = formats.MetadataIndex(name, chunk.offsets, index)
                items.append(WriteItem(position, WriteItemType.SHARD, tensor_data=data))
        return checkpoint.SavePlan(items, planner_data={name: (name,) for name in self._tensors})

    def create_global_plan(self, all_plans: Any) -> tuple[Any, checkpoint.Metadata]:
        plans, metadata = create_default_global_save_plan(all_plans)
        metadata.planner_data = all_plans[0].planner_data
        return plans, metadata

    def finish_plan(self, new_plan: Any) -> Any:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        chunk = self._tensors[write_item.index.fqn].chunks[write_item.index.index]
        return from_numpy(np.array(np.asarray(chunk.shard)[chunk.index]))

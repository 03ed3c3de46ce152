"""Read arrays of a checkpoint, with bounded host memory."""

import math
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import numpy as np

from shardwise.base.object_store import ts
from shardwise.checkpoints.blocks import open_blocks, pack_blocks, read_shape, storage_error_text, stored_dtype
from shardwise.checkpoints.context import read_context
from shardwise.checkpoints.file_checksums import chunk_range, largest_file
from shardwise.checkpoints.host_memory import empty_host_array
from shardwise.checkpoints.location import MANIFEST, Folder, Location, location_of
from shardwise.checkpoints.manifest import LARGEST_MANIFEST, ArrayLeaf, Chunked, Manifest, Part, Shape, file_grid
from shardwise.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint
from shardwise.runtime.box import Box, box_index, box_shape, box_size, box_text, relative, split_box, whole

_PACK_WINDOW = 1 << 24  # bytes of a pack that are read at a time
_READS_IN_FLIGHT = 8
_LARGEST_ZARR_FILE = 1 << 16  # bytes of zarr's metadata
_ORBAX_FILES = ("_METADATA", "_CHECKPOINT_METADATA")

HostArray = np.ndarray[Any, Any]


@final
class Reader:
    """A committed checkpoint, open for reading.

    Args:
        path: the folder or URL.

    Attributes:
        path: the path as a string.
        location: where its files are.
        manifest: its manifest.
        large: the names of arrays that have their own folders.
        small: the names of arrays in packs.

    Raises:
        CheckpointNotFound: if there is no checkpoint at `path`.
        CorruptCheckpoint: if its manifest is invalid, or if files are missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        location = location_of(path)
        self.path = str(location)
        self.location, self.manifest = open_manifest(location)
        self._check_size()
        self._context = read_context()
        self._folder, self._store = "", None  # the last opened zarr3 array
        arrays = self.manifest.arrays.items()
        self.large = [name for name, leaf in arrays if isinstance(leaf.storage, Chunked)]
        self.small = [name for name, leaf in arrays if not isinstance(leaf.storage, Chunked)]

    def _check_size(self) -> None:
        """Raise CorruptCheckpoint if there are fewer files or bytes than the arrays need."""
        if (size := self.location.size()) is None:
            return
        if size.nbytes < self.manifest.nbytes:
            raise CorruptCheckpoint(
                f"{self.path}: the arrays have {self.manifest.nbytes:,} bytes, but the files have only "
                f"{size.nbytes:,}: files are missing or truncated"
            )
        storages = [(leaf.shape, leaf.storage) for leaf in self.manifest.arrays.values()]
        files = sum(
            math.prod(file_grid(shape, each.file_shape)) for shape, each in storages if isinstance(each, Chunked)
        )
        if size.files < files:
            raise CorruptCheckpoint(
                f"{self.path}: the large arrays have {files:,} files, but there are only {size.files:,}: files are "
                "missing"
            )
        # TensorStore reads a file at once, and aborts the process if the file is larger than the memory.
        packs = [(pack_blocks(index, nbytes), 1) for index, nbytes in enumerate(self.manifest.packs)]
        arrays = [(leaf.storage, leaf.dtype.itemsize) for leaf in self.manifest.arrays.values()]
        sizes = [largest_file(each, itemsize) for each, itemsize in [*packs, *arrays] if isinstance(each, Chunked)]
        if size.largest > (limit := max([*sizes, _LARGEST_ZARR_FILE])):
            raise CorruptCheckpoint(
                f"{self.path}: a file has {size.largest:,} bytes, more than the {limit:,} that a file of this "
                "checkpoint may have"
            )

    def boxes(self, name: str) -> list[Box]:
        """Return the boxes in which to read an array: one per file of a large array, or all of a small one."""
        leaf = self.manifest.arrays[name]
        if isinstance(leaf.storage, Chunked):
            return list(split_box(whole(leaf.shape), leaf.storage.file_shape))
        return [whole(leaf.shape)]

    def batches(self, names: Iterable[str], limit: int = 1 << 27) -> Iterator[list[str]]:
        """Group small arrays to be read together, in order, into batches of at most `limit` bytes or a single array."""
        batch: list[str] = []
        nbytes = 0
        for name in names:
            nbytes += self.manifest.arrays[name].nbytes
            if batch and nbytes > limit:
                yield batch
                batch, nbytes = [], self.manifest.arrays[name].nbytes
            batch.append(name)
        if batch:
            yield batch

    def read_boxes(
        self,
        boxes: Iterable[tuple[str, Box]],
        memory_limit: int = 1 << 31,
        allocate: Callable[[str, Box], HostArray] | None = None,
    ) -> Iterator[tuple[str, Box, HostArray]]:
        """Read boxes of large arrays, in order.

        Args:
            boxes: names of arrays, and boxes of them.
            memory_limit: the bytes of host memory that concurrent reads may use. A larger box is read alone.
            allocate: returns an array of the shape and dtype of a named box, into which the elements are read; by
                default, a new array.

        Returns:
            An iterator of the names, the indices and the elements.
        """
        # Bytes that are being read are in memory twice: in TensorStore's buffers and in the arrays.
        limit = min(memory_limit // 2, _READS_IN_FLIGHT * self.location.read_bytes)
        reads: deque[tuple[str, Box, int, Any]] = deque()  # reads in flight
        started: deque[tuple[int, int, str, Box, HostArray]] = deque()  # boxes, with their last read and their bytes
        count = in_flight = in_arrays = 0

        def finish_read() -> Iterator[tuple[str, Box, HostArray]]:
            """Wait for the first read in flight, and return the boxes that it completes."""
            nonlocal in_flight, in_arrays
            if reads:
                in_flight -= self._finish(*reads.popleft())
            while started and started[0][0] <= count - len(reads):
                _, nbytes, name, box, data = started.popleft()
                in_arrays -= nbytes
                self._check_files(name, box)
                yield name, box, data

        for name, box in boxes:
            leaf = self.manifest.arrays[name]
            assert isinstance(leaf.storage, Chunked)
            nbytes = box_size(box) * leaf.dtype.itemsize
            while started and in_arrays + nbytes > memory_limit:
                yield from finish_read()
            in_arrays += nbytes
            data = allocate(name, box) if allocate else self.empty(name, box)
            store = self._open(leaf.shape, leaf.dtype, leaf.storage)
            for part in split_box(
                box, read_shape(leaf.dtype.itemsize, leaf.storage, min(limit, self.location.read_bytes))
            ):
                part_bytes = box_size(part) * leaf.dtype.itemsize
                while reads and in_flight + part_bytes > limit:
                    yield from finish_read()
                into = data[box_index(relative(part, box))].view(stored_dtype(leaf.dtype))
                target = ts.array(into, copy=False, context=self._context)
                reads.append((name, part, part_bytes, target.write(store[box_index(part)])))
                in_flight += part_bytes
                count += 1
            started.append((count, nbytes, name, box, data))
        while started:
            yield from finish_read()

    def empty(self, name: str, box: Box) -> HostArray:
        """Return host memory for a box of an array.

        Raises:
            CheckpointError: if it does not fit in memory.
        """
        what = f"{self.path}: {name!r}, {box_text(box)},"
        return empty_host_array(box_shape(box), self.manifest.arrays[name].dtype, what)

    def read_box(self, name: str, box: Box) -> HostArray:
        """Read one box of a large or small array."""
        if isinstance(self.manifest.arrays[name].storage, Chunked):
            ((_, _, data),) = self.read_boxes([(name, box)])
            return data
        ((_, data),) = self.read_small([name])
        return data[box_index(box)]

    def _open(self, shape: Shape, dtype: np.dtype[Any], blocks: Chunked) -> Any:
        """Return a zarr3 array. The last one stays open, because the boxes of an array are read consecutively."""
        if self._folder != blocks.folder:
            self._store = open_blocks(self.location, shape, dtype, blocks, self._context).result()
            self._folder = blocks.folder
        return self._store

    def _finish(self, name: str, part: Box, nbytes: int, read: Any) -> int:
        """Wait until a part of an array is read, and return its bytes."""
        try:
            read.result()
        except Exception as error:
            raise self._corrupt(f"{name!r}, {box_text(part)}", error) from error
        return nbytes

    def _check_files(self, name: str, box: Box) -> None:
        """Check that the files of a box of a large array belong to the array, after its elements were read.

        Raises:
            CorruptCheckpoint: if the checksums of their chunks differ from the manifest.
        """
        leaf = self.manifest.arrays[name]
        assert isinstance(leaf.storage, Chunked)
        if leaf.storage.checksums is None:
            return
        for part in split_box(box, leaf.storage.file_shape):
            chunks = chunk_range(leaf.shape, leaf.storage, part)
            content = chunks.read(self.location, leaf.storage, leaf.dtype.itemsize)
            if content != chunks.recorded(leaf.storage):
                raise CorruptCheckpoint(
                    f"{self.path}: {name!r}, {box_text(part)}: the file {chunks.file} does not belong there. Its "
                    "checksums are not those in the manifest: it is the file of another shard, array or checkpoint"
                )

    def read_small(self, names: Iterable[str]) -> Iterator[tuple[str, HostArray]]:
        """Read small arrays, in the order in which they become complete.

        Returns:
            An iterator of the names and the elements.
        """
        wanted = {name: self.manifest.arrays[name] for name in names}
        missing = {name: len(leaf.storage) for name, leaf in wanted.items() if isinstance(leaf.storage, tuple)}
        arrays: dict[str, HostArray] = {}
        for name, count in missing.items():
            if not count:
                yield name, self.empty(name, whole(wanted[name].shape))
        for name, part, content in self._parts(wanted):
            leaf = wanted[name]
            if zlib.crc32(content) != part.crc32:
                raise CorruptCheckpoint(f"{self.path}: {name!r}, {box_text(part.box)}, does not match its checksum")
            if name not in arrays:
                arrays[name] = self.empty(name, whole(leaf.shape))
            elements = np.frombuffer(content, stored_dtype(leaf.dtype)).view(leaf.dtype)
            arrays[name][box_index(part.box)] = elements.reshape(box_shape(part.box))
            missing[name] -= 1
            if not missing[name]:
                yield name, arrays.pop(name)

    def _parts(self, leaves: Mapping[str, ArrayLeaf]) -> Iterator[tuple[str, Part, bytes]]:
        """Read the parts of packed arrays, in the order of the packs."""
        parts = [
            (part, name) for name, leaf in leaves.items() if isinstance(leaf.storage, tuple) for part in leaf.storage
        ]
        ordered = deque(sorted(parts, key=lambda each: (each[0].process, each[0].offset)))
        while ordered:
            window = [ordered.popleft()]
            first = window[0][0]
            while ordered and ordered[0][0].process == first.process:
                end = ordered[0][0].offset + self._part_bytes(leaves, ordered[0])
                if end > first.offset + _PACK_WINDOW:
                    break
                window.append(ordered.popleft())
            end = max(part.offset + self._part_bytes(leaves, (part, name)) for part, name in window)
            content = self._read_pack(first.process, first.offset, end, [name for _, name in window])
            for part, name in window:
                start = part.offset - first.offset
                yield name, part, content[start : start + self._part_bytes(leaves, (part, name))]

    @staticmethod
    def _part_bytes(leaves: Mapping[str, ArrayLeaf], entry: tuple[Part, str]) -> int:
        part, name = entry
        return box_size(part.box) * leaves[name].dtype.itemsize

    def _read_pack(self, process: int, start: int, stop: int, names: list[str]) -> bytes:
        """Read the bytes of a process's pack that hold these arrays."""
        if start == stop:
            return b""
        nbytes = self.manifest.packs[process]
        try:
            store = self._open((nbytes,), np.dtype(np.uint8), pack_blocks(process, nbytes))
            return bytes(store[start:stop].read().result().data)
        except Exception as error:
            shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise self._corrupt(f"the small arrays {shown}, in packs/{process}", error) from error

    def _corrupt(self, what: str, error: Exception) -> CheckpointError:
        kind = CheckpointError if "PERMISSION_DENIED" in str(error) else CorruptCheckpoint
        return kind(f"{self.path}: {what}, cannot be read: {storage_error_text(error)}")


def open_manifest(location: Location) -> tuple[Location, Manifest]:
    """Return the location of a committed checkpoint's files, and its manifest.

    Raises:
        CheckpointNotFound: if there is no checkpoint.
        CorruptCheckpoint: if the manifest is invalid.
    """
    data = location.data()
    content = None if data is None else data.read(MANIFEST, LARGEST_MANIFEST)
    if data is None or content is None:
        near = location.children()
        hint = f" It has the checkpoints {', '.join(near[-5:])}." if near else ""
        if isinstance(location, Folder) and any((location.path / name).is_file() for name in _ORBAX_FILES):
            hint = " There is an Orbax checkpoint: import it with `shardwise checkpoint import` or `import_orbax`."
        raise CheckpointNotFound(f"there is no checkpoint at {location}.{hint}")
    return data, Manifest.decode(content, f"{location}/{MANIFEST}")

"""The command `shardwise checkpoint`: list, inspect, verify, compare, export and import checkpoints.

`launch/checkpoint_parser.py` has its arguments.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import sleep

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from shardwise.checkpoints.location import location_of
from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Leaf
from shardwise.checkpoints.orbax import import_orbax
from shardwise.checkpoints.read import HostArray, Reader
from shardwise.checkpoints.safetensors import export_safetensors, import_safetensors
from shardwise.checkpoints.save import Save
from shardwise.checkpoints.verify import verify
from shardwise.errors import CheckpointError, CorruptCheckpoint


def run_checkpoint_command(parsed: Namespace) -> int:
    """Run a subcommand, and return the exit code: 1 if `verify` or `diff` finds something, 2 after an error."""
    commands: dict[str, Callable[[], int]] = {
        "ls": lambda: _list(parsed.path),
        "inspect": lambda: _inspect(parsed.path),
        "verify": lambda: _verify(parsed.paths),
        "diff": lambda: _diff(parsed.first, parsed.second),
        "export": lambda: _export(parsed.path, parsed.file),
        "import": lambda: _import(parsed.sources, parsed.path),
    }
    try:
        return commands[parsed.checkpoint_command]()
    except (CheckpointError, OSError) as error:
        print(f"shardwise checkpoint {parsed.checkpoint_command}: {error}", file=sys.stderr)
        return 2


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def _list(path: str) -> int:
    location = location_of(path)
    table = Table("checkpoint", "saved", "leaves", "bytes", "metadata")
    names = location.children()
    if not names and location.data() is not None:
        raise CheckpointError(f"{location} is itself a checkpoint: use `shardwise checkpoint inspect`")
    if not names:
        raise CheckpointError(f"there is no checkpoint in {location}")
    for name in sorted(names, key=lambda name: (len(name), name)):
        try:
            manifest = Reader(str(location.child(name))).manifest
            table.add_row(
                name, manifest.created, str(len(manifest.leaves)), f"{manifest.nbytes:,}", _short(manifest.metadata)
            )
        except (CheckpointError, OSError) as error:  # others are listed in any case
            kind = "corrupt" if isinstance(error, CorruptCheckpoint) else "not readable"
            table.add_row(name, kind, "", "", str(error))
    _console().print(table)
    return 0


def _inspect(path: str) -> int:
    reader = Reader(path)
    manifest = reader.manifest
    table = Table("leaf", "type", "bytes", "sharding when saved", "files")
    for name, leaf in manifest.leaves.items():
        size = f"{leaf.nbytes:,}" if isinstance(leaf, ArrayLeaf) else ""
        sharding = leaf.sharding if isinstance(leaf, ArrayLeaf) else ""
        table.add_row(_printable(name), str(leaf), size, sharding, _files(leaf))
    console = _console()
    console.print(
        f"{reader.path}: saved {manifest.created}, {manifest.nbytes:,} bytes in {len(manifest.arrays)} arrays"
    )
    console.print(", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    if manifest.metadata:
        console.print(f"metadata: {dict(manifest.metadata)}")
    console.print(table)
    return 0


def _files(leaf: Leaf) -> str:
    if not isinstance(leaf, ArrayLeaf):
        return "manifest.json"
    if isinstance(leaf.storage, Chunked):
        return leaf.storage.folder
    return ", ".join(sorted({f"packs/{part.process}" for part in leaf.storage}))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    )


def _verify(paths: Sequence[str]) -> int:
    code = 0
    for path in paths:
        try:
            print(f"{path}: {_verify_one(path):,} bytes, every checksum matches")
        except CheckpointError as error:
            print(error, file=sys.stderr)
            code = max(code, 1 if isinstance(error, CorruptCheckpoint) else 2)
    return code


def _verify_one(path: str) -> int:
    with _progress() as progress:
        task = progress.add_task(path, total=None)
        return verify(path, lambda done, total: progress.update(task, completed=done, total=total))


def _diff(first: str, second: str) -> int:
    readers = Reader(first), Reader(second)
    before, after = (reader.manifest.leaves for reader in readers)
    common = [name for name in before if name in after]
    equal_types = [name for name in common if str(before[name]) == str(after[name])]
    changes = {name: f"{before[name]}, then {after[name]}" for name in common if str(before[name]) != str(after[name])}
    changes |= _changed_elements(readers, [name for name in equal_types if isinstance(before[name], ArrayLeaf)])
    differences = [f"- {_printable(name)}: {before[name]}" for name in before if name not in after]
    differences += [f"+ {_printable(name)}: {after[name]}" for name in after if name not in before]
    differences += [f"! {_printable(name)}: {changes[name]}" for name in common if name in changes]
    for difference in differences:
        print(difference)
    if not differences:
        print(f"the {len(before)} leaves are equal, bit for bit")
    return 1 if differences else 0


def _changed_elements(readers: tuple[Reader, Reader], names: Sequence[str]) -> dict[str, str]:
    """Return how many elements differ, for each array that has the same type in both checkpoints and differs."""
    small = set(readers[0].small) & set(readers[1].small)
    changes: dict[str, str] = {}
    for batch in readers[0].batches(name for name in names if name in small):
        arrays = [dict(reader.read_small(batch)) for reader in readers]
        changes |= {name: change for name in batch if (change := _change([[each[name] for each in arrays]]))}
    for name in names:
        if name not in small:
            boxes = readers[0].boxes(name)
            if change := _change([reader.read_box(name, box) for reader in readers] for box in boxes):
                changes[name] = change
    return changes


def _change(pairs: Iterable[Sequence[HostArray]]) -> str | None:
    """Describe how many elements of an array, given as pairs of blocks, differ; None if none does."""
    different, total, largest, undefined = 0, 0, 0.0, 0
    for pair in pairs:
        blocks = [block.reshape(-1) for block in pair]
        bits = [block.view(np.uint8).reshape(len(block), block.itemsize) for block in blocks]
        unequal = np.any(bits[0] != bits[1], axis=1)
        total += len(unequal)
        different += int(np.sum(unequal))
        values = [block[unequal].astype(np.complex128 if block.dtype.kind == "c" else float) for block in blocks]
        with np.errstate(invalid="ignore"):  # inf - inf
            sizes = np.abs(values[0] - values[1])
        undefined += int(np.sum(np.isnan(sizes)))
        largest = max(largest, float(np.max(sizes[~np.isnan(sizes)], initial=0.0)))
    if not different:
        return None
    text = f"{different:,} of {total:,} elements differ in bits"
    if different > undefined:
        text += f", by at most {largest:.3g}"
    return f"{text}; {undefined:,} of them by NaN" if undefined else text


def _export(path: str, file: str) -> int:
    print(f"{file}: {export_safetensors(path, file):,} bytes")
    return 0


def _import(sources: Sequence[str], path: str) -> int:
    if len(sources) == 1 and Path(sources[0]).is_dir():
        started = import_orbax(sources[0], path)
    else:
        files: list[str | os.PathLike[str]] = list(sources)
        started = import_safetensors(files, path)
    _show(started)
    started.wait()
    print(f"{path}: {started.total_bytes:,} bytes")
    return 0


def _show(started: Save) -> None:
    """Show the progress of a save until it ends."""
    with _progress() as progress:
        task = progress.add_task(started.path, total=started.total_bytes)
        while not started.done():
            progress.update(task, completed=started.written_bytes)
            sleep(0.1)
        progress.update(task, completed=started.written_bytes)


def _printable(name: str) -> str:
    """Return the name of a leaf, quoted and escaped if it is empty or has unprintable characters."""
    return name if name and name.isprintable() else repr(name)


def _short(metadata: object) -> str:
    text = str(metadata)
    return text if len(text) <= 60 else f"{text[:57]}..."

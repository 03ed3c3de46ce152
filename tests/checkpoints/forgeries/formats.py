"""The formats of the campaign: how an original is written, and how a damaged copy of it is read.

Values are compared by a digest, so that a process can read many cases and return little.
"""

import gzip
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise import checkpoints, export
from shardwise.base._jaxlib import compile_text
from shardwise.checkpoints import snapshot
from shardwise.checkpoints.location import Folder
from shardwise.compiler.plan.chip_table import read_chips
from shardwise.compiler.plan.hardware import built_in_chips
from shardwise.data import TokenSource
from shardwise.errors import CheckpointError, DataError, HardwareError, ProfileError, ProgramError, UnsupportedError
from shardwise.explain.calibrate_trace import calibrate_trace
from shardwise.export.file_format import read_exported
from shardwise.launch import postmortem
from shardwise.processes.launch_record import LaunchRecord
from shardwise.runtime import cache_stores, compilation_cache
from shardwise.runtime.binary import Binary

ORBAX = Path(__file__).parent.parent / "orbax"
PROFILE = Path(__file__).parents[2] / "explain" / "recorded" / "h200_attention_at_8192.xplane.pb.gz"
CHIPS = """
[first]
extends = "h200"
memory = 1000000
"""


class Refused(Exception):
    """A cache did not use an entry, so that the program is compiled again."""


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        write: a function that writes an original into a folder.
        read: a function that reads the folder completely and returns the digests of the values, one for each reader.
        error: the type of its errors, or several.
        has_checksums: whether every changed bit of the values is found.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], list[str]]
    error: type[Exception] | tuple[type[Exception], ...]
    has_checksums: bool


def digest(tree) -> str:
    """Return a digest of the structure, types and elements of a pytree."""
    hasher = hashlib.sha256()
    for path, leaf in sw.tree.leaves_with_path(tree, is_leaf=lambda node: node is None):
        hasher.update(f"{sw.tree.keystr(path)} {type(leaf).__name__}".encode())
        if isinstance(leaf, np.ndarray):
            hasher.update(f"{leaf.shape} {leaf.dtype}".encode() + leaf.tobytes())
        else:
            hasher.update(repr(leaf).encode())
    return hasher.hexdigest()


def ours_tree(step):
    rng = np.random.default_rng(step)
    return {
        "large": [rng.random((40, 30), np.float32), rng.random((40, 30), np.float32)],
        "small": {"a": rng.integers(0, 9, 7), "b": rng.random(5, np.float32), "none": None},
    }


def write_ours(folder):
    """Write two steps, so that files can be swapped between them. The first one is read."""
    snapshot.LARGEST_PACKED, Folder.chunk_bytes = 1000, 600
    snapshot.LARGEST_FILE = 2400
    for step in (1, 2):
        checkpoints.save(folder / f"step-{step}", ours_tree(step)).wait()


def read_ours(folder):
    """Restore a checkpoint, and verify it. What `verify` accepts must be restored."""
    try:
        restored = digest(checkpoints.restore(folder / "step-1"))
    except CheckpointError as error:
        try:
            checkpoints.verify(folder / "step-1")
        except CheckpointError:
            raise error from None
        raise AssertionError(f"verify accepts what restore refuses: {error}") from error
    return [restored]


def orbax(name):
    def write(folder):
        shutil.copytree(ORBAX / name, folder / "one")

    def read(folder):
        read = digest(checkpoints.read_orbax(folder / "one"))
        shutil.rmtree(folder / "imported", ignore_errors=True)
        checkpoints.import_orbax(folder / "one", folder / "imported").wait()
        assert digest(checkpoints.restore(folder / "imported")) == read
        return [read]

    return Format(write, read, CheckpointError, has_checksums=False)


def write_safetensors(folder):
    snapshot.LARGEST_PACKED = 1000
    checkpoints.save(folder / "saved", {key: ours_tree(1)["large"][0] + key for key in range(3)}).wait()
    checkpoints.export_safetensors(folder / "saved", folder / "one.safetensors")
    shutil.rmtree(folder / "saved")


def read_safetensors(folder):
    arrays = checkpoints.read_safetensors(folder / "one.safetensors")
    read = digest({name: np.array(array) for name, array in arrays.items()})
    shutil.rmtree(folder / "imported", ignore_errors=True)
    checkpoints.import_safetensors([folder / "one.safetensors"], folder / "imported").wait()
    checkpoints.verify(folder / "imported")
    return [read]


TOKENS = np.arange(3000, dtype=np.uint16) % 500


def read_tokens(suffix):
    def read(folder):
        source = TokenSource(folder / f"tokens{suffix}", 100, dtype=np.uint16)
        return [digest(source.read_batch(np.arange(min(len(source), 100))))]

    return read


_MODULE = """
module @program {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def write_cache(folder):
    compiled = compile_text(_MODULE, sw.devices()[:1], ())
    compilation_cache.write_entry(cache_stores.Folder(folder), "one", Binary(compiled))


def read_cache(folder):
    if compilation_cache._read(cache_stores.Folder(folder), "one", _MODULE, sw.devices()[:1], ()) is None:
        raise Refused
    return ["executable"]


def write_record(folder):
    record = LaunchRecord(folder / "rank0.record", 0, 1, lambda: 7)
    launch = record.launch_recorder("train_step", "0", ["all_reduce at train.py:12"])
    launch(1), launch(2)


def read_launch_record(folder):
    records = postmortem.read_records(folder)
    return [repr([(each.status, each.launches, postmortem.conclude(records)) for each in records])]


def write_export(folder: Path) -> None:
    exported = export.export(sw.jit(lambda x, n: {"a": (x * n, None), "b": [n]}))(np.ones((2, 3), np.float32), 2)
    (folder / "function.bin").write_bytes(exported.serialize(vjp_order=1))


def read_export(folder: Path) -> list[str]:
    try:
        return [repr(function) for function in read_exported((folder / "function.bin").read_bytes())]
    except UnsupportedError as error:  # of another version
        raise ProgramError(str(error)) from error
    except ValueError as error:
        if "is not registered" in str(error):  # a pytree node
            raise ProgramError(str(error)) from error
        raise


def read_profile(folder: Path) -> list[str]:
    try:
        return [repr(calibrate_trace(folder / "step.xplane.pb").chip)]
    except HardwareError as error:  # the name of the device is damaged
        raise ProfileError(str(error)) from error


FORMATS = {
    "shardwise": Format(write_ours, read_ours, CheckpointError, has_checksums=True),
    "orbax-zarr2": orbax("zarr2"),
    "orbax-zarr2-ocdbt": orbax("zarr2_ocdbt"),
    "orbax-zarr3-ocdbt": orbax("zarr3_ocdbt"),
    "safetensors": Format(write_safetensors, read_safetensors, CheckpointError, has_checksums=False),
    "npy": Format(
        lambda folder: np.save(folder / "tokens.npy", TOKENS), read_tokens(".npy"), DataError, has_checksums=False
    ),
    "tokens": Format(
        lambda folder: TOKENS.tofile(folder / "tokens.bin"), read_tokens(".bin"), DataError, has_checksums=False
    ),
    "export": Format(write_export, read_export, ProgramError, has_checksums=False),
    "cache": Format(write_cache, read_cache, Refused, has_checksums=True),
    "record": Format(write_record, read_launch_record, (OSError, ValueError), has_checksums=False),
    "chips": Format(
        lambda folder: (folder / "chips.toml").write_text(CHIPS) and None,
        lambda folder: [repr(sorted(read_chips(folder / "chips.toml", built_in_chips()).items()))],
        HardwareError,
        has_checksums=False,
    ),
    "profile": Format(
        lambda folder: (folder / "step.xplane.pb").write_bytes(gzip.decompress(PROFILE.read_bytes())) and None,
        read_profile,
        ProfileError,
        has_checksums=False,
    ),
}

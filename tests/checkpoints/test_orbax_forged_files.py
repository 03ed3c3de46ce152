"""Forged files of Orbax's format are errors, before anything is allocated, decoded or waited for."""

import json
import os
import shutil

import pytest

from shardwise import checkpoints
from shardwise.checkpoints.names import nested
from shardwise.errors import CheckpointError, CorruptCheckpoint
from tests.checkpoints.forgeries.damage import zstd_bomb
from tests.checkpoints.test_orbax import FOLDER, check


@pytest.fixture
def orbax(tmp_path):
    return shutil.copytree(FOLDER / "zarr2", tmp_path / "orbax")


def forge_array(folder, **fields):
    path = folder / "params.w" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": [1 << 40, 4]}, "has 366,503,875,926 chunks, but 2 keys"),
        ({"shape": [1 << 40], "chunks": [1 << 40]}, "needs .* bytes of memory, and this machine has"),
        ({"shape": [1 << 30, 1 << 30], "chunks": [1 << 30, 1 << 30]}, "has too many elements"),
        ({"shape": [1 << 16, 1 << 16], "chunks": [1, 1]}, "has 4,294,967,296 chunks, but 2 keys"),
        ({"shape": [1] * 40, "chunks": [1] * 40}, "more than 32 dims"),
        ({"chunks": [0, 4]}, "does not fit the shape"),
        ({"shape": [-3, 4]}, "is not a size"),
        ({"compressor": {"id": "blosc"}}, "is not supported: Orbax writes zstd"),
        ({"filters": [{"id": "delta"}]}, "are not supported"),
        ({"chunks": [1, 1], "shape": [3, 4]}, "has 12 chunks, but 2 keys"),
    ],
)
def test_forged_shapes_and_codecs_of_orbax_arrays_are_errors(orbax, fields, message):
    forge_array(orbax, **fields)
    for read in (checkpoints.read_orbax, lambda path: checkpoints.import_orbax(path, path / "imported")):
        with pytest.raises(CheckpointError, match=message) as caught:
            read(orbax)
        assert "'params/w'" in str(caught.value)


def test_a_zstd_bomb_is_not_decoded(orbax):
    (orbax / "params.w" / "0.0").write_bytes(zstd_bomb(20_000))
    with pytest.raises(CorruptCheckpoint, match=r"'params/w': the chunk 0.0 decodes to 2,621,440,000 bytes, but .* 48"):
        checkpoints.read_orbax(orbax)


@pytest.mark.parametrize("name", ["params.w/0.0", "params.w/.zarray", "_METADATA", "_strings.json"])
@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "sparse"])
def test_what_is_not_a_file_of_an_orbax_checkpoint_is_an_error(orbax, name, kind):
    path = orbax / name
    if kind == "sparse":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
        {"fifo": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "directory": os.mkdir}[kind](path)
    with pytest.raises(CheckpointError):
        checkpoints.read_orbax(orbax)


def test_strings_and_paths_of_orbax_are_checked(orbax):
    (orbax / "_strings.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint, match=r"_strings\.json has no 'name'"):
        checkpoints.read_orbax(orbax)
    shutil.copy(FOLDER / "zarr2" / "_strings.json", orbax)
    check(checkpoints.read_orbax(orbax))
    metadata = (orbax / "_METADATA").read_text()
    (orbax / "_METADATA").write_text(metadata.replace('"key": "w"', '"key": "/../../other"'))
    with pytest.raises(CorruptCheckpoint, match="leaves the checkpoint's folder"):
        checkpoints.read_orbax(orbax)


def test_a_key_of_orbax_that_is_not_a_position_is_an_error(orbax):
    metadata = json.loads((orbax / "_METADATA").read_text())
    for key in ("params", "9" * 5000):
        for entry in metadata["tree_metadata"].values():
            entry["key_metadata"][0].update(key=key, key_type=1)
        (orbax / "_METADATA").write_text(json.dumps(metadata))
        with pytest.raises(CheckpointError):
            checkpoints.read_orbax(orbax)
    with pytest.raises(CorruptCheckpoint, match="is not a position in a sequence"):
        nested({"a/b": ([False, True], 1)})
    with pytest.raises(CheckpointError, match="nested too deeply"):
        nested({"/".join("a" * 2000): ([False] * 2000, 1)})

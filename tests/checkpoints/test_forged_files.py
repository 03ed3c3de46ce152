"""Files of other formats that were forged are errors, before anything is allocated, decoded or waited for."""

import json
import os
import shutil

import numpy as np
import pytest

from shardwise import checkpoints
from shardwise.checkpoints import host_memory, snapshot
from shardwise.checkpoints.names import nested
from shardwise.checkpoints.untrusted_json import parse_json
from shardwise.checkpoints.zstd_frames import largest_decoded_size
from shardwise.compiler.plan.chip_table import read_chips
from shardwise.errors import CheckpointError, CorruptCheckpoint, HardwareError
from shardwise.runtime import compilation_cache
from shardwise.runtime.box import block_shape
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


def test_bounds_of_zstd_frames():
    frame = (FOLDER / "zarr2" / "params.w" / "0.0").read_bytes()
    assert 48 <= largest_decoded_size(frame) <= 1 << 17
    assert largest_decoded_size(frame + frame) == 2 * largest_decoded_size(frame)
    assert largest_decoded_size(b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab") == 0  # a frame to be skipped
    for damaged in (frame[:-1], frame[:5], b"\x00" + frame, frame + b"x"):
        with pytest.raises(ValueError, match="zstd"):
            largest_decoded_size(damaged)


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


@pytest.fixture
def tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
    arrays = {"a": np.arange(60.0).reshape(6, 10), "b": np.arange(3), "e": np.zeros((0, 2))}
    checkpoints.save(tmp_path / "saved", arrays).wait()
    checkpoints.export_safetensors(tmp_path / "saved", tmp_path / "one.safetensors")
    return tmp_path / "one.safetensors"


def write_tensors(path, text, data=b""):
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + data)


def entry(start, stop, shape=None):
    return {"dtype": "U8", "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": entry(0, 4), "b": entry(2, 6)}, 6, "the arrays 'a' and 'b' overlap"),
        ({"a": entry(0, 4), "b": entry(0, 4)}, 4, "the arrays 'a' and 'b' overlap"),
        ({"a": entry(0, 4), "b": entry(6, 8)}, 8, "2 bytes before 'b' belong to no array"),
        ({"a": entry(2, 4)}, 4, "2 bytes before 'a' belong to no array"),
        ({"a": entry(0, 4)}, 9, "5 bytes at the end belong to no array"),
        ({}, 3, "3 bytes at the end belong to no array"),
        ({"a": entry(0, 4), "e": entry(9, 9)}, 4, "do not fit an array of 0 bytes in the file"),
        ({"a": entry(0, 0, [0, 1 << 61])}, 0, None),
        ({"a": entry(0, 0, [0] + [1 << 61] * 2)}, 0, "has too many dims or elements"),
        ({"a": entry(0, 1, [1] * 65)}, 1, "has too many dims or elements"),
        ({"a": entry(0, 4, [1 << 40])}, 4, "do not fit an array of 1,099,511,627,776 bytes"),
        ({"a": {**entry(0, 4), "data_offsets": [4, 0]}}, 4, "do not fit"),
        ({"a": {**entry(0, 4), "data_offsets": []}}, 4, "do not fit"),
        ({"a": entry(0, 4), "__metadata__": {"x": 1}}, 4, "has a value that is not a string"),
    ],
)
def test_safetensors_files_hold_every_byte_once(tmp_path, header, size, message):
    path = tmp_path / "one.safetensors"
    write_tensors(path, json.dumps(header), bytes(size))
    for read in (
        checkpoints.read_safetensors,
        lambda path: checkpoints.import_safetensors([path], tmp_path / "x").wait(),
    ):
        if message is None:
            read(path)
            continue
        with pytest.raises(CorruptCheckpoint, match=message):
            read(path)


def test_duplicate_keys_are_errors(tmp_path):
    path = tmp_path / "one.safetensors"
    one = json.dumps(entry(0, 4))
    write_tensors(path, f'{{"a": {one}, "a": {one}}}', bytes(4))
    with pytest.raises(CorruptCheckpoint, match="the header is not JSON: an object has the key 'a' twice"):
        checkpoints.read_safetensors(path)


def test_safetensors_that_shrink_while_they_are_imported_are_errors(tensors, tmp_path, monkeypatch):
    checkpoints.import_safetensors([tensors], tmp_path / "same").wait()
    assert checkpoints.restore(tmp_path / "same")["a"].tolist() == np.arange(60.0).reshape(6, 10).tolist()
    read = checkpoints.safetensors._read_header
    monkeypatch.setattr(
        checkpoints.safetensors,
        "_read_header",
        lambda file: (read(file), os.truncate(file, file.stat().st_size - 300))[0],
    )
    with pytest.raises(CheckpointError, match=r"one\.safetensors: .* the file shrank while it was read"):
        checkpoints.import_safetensors([tensors], tmp_path / "imported").wait()


@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 40, 100_000_001])
def test_absurd_lengths_of_headers_are_errors(tmp_path, length):
    path = tmp_path / "one.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    os.truncate(path, 1 << 41)
    with pytest.raises(CorruptCheckpoint, match="its header does not fit"):
        checkpoints.read_safetensors(path)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'{"a": 1, "a": 2}', b"\xff", b""])
def test_hostile_json_is_an_error(text):
    with pytest.raises(CorruptCheckpoint, match="the file is not JSON"):
        parse_json(text, "the file")


def test_json_of_too_many_values_is_not_parsed(monkeypatch):
    monkeypatch.setattr("shardwise.checkpoints.untrusted_json._MOST_VALUES", 100)
    assert parse_json(b"[" + b"{}," * 49 + b"{}]", "the file") == [{}] * 50
    with pytest.raises(CorruptCheckpoint, match="has more than 100 JSON values"):
        parse_json(b"[" + b"{}," * 60 + b"{}]", "the file")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
    checkpoints.save(tmp_path / "one", {"large": np.arange(600.0), "small": np.arange(3)}).wait()
    return tmp_path / "one"


@pytest.mark.parametrize("name", ["manifest.json", "arrays/0/c/0", "arrays/0/zarr.json", "packs/0/c/0"])
@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "sparse"])
def test_what_is_not_a_file_of_a_checkpoint_is_an_error(saved, name, kind):
    path = saved / name
    if kind == "sparse":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
        {"fifo": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "directory": os.mkdir}[kind](path)
    with pytest.raises(CheckpointError):
        checkpoints.verify(saved)
    if kind != "directory" or name != "arrays/0/zarr.json":  # only other readers use it
        with pytest.raises(CheckpointError):
            checkpoints.restore(saved)


def test_arrays_larger_than_the_memory_are_not_allocated(saved, monkeypatch):
    monkeypatch.setattr(host_memory, "memory_capacity", lambda: 1000)
    with pytest.raises(
        CheckpointError, match=r"'large', \[0:600\], needs 4,800 bytes of memory, and this machine has 1,000"
    ):
        checkpoints.restore(saved)


def test_sizes_without_divisors_are_not_cut_into_tiny_blocks():
    assert block_shape((1_000_003,), 4, 1 << 19) == (1_000_003,)
    assert block_shape((1_000_003, 512), 4, 1 << 28) == (1_000_003, 64)
    assert block_shape((1024, 1024), 4, 1 << 19) == (128, 1024)
    assert block_shape((7, 4096), 4, 1 << 14) == (1, 4096)


def test_a_manifest_that_is_too_large_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.checkpoints.untrusted_json._MOST_VALUES", 100)
    checkpoints.save(tmp_path / "few", {"a": 1}).wait()
    with pytest.raises(CheckpointError, match=r"the manifest of 50 leaves would have .* bytes, too many to be read"):
        checkpoints.save(tmp_path / "many", {str(index): index for index in range(50)}).wait()
    assert not (tmp_path / "many").exists()


def test_a_fifo_in_the_compilation_cache_is_no_entry(tmp_path, caplog):
    os.mkfifo(tmp_path / "one.executable")
    assert compilation_cache._read(tmp_path / "one.executable", "", (), ()) is None
    assert "Is a FIFO, not a regular file" in caplog.text


def test_a_fifo_as_a_table_of_chips_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "chips.toml")
    with pytest.raises(HardwareError, match="Is a FIFO, not a regular file"):
        read_chips(tmp_path / "chips.toml", {})
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(HardwareError, match="is not valid TOML"):
        read_chips(tmp_path / "deep.toml", {})

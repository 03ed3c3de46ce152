"""safetensors: names and dtypes; broken and forged files are errors."""

import json
import os

import ml_dtypes
import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import snapshot
from shardwise.checkpoints.safetensors import read_safetensors
from shardwise.errors import CheckpointError, CorruptCheckpoint
from tests.checkpoints.test_commands import run, write_safetensors


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


@pytest.mark.parametrize("name", ["", "../../x", "a.b", "日本 語", "~1", "\n", "\ud800", "__metadata"])
def test_names_of_safetensors_are_kept(tmp_path, name):
    write_safetensors(tmp_path / "x", name)
    assert run("import", tmp_path / "x", tmp_path / "one") == 0
    np.testing.assert_array_equal(checkpoints.restore(tmp_path / "one")[name], [1, 2])
    assert run("export", tmp_path / "one", tmp_path / "y") == 0
    assert list(read_safetensors(tmp_path / "y")) == [name]


def test_dtypes_of_safetensors(tmp_path):
    tree = {
        "bf16": jnp.arange(5, dtype=jnp.bfloat16),
        "f8": np.arange(5).astype(ml_dtypes.float8_e4m3fn),
        "i64": np.arange(5),
        "empty": np.zeros((0, 3), np.float16),
        "bool": np.array([True, False]),
    }
    checkpoints.save(tmp_path / "one", tree).wait()
    assert run("export", tmp_path / "one", tmp_path / "x") == 0
    for name, array in read_safetensors(tmp_path / "x").items():
        assert array.dtype == np.asarray(tree[name]).dtype and array.tobytes() == np.asarray(tree[name]).tobytes()
    checkpoints.save(tmp_path / "four", {"x": jnp.arange(3).astype(jnp.int4)}).wait()
    assert run("export", tmp_path / "four", tmp_path / "y") == 2 and not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        (3).to_bytes(8, "little") + b"{",
        (2).to_bytes(8, "little") + b"[]",
        (61).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}  ' + b"0" * 8,
        (58).to_bytes(8, "little") + b'{"x":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}    ' + b"0" * 8,
    ],
)
def test_a_broken_safetensors_file_is_an_error(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CorruptCheckpoint):
        read_safetensors(tmp_path / "x")

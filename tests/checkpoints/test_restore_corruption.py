"""A checkpoint that was changed, cut, forged or partly deleted is an error: never zeros, never a wrong number."""

import dataclasses
import hashlib
import json
import pickle
import shutil
import zlib

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import manifest as manifest_module
from shardwise.errors import CheckpointError, CorruptCheckpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "one"
    mesh = sw.make_mesh((4,), ("rows",))
    large = sw.device_put(np.random.default_rng(0).random((600, 600), np.float32), sw.NamedSharding(mesh, sw.P("rows")))
    checkpoints.save(path, {"large": large, "small": jnp.arange(5), "number": 3}).wait()
    return path


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "one")


def flip(path, offset, bit):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def kinds_of_files(folder):
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        "manifest": [path for path in files if path.name == "manifest.json"],
        "array": [path for path in files if path.parts[0] == "arrays" and path.name != "zarr.json"],
        "pack": [path for path in files if path.parts[0] == "packs" and path.name != "zarr.json"],
        "zarr": [path for path in files if path.name == "zarr.json"],
    }


@pytest.mark.parametrize("flips", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["manifest", "array", "pack", "zarr"])
def test_every_flipped_bit_is_an_error(copied, kind, flips):
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    expected = checkpoints.restore(copied)
    for _ in range(flips):
        path = copied / rng.choice(kinds_of_files(copied)[kind])
        offset, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        flip(path, offset, bit)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.verify(copied)
        if kind == "zarr":  # only other readers use it
            np.testing.assert_array_equal(checkpoints.restore(copied)["large"], expected["large"])
        else:
            with pytest.raises(CheckpointError) as caught:
                checkpoints.restore(copied)
        if kind in ("array", "pack"):
            assert ("'large'" if kind == "array" else "'small'") in str(caught.value)
        flip(path, offset, bit)
    assert checkpoints.verify(copied) == expected["large"].nbytes + expected["small"].nbytes


@pytest.mark.parametrize("change", ["cut", "delete", "empty"])
def test_a_file_that_is_cut_or_missing_is_an_error(saved, tmp_path, change):
    for index, name in enumerate(path for kind in ("array", "pack") for path in kinds_of_files(saved)[kind]):
        copied = shutil.copytree(saved, tmp_path / str(index))
        path = copied / name
        if change == "delete":
            path.unlink()
        else:
            path.write_bytes(b"" if change == "empty" else path.read_bytes()[:-9])
        with pytest.raises(CorruptCheckpoint):
            checkpoints.restore(copied)


def forge(path, change):
    """Change the content of a manifest, and write it with a right checksum."""
    content = json.loads(path.read_bytes())["content"]
    change(content)
    path.write_bytes(manifest_module.encode_file(json.dumps(content).encode()))


def leaf(content, name="large"):
    return content["leaves"][name]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: leaf(content).update(shape=[1 << 40, 1 << 20]),
        lambda content: leaf(content).update(shape=[-1, 600]),
        lambda content: leaf(content).update(shape=[600]),
        lambda content: leaf(content).update(shape="600"),
        lambda content: leaf(content).update(shape=[600.0, 600]),
        lambda content: leaf(content).update(dtype="object"),
        lambda content: leaf(content).update(folder="../../etc"),
        lambda content: leaf(content).update(folder="/etc"),
        lambda content: leaf(content).update(chunk_shape=[0, 0]),
        lambda content: leaf(content).update(chunk_shape=[7, 600]),
        lambda content: leaf(content).update(positions=[99]),
        lambda content: leaf(content).pop("dtype"),
        lambda content: leaf(content).update(positions=[0]),
        lambda content: leaf(content).update(keys=2),
        lambda content: leaf(content).update(keys=1 << 40),
        lambda content: content["leaves"].update({"number/x": {"keys": 2, "positions": [], "value": 1}}),
        lambda content: content.update(
            leaves={"number/x": {**leaf(content, "number"), "keys": 2}, **content["leaves"]}
        ),
        lambda content: leaf(content, "small").update(parts=[]),
        lambda content: leaf(content, "small").update(parts=[[0, 1 << 50, [[0, 5]], 0]]),
        lambda content: leaf(content, "small").update(parts=[[7, 0, [[0, 5]], 0]]),
        lambda content: leaf(content, "small").update(parts=[[0, 0, [[5, 0]], 0]]),
        lambda content: leaf(content, "small").update(parts=[[0, 0, [[0, 5], [0, 1]], 0]]),
        lambda content: leaf(content, "small").update(parts=[3]),
        lambda content: leaf(content, "number").update(value={"float": "not hexadecimal"}),
        lambda content: leaf(content, "number").update(value=[1]),
        lambda content: content.update(total_bytes=1),
        lambda content: content.update(leaves=[]),
        lambda content: content.update(packs=[-1]),
        lambda content: content["leaves"].update(twin=dict(content["leaves"]["large"])),
    ],
)
def test_a_forged_manifest_is_an_error(copied, change):
    forge(copied / "manifest.json", change)
    with pytest.raises(CorruptCheckpoint):
        checkpoints.restore(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda leaf: dataclasses.replace(leaf, positions=(True,)), "positions"),
        (lambda leaf: dataclasses.replace(leaf, shape=(600,)), "file_shape"),
        (lambda leaf: dataclasses.replace(leaf, storage=dataclasses.replace(leaf.storage, folder="/etc")), "folder"),
    ],
)
def test_a_manifest_that_cannot_be_read_back_is_not_committed(saved, change, message):
    manifest = checkpoints.read_manifest(saved)
    manifest.check("manifest.json")
    forged = dataclasses.replace(manifest, leaves={**manifest.leaves, "large": change(manifest.leaves["large"])})
    with pytest.raises(CorruptCheckpoint, match=message):
        forged.check("manifest.json")


def test_a_deep_manifest_is_an_error(copied):
    (copied / "manifest.json").write_bytes(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(CorruptCheckpoint, match="not JSON"):
        checkpoints.restore(copied)


def test_a_pickle_is_refused(copied):
    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit",)

    (copied / "manifest.json").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CorruptCheckpoint, match="not JSON"):
        checkpoints.restore(copied)


def test_a_newer_format_asks_for_an_upgrade(copied):
    content = json.loads((copied / "manifest.json").read_bytes())
    content["format_version"] = 99
    (copied / "manifest.json").write_text(json.dumps(content, separators=(",", ":")))
    with pytest.raises(CheckpointError, match="upgrade shardwise"):
        checkpoints.restore(copied)


def test_the_checksum_of_the_manifest_is_sha256(saved):
    parsed = json.loads((saved / "manifest.json").read_bytes())
    text = json.dumps(parsed["content"], separators=(",", ":")).encode()
    assert parsed["sha256"] == hashlib.sha256(text).hexdigest()

"""A file of a large array that belongs to another step, shard or array is an error that names the file."""

import json
import shutil

import numpy as np
import pytest

import shardwise as sw
from shardwise import checkpoints
from shardwise.checkpoints import manifest as manifest_module
from shardwise.checkpoints import snapshot
from shardwise.checkpoints.location import Folder
from shardwise.checkpoints.read import Reader
from shardwise.errors import CorruptCheckpoint

NAMES = ("w", "v")


def arrays(step, first_rows_only):
    """Return two arrays whose files have the same shape. Steps differ in all elements, or in the first rows alone."""
    rng = np.random.default_rng(7)
    made = {name: rng.random((96, 20), np.float32) for name in NAMES}
    for array in made.values():
        array[:: 24 if first_rows_only else 1] += step  # the first row of each of the four shards
    return made


@pytest.fixture(params=[False, True], ids=["all", "first-rows"])
def steps(request, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
    monkeypatch.setattr(Folder, "chunk_bytes", 500)  # four chunks in a file
    rows = sw.NamedSharding(sw.make_mesh((4,), ("rows",)), sw.P("rows"))
    for step in (1, 2):
        tree = {name: sw.device_put(array, rows) for name, array in arrays(step, request.param).items()}
        checkpoints.save(tmp_path / f"step-{step}", tree).wait()
    return tmp_path / "step-1", tmp_path / "step-2"


def swap(first, second):
    held = first.with_name("held")
    first.rename(held)
    second.rename(first)
    held.rename(second)


def check_error(path, *files):
    with pytest.raises(CorruptCheckpoint) as restored:
        checkpoints.restore(path)
    with pytest.raises(CorruptCheckpoint) as verified:
        checkpoints.verify(path)
    for file in files:
        assert f"the file {file} does not belong there" in str(verified.value)
    assert "does not belong there" in str(restored.value)
    assert any(repr(name) in str(restored.value) for name in NAMES)


def test_files_have_the_same_index_and_several_chunks(steps):
    contents = [(path / "arrays/0/c/0/0").read_bytes() for path in steps]
    assert contents[0] != contents[1] and contents[0][-68:] == contents[1][-68:]  # four entries and a checksum
    assert len(checkpoints.read_manifest(steps[0]).leaves["w"].storage.checksums[0]) == 4 * 4


def test_files_that_are_swapped_between_steps_are_errors(steps):
    first, second = steps
    swap(first / "arrays/1/c/2/0", second / "arrays/1/c/2/0")
    check_error(first, "arrays/1/c/2/0")
    check_error(second, "arrays/1/c/2/0")


def test_files_that_are_swapped_between_shards_are_errors(steps):
    swap(steps[0] / "arrays/0/c/0/0", steps[0] / "arrays/0/c/3/0")
    check_error(steps[0], "arrays/0/c/0/0", "arrays/0/c/3/0")


def test_files_that_are_swapped_between_arrays_are_errors(steps):
    swap(steps[0] / "arrays/0", steps[0] / "arrays/1")
    check_error(steps[0], "arrays/0/c/1/0", "arrays/1/c/1/0")


def test_the_manifest_of_another_step_is_an_error(steps):
    shutil.copy(steps[1] / "manifest.json", steps[0] / "manifest.json")
    check_error(steps[0], "arrays/0/c/0/0")


def test_only_chunks_that_are_read_are_compared(steps):
    swap(steps[0] / "arrays/1/c/0/0", steps[0] / "arrays/1/c/3/0")
    reader = Reader(steps[0])
    assert reader.read_box("w", ((24, 72), (3, 9))).shape == (48, 6)
    with pytest.raises(CorruptCheckpoint, match=r"'w', \[72:73, 0:20\]: the file arrays/1/c/3/0 does not belong"):
        reader.read_box("w", ((50, 73), (0, 20)))


def test_edge_files_without_all_chunks_are_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 10)
    monkeypatch.setattr(Folder, "chunk_bytes", 16)
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    array = sw.device_put(np.arange(7 * 5 * 3, dtype=np.int16).reshape(7, 5, 3), sw.NamedSharding(mesh, sw.P("x", "y")))
    checkpoints.save(tmp_path / "one", {"a": array}).wait()
    np.testing.assert_array_equal(checkpoints.restore(tmp_path / "one")["a"], array)
    assert checkpoints.verify(tmp_path / "one") == array.nbytes


def test_without_recorded_checksums_verify_says_what_it_does_not_check(steps, caplog):
    path = steps[0] / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    for leaf in content["leaves"].values():
        del leaf["checksums"]
    path.write_bytes(manifest_module.encode_file(json.dumps(content).encode()))
    assert checkpoints.verify(steps[0]) == 2 * 96 * 20 * 4
    assert "Whether files were swapped is not checked for" in caplog.text
    caplog.clear()
    checkpoints.verify(steps[1])
    assert caplog.text == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda texts: texts.pop(),
        lambda texts: texts.append(texts[0]),
        lambda texts: texts.__setitem__(0, texts[0][:-8]),
        lambda texts: texts.__setitem__(0, "x" * len(texts[0])),
        lambda texts: texts.__setitem__(0, 3),
    ],
)
def test_forged_checksums_are_errors(steps, change):
    path = steps[0] / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    change(content["leaves"]["w"]["checksums"])
    path.write_bytes(manifest_module.encode_file(json.dumps(content).encode()))
    with pytest.raises(CorruptCheckpoint, match="checksums"):
        checkpoints.restore(steps[0])

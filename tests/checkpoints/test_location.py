"""Folders as locations of checkpoints: URLs, and the errors of the file system."""

import os

import pytest

from shardwise.checkpoints import location
from shardwise.checkpoints.delete_tree import delete_tree
from shardwise.checkpoints.location import Folder, location_of
from shardwise.errors import CheckpointError, CorruptCheckpoint


def test_a_file_url_is_a_folder(tmp_path):
    folder = location_of(tmp_path.as_uri())
    assert isinstance(folder, Folder)
    assert folder.path == tmp_path


@pytest.mark.parametrize("name", ["a b", "ünï", "a#b", "a?b", "50%20", "a%b"])
def test_a_file_url_may_have_escapes(tmp_path, name):
    assert str(location_of((tmp_path / name).as_uri())) == str(location_of(tmp_path / name)) == str(tmp_path / name)


def test_a_file_url_has_an_absolute_path():
    with pytest.raises(CheckpointError, match="write file:///path"):
        location_of("file://run/step-1")


def test_missing_files_are_none_and_missing_folders_empty(tmp_path):
    (tmp_path / "file").write_bytes(b"12")
    folder = Folder(tmp_path)
    assert folder.read("missing") is None
    assert folder.read("file/inside") is None
    assert folder.read("file") == b"12"
    absent = Folder(tmp_path / "absent")
    absent.delete()
    assert absent.clean() == []


def test_a_file_that_is_too_long_is_corrupt(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    with pytest.raises(CorruptCheckpoint, match=r"file has more than 2 bytes"):
        Folder(tmp_path).read("file", limit=2)


def test_errors_of_the_file_system_name_the_file(tmp_path):
    (tmp_path / "folder").mkdir()
    folder = Folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"folder cannot be read: Is a directory"):
        folder.read("folder")
    with pytest.raises(CheckpointError, match=r"folder \(3 bytes\) cannot be written: Is a directory"):
        folder.write("folder", b"123")


def test_everything_that_can_be_deleted_is_deleted(tmp_path, monkeypatch):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    tree = tmp_path / "tree"
    for name in ("a", "b", "c"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("")
    (tree / "link").symlink_to(tmp_path / "kept")
    (tree / "broken").symlink_to(tmp_path / "absent")
    unlink = os.unlink

    def denied(path, **options):
        if "b/file" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", denied)
        with pytest.raises(PermissionError, match="b/file"):
            delete_tree(tree)
    assert sorted(path.name for path in tree.rglob("*")) == ["b", "file"]
    for _ in range(2):
        delete_tree(tree)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_without_tensorstore_the_error_says_how_to_install_it(monkeypatch):
    class Missing:
        def __getattr__(self, name):
            raise ImportError(name)

    monkeypatch.setattr(location, "ts", Missing())
    with pytest.raises(CheckpointError, match=r'not installed: pip install "shardwise\[checkpoint\]"'):
        location_of("somewhere")


def test_folders_that_cannot_be_synchronized_are_ignored(tmp_path, monkeypatch):
    location._sync_folder(tmp_path / "absent")

    def fails(descriptor):
        raise OSError("not supported")

    monkeypatch.setattr(os, "fsync", fails)
    location._sync_folder(tmp_path)

"""Folders are deleted as far as possible."""

import os

import pytest

from shardwise.checkpoints import delete_tree as module
from shardwise.checkpoints.delete_tree import delete_tree


def test_links_are_deleted_and_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "file").write_text("")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    delete_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_what_does_not_exist_is_no_error(tmp_path):
    delete_tree(tmp_path / "absent")


def test_the_other_files_are_deleted_before_the_first_error_is_raised(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text("")

    def unlink(name, original=os.unlink):
        if name.endswith("a"):
            raise PermissionError(name)
        original(name)

    monkeypatch.setattr(module.os, "unlink", unlink)
    with pytest.raises(PermissionError):
        delete_tree(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

"""The command `shardwise checkpoint`, and safetensors files."""

import json
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import commands, snapshot
from shardwise.checkpoints.commands import run_checkpoint_command
from shardwise.checkpoints.safetensors import read_safetensors
from shardwise.errors import CheckpointError
from shardwise.launch.checkpoint_parser import add_checkpoint_arguments

ORBAX = Path(__file__).parent / "orbax"


def run(*arguments):
    parser = ArgumentParser()
    add_checkpoint_arguments(parser)
    return run_checkpoint_command(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def saved(tmp_path):
    tree = {"w": jnp.arange(300_000.0).reshape(300, 1000), "b": [jnp.arange(3), 7]}
    checkpoints.save(tmp_path / "run" / "step-1", tree, metadata={"loss": 2}).wait()
    return tmp_path / "run" / "step-1"


def test_ls_and_inspect(saved, capsys):
    assert run("ls", saved.parent) == 0
    assert "step-1" in (text := capsys.readouterr().out) and "1,200,012" in text and "'loss': 2" in text
    assert run("inspect", saved) == 0
    text = capsys.readouterr().out
    assert "float32[300,1000]" in text and "arrays/2" in text and "packs/0" in text and "int 7" in text
    assert run("ls", saved / "none") == 2 and "no checkpoint in" in capsys.readouterr().err
    assert run("ls", saved) == 2 and "step-1 is itself a checkpoint" in capsys.readouterr().err


def test_names_and_metadata_are_printed_as_they_are(tmp_path, capsys):
    """Rich would read them as its markup and emoji, and fail; terminals would run their escape sequences."""
    folder = tmp_path / "ünï [red] code"
    tree = {"[/bold]": 1, ":smile:": "[/x]", "\x1b[31m": 2, "": 3, "\ud800": 4, "a\nb": jnp.arange(3)}
    checkpoints.save(folder / "one", tree, metadata={"m": "[/red]"}).wait()
    checkpoints.save(folder / "two", {}).wait()
    assert run("ls", folder) == 0 and "'[/red]'" in capsys.readouterr().out
    assert run("inspect", folder / "one") == 0
    inspected = capsys.readouterr().out
    assert run("diff", folder / "one", folder / "two") == 1
    compared = capsys.readouterr().out
    for name in ("[~1bold]", ":smile:", "'\\x1b[31m'", "''", "'\\ud800'", "'a\\nb'"):
        assert f" {name} " in inspected and f"- {name}: " in compared
    assert run("verify", folder / "one") == 0


def test_ls_lists_checkpoints_beside_those_that_cannot_be_read(saved, capsys, monkeypatch):
    checkpoints.save(saved.parent / "step-2", {"x": 1}).wait()
    checkpoints.save(saved.parent / "step-3", {"x": 1}).wait()
    (saved.parent / "step-2" / "manifest.json").write_text("{")
    opened = commands.Reader

    def vanishing(path):
        if path.endswith("step-3"):
            raise CheckpointError(f"there is no checkpoint at {path}")  # another process has deleted it
        return opened(path)

    monkeypatch.setattr(commands, "Reader", vanishing)
    assert run("ls", saved.parent) == 0
    first, second, third = (line for line in capsys.readouterr().out.splitlines() if "step-" in line)
    assert "1,200,012" in first and "corrupt" in second and "not readable" in third


def test_paths_without_a_checkpoint_are_errors(saved, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".partial-step-2-0123").mkdir()  # a checkpoint that is being written
    for path in ("file", "empty", "none", ".partial-step-2-0123"):
        for command in (("inspect",), ("verify",), ("diff", saved)):
            assert run(*command, tmp_path / path) == 2
            assert f"there is no checkpoint at {tmp_path / path}" in capsys.readouterr().err
    assert run("inspect", saved.parent) == 2 and "It has the checkpoints step-1." in capsys.readouterr().err
    assert run("inspect", ORBAX / "standard") == 2 and "There is an Orbax checkpoint" in capsys.readouterr().err
    assert run("import", saved, tmp_path / "new") == 2 and "needs no import" in capsys.readouterr().err
    assert run("import", tmp_path / "empty", tmp_path / "new") == 2 and "no Orbax" in capsys.readouterr().err
    assert run("import", tmp_path / "none", tmp_path / "new") == 2 and "No such file" in capsys.readouterr().err
    assert run("import", tmp_path / "file", tmp_path / "new") == 2 and "not a safetensors" in capsys.readouterr().err
    assert run("export", saved, tmp_path / "none" / "x") == 2 and "there is no folder" in capsys.readouterr().err


def test_verify(saved, capsys):
    assert run("verify", saved) == 0 and "every checksum matches" in capsys.readouterr().out
    file = next(saved.glob("arrays/*/c/*/*"))
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)
    assert run("verify", saved) == 1 and "'w', [0:300, 0:1000], cannot be read" in capsys.readouterr().err
    assert run("verify", saved / "none") == 2 and "no checkpoint" in capsys.readouterr().err


def test_diff(saved, tmp_path, capsys):
    assert run("diff", saved, saved) == 0 and "the 3 leaves are equal" in capsys.readouterr().out
    tree = {"w": jnp.arange(300_000.0).reshape(300, 1000).at[5, 5].add(0.5), "b": [jnp.arange(4)], "new": 1}
    checkpoints.save(tmp_path / "other", tree).wait()
    assert run("diff", saved, tmp_path / "other") == 1
    assert capsys.readouterr().out.splitlines() == [
        "- b/1: int 7",
        "+ new: int 1",
        "! b/0: int32[3], then int32[4]",
        "! w: 1 of 300,000 elements differ in bits, by at most 0.5",
    ]


def test_diff_of_a_small_and_a_large_array(tmp_path, capsys, monkeypatch):
    checkpoints.save(tmp_path / "a", {"x": jnp.arange(300.0), "y": jnp.arange(2), "z": jnp.zeros((0, 2))}).wait()
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
    tree = {"x": jnp.arange(300.0).at[7].set(0), "y": jnp.arange(2), "z": jnp.zeros((0, 2))}
    checkpoints.save(tmp_path / "b", tree).wait()
    assert run("diff", tmp_path / "a", tmp_path / "b") == 1
    assert capsys.readouterr().out == "! x: 1 of 300 elements differ in bits, by at most 7\n"


def test_diff_compares_bits(tmp_path, capsys):
    checkpoints.save(tmp_path / "a", {"x": jnp.array([0.0, jnp.nan])}).wait()
    checkpoints.save(tmp_path / "b", {"x": jnp.array([-0.0, jnp.nan])}).wait()
    assert run("diff", tmp_path / "a", tmp_path / "b") == 1
    assert "1 of 2 elements differ in bits" in capsys.readouterr().out


def test_diff_counts_differences_that_are_no_number(tmp_path, capsys):
    inf, nan = np.inf, np.nan
    checkpoints.save(
        tmp_path / "a", {"x": np.array([nan, 1, 1, 0]), "y": np.array([1.0]), "z": np.array([-inf])}
    ).wait()
    checkpoints.save(tmp_path / "b", {"x": np.array([1, nan, 3, 0]), "y": np.array([nan]), "z": np.array([inf])}).wait()
    assert run("diff", tmp_path / "a", tmp_path / "b") == 1
    assert capsys.readouterr().out.splitlines() == [
        "! x: 3 of 4 elements differ in bits, by at most 2; 2 of them by NaN",
        "! y: 1 of 1 elements differ in bits; 1 of them by NaN",
        "! z: 1 of 1 elements differ in bits, by at most inf",
    ]


@pytest.mark.parametrize(("name", "problem"), [("a\0b", "NUL"), ("x" * 5000, "more than 4096")], ids=["NUL", "long"])
def test_names_that_a_checkpoint_cannot_hold_are_not_imported(tmp_path, capsys, name, problem):
    write_safetensors(tmp_path / "x", name)
    assert run("import", tmp_path / "x", tmp_path / "one") == 2
    assert problem in capsys.readouterr().err and not (tmp_path / "one").exists()


def write_safetensors(file, name):
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + np.array([1, 2], np.float32).tobytes())


def test_export_and_import(saved, tmp_path, capsys):
    file = tmp_path / "x.safetensors"
    assert run("export", saved, file) == 0
    arrays = read_safetensors(file)
    np.testing.assert_array_equal(arrays["w"], np.arange(300_000.0).reshape(300, 1000))
    np.testing.assert_array_equal(arrays["b.0"], [0, 1, 2])
    assert run("import", file, tmp_path / "back") == 0
    restored = checkpoints.restore(tmp_path / "back")
    np.testing.assert_array_equal(restored["w"], arrays["w"])
    assert checkpoints.verify(tmp_path / "back") == 1_200_012
    assert run("export", saved, file) == 2 and "exists" in capsys.readouterr().err
    assert run("import", file, tmp_path / "back") == 2 and "exists" in capsys.readouterr().err
    assert run("import", file, file, tmp_path / "twice") == 2 and "in another of the files" in capsys.readouterr().err


def test_arrays_that_would_have_one_name_are_not_exported(tmp_path, capsys):
    checkpoints.save(tmp_path / "one", {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(3)}}).wait()
    assert run("export", tmp_path / "one", tmp_path / "x") == 2
    assert "two arrays would have the name 'a.b'" in capsys.readouterr().err and not (tmp_path / "x").exists()

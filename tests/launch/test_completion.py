"""Completion in shells: what bash offers for a command line, and that fish's script names every command."""

import subprocess
from pathlib import Path

import pytest

from shardwise.launch.command_line import main

CHIPS = {"cpu", "a100", "h100", "h200", "b200"}


@pytest.fixture
def script(capsys):
    def run(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return run


def offered(script, line, folder):
    """Return the words that bash offers for the last word of a command line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shardwise"
    program = f"{script}\n{call}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    run = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=30, check=True, cwd=folder
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shardwise sim", {"simulate"}),
        ("shardwise explain step.mlir --pi", {"--pin"}),
        ("shardwise c", {"checkpoint", "calibrate", "compile", "completion"}),
        ("shardwise checkpoint ", {"ls", "inspect", "verify", "diff", "export", "import", "-h", "--help"}),
        ("shardwise checkpoint ve", {"verify"}),
        ("shardwise simulate train.py:step --list", {"--list-chips"}),
        ("shardwise simulate train.py:step --me", {"--mesh"}),
        ("shardwise explain --hardware h", {"h100", "h100:500w", "h100:eager", "h200"}),
        ("shardwise launch --max", {"--max-restarts"}),
        ("shardwise completion f", {"fish"}),
        ("shardwise doctor x", set()),
    ],
)
def test_bash_completes(script, line, expected, tmp_path: Path):
    assert offered(script("bash"), line, tmp_path) == expected


def test_all_chips_are_offered(script, tmp_path):
    assert offered(script("bash"), "shardwise simulate --hardware ", tmp_path) > CHIPS


def test_zsh_runs_the_completion_of_bash(script):
    assert script("zsh").endswith(script("bash")) and "bashcompinit" in script("zsh")


def test_fish_names_commands_options_and_chips(script):
    lines = script("fish").splitlines()
    assert all(line.startswith("complete -c shardwise -n '") for line in lines)
    assert any("-a simulate " in line for line in lines)
    nested = [line for line in lines if "-a verify " in line]
    assert nested and "__fish_seen_subcommand_from checkpoint" in nested[0]
    (hardware,) = [line for line in lines if "from explain'" in line and " -l hardware " in line]
    assert all(chip in hardware for chip in CHIPS)


def test_quotes_in_help_are_escaped(script):
    for line in script("fish").splitlines():
        assert line.replace("\\'", "").count("'") % 2 == 0, line

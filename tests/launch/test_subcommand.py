"""Subcommands show an example in their help."""

from argparse import ArgumentParser

import pytest

from shardwise.launch.subcommand import CommandParser, add_command


def test_the_help_has_the_summary_and_the_example():
    parser = ArgumentParser(prog="shardwise")
    command = add_command(parser.add_subparsers(), "check", "check the devices", "shardwise check\nshardwise check -v")
    assert "check the devices" in parser.format_help()
    text = command.format_help()
    assert "Check the devices." in text
    assert "example:\n  shardwise check\n  shardwise check -v\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seq", "4"], "shardwise check: error: unrecognized arguments: --seq 4; did you mean '--sequences'?"),
        (["--seqences=4"], "unrecognized arguments: --seqences=4; did you mean '--sequences'?"),
        (["--rows", "4"], "unrecognized arguments: --rows 4\n"),
    ],
)
def test_options_are_neither_abbreviated_nor_guessed(arguments, message, capsys):
    parser = CommandParser(prog="shardwise")
    check = add_command(parser.add_subparsers(), "check", "check", "shardwise check")
    check.add_argument("--sequences")
    check.add_argument("--set")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["check", *arguments])
    assert message in capsys.readouterr().err

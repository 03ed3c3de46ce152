"""Subcommands show an example in their help."""

from argparse import ArgumentParser

from shardwise.launch.subcommand import add_command


def test_the_help_has_the_summary_and_the_example():
    parser = ArgumentParser(prog="shardwise")
    command = add_command(parser.add_subparsers(), "check", "check the devices", "shardwise check\nshardwise check -v")
    assert "check the devices" in parser.format_help()
    text = command.format_help()
    assert "Check the devices." in text
    assert "example:\n  shardwise check\n  shardwise check -v\n" in text

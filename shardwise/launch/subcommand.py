"""Subcommands of the command `shardwise`, each with an example in its help."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any


def add_command(commands: Any, name: str, summary: str, example: str) -> ArgumentParser:
    """Add a subcommand whose help shows an example.

    Args:
        commands: the result of `add_subparsers`.
        name: the name of the subcommand.
        summary: its summary, in the imperative.
        example: command lines, separated by newlines.
    """
    lines = "".join(f"  {line}\n" for line in example.splitlines())
    parser: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n{lines}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    return parser

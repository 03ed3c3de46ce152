"""Subcommands of the command `shardwise`, each with an example in its help."""

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, final

_UNKNOWN = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


@final
class CommandParser(ArgumentParser):
    """A parser that suggests a command, an option or a value if one is misspelled. The exit code of an error is 2.

    Options are not abbreviated: `--seq` could be understood as an option of another meaning.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse arguments. Unknown ones are an error of the subcommand, which knows its options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            options = [option for action in self._actions for option in action.option_strings]
            longer = [option for option in options if name.startswith("--") and option.startswith(name)]
            close = longer or get_close_matches(name, options, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if match := _UNKNOWN.search(message):
            close = get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), 1)
            message += f"; did you mean {close[0]!r}?" if close else ""
        super().error(message)


def subcommands(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the subcommands of a parser by name; none for most."""
    actions = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    return {name: child for action in actions for name, child in action.choices.items()}


def add_command(commands: Any, name: str, summary: str, example: str, note: str = "") -> ArgumentParser:
    """Add a subcommand whose help shows an example.

    Args:
        commands: the result of `add_subparsers`.
        name: the name of the subcommand.
        summary: its summary, in the imperative.
        example: command lines, separated by newlines.
        note: a sentence after the example.
    """
    lines = "".join(f"  {line}\n" for line in example.splitlines())
    parser: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n{lines}" + (f"\n{note}\n" if note else ""),
        formatter_class=RawDescriptionHelpFormatter,
    )
    return parser

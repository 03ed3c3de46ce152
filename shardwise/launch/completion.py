"""Completion scripts for bash, zsh and fish, from the parser of the command line."""

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from shardwise.launch.subcommand import subcommands

SHELLS = ("bash", "zsh", "fish")


@final
@dataclass(frozen=True)
class _Words:
    """What may follow a command, such as `checkpoint ls`.

    Attributes:
        commands: its subcommands, or the values of its argument, each with a summary.
        options: its options, each with a help text.
        choices: for each option that has some, the values that it accepts.
    """

    commands: Mapping[str, str]
    options: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def completion_script(parser: ArgumentParser, shell: str, chips: tuple[str, ...]) -> str:
    """Return the script that completes commands, options and chips in a shell. Other words are files.

    Args:
        parser: the parser with all commands.
        shell: one of `SHELLS`.
        chips: the values of `--hardware`.
    """
    tree = dict(_tree(parser, "", chips))
    match shell:
        case "fish":
            return _fish(tree)
        case "zsh":  # zsh runs completions of bash
            return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(tree)}"
        case _:
            return _bash(tree)


def _tree(parser: ArgumentParser, command: str, chips: tuple[str, ...]) -> Iterator[tuple[str, _Words]]:
    """Yield the words after each command, the command line itself first."""
    children = subcommands(parser)
    options = [action for action in parser._actions if action.option_strings and action.help != SUPPRESS]
    yield (
        command,
        _Words(
            {name: child.description or "" for name, child in children.items()} or _argument_values(parser),
            {name: action.help or "" for action in options for name in action.option_strings},
            {
                name: values
                for action in options
                for name in action.option_strings
                if (values := _values(action, chips))
            },
        ),
    )
    for name, child in children.items():
        yield from _tree(child, f"{command} {name}".strip(), chips)


def _argument_values(parser: ArgumentParser) -> dict[str, str]:
    """Return the values of the arguments that have a fixed choice."""
    arguments = [action for action in parser._actions if not action.option_strings]
    return {str(value): action.help or "" for action in arguments for value in action.choices or ()}


def _values(action: Action, chips: tuple[str, ...]) -> tuple[str, ...]:
    return chips if action.dest == "hardware" else tuple(map(str, action.choices or ()))


def _bash(tree: Mapping[str, _Words]) -> str:
    """Find the command among the words so far, and offer its options, or its commands."""
    commands = "\n".join(
        f'        "{command}") words="{" ".join((*words.commands, *words.options))}" ;;'
        for command, words in tree.items()
    )
    paths = " | ".join(f'"{command}"' for command in tree if command)
    values = {name: values for words in tree.values() for name, values in words.choices.items()}
    cases = "\n".join(f'        {name}) words="{" ".join(choices)}" ;;' for name, choices in values.items())
    return f"""\
_shardwise() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}" path="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
            {paths}) path="${{path:+$path }}$word" ;;
        esac
    done
    case "$path" in
{commands}
    esac
    case "$previous" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -o bashdefault -F _shardwise shardwise
"""


def _fish(tree: Mapping[str, _Words]) -> str:
    """Offer the commands of each command while none of them is given, and its options."""
    lines = []
    for command, words in tree.items():
        conditions = [f"__fish_seen_subcommand_from {name}" for name in command.split()]
        if words.commands:
            conditions.append(f"not __fish_seen_subcommand_from {' '.join(words.commands)}")
        condition = "; and ".join(conditions)
        for name, summary in words.commands.items():
            lines.append(f"complete -c shardwise -n {_quoted(condition)} -f -a {name} -d {_quoted(summary)}")
        for name, text in words.options.items():
            flag = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            choices = f" -x -a {_quoted(' '.join(words.choices[name]))}" if name in words.choices else ""
            lines.append(f"complete -c shardwise -n {_quoted(condition)} {flag} -d {_quoted(text)}{choices}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Quote for fish, which has backslashes in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ").strip() + "'"

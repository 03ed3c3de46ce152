"""The option `--failures` of `shardwise simulate`."""

import ast
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from shardwise.explain.failures import Failures
from shardwise.explain.simulate import Simulation
from shardwise.launch.load_target import CommandError

_FIELDS = tuple(field.name for field in fields(Failures) if field.name != "policies")


def parse_failures(text: str) -> Failures:
    """Parse fields of `Failures`, such as `days=54,spare_nodes=8`.

    Raises:
        CommandError: if there is no such field, or a value is not a number or out of range.
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, is_set, value = part.partition("=")
        if not is_set or name not in _FIELDS:
            near = get_close_matches(name, _FIELDS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The names are: {', '.join(_FIELDS)}"
            raise CommandError(f"--failures {text[:100]!r}: write NAME=VALUE,…, such as days=54,spare_nodes=8. {hint}")
        if name in values:
            raise CommandError(f"--failures {text!r} has {name!r} twice")
        try:
            values[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            raise CommandError(f"--failures {name}={value[:50]}: {value[:50]!r} is not a number") from None
    try:
        return Failures(**values)
    except ValueError as error:
        raise CommandError(f"--failures: {error}") from None


def with_failures(run: Simulation, failures: Failures | None) -> Simulation:
    """Return a simulation with the goodput of a long job, if there are `failures`.

    Raises:
        CommandError: if so many failures are expected that they are not simulated.
    """
    try:
        return run if failures is None else run.with_failures(failures)
    except ValueError as error:
        raise CommandError(f"--failures: {error}") from None

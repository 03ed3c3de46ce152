"""Typed access to environment variables, with the variable's name in errors."""

import re
from collections.abc import Mapping
from typing import final

from shardwise.processes.number_checks import check_seconds

# The process id of the launcher, in the processes that it starts and their descendants.
LAUNCHER_PID = "SHARDWISE_LAUNCHER_PID"
# The address and the secret of the launcher's roster, if it replaces processes that fail, and the number under which it
# has started this process.
ROSTER, ROSTER_TOKEN, ROSTER_PROCESS = "SHARDWISE_ROSTER", "SHARDWISE_ROSTER_TOKEN", "SHARDWISE_ROSTER_PROCESS"
# The rank of the launcher's node, if there are several nodes.
NODE_RANK = "SHARDWISE_NODE_RANK"
# How many times the launcher has started the processes again.
RESTART_COUNT = "SHARDWISE_RESTART_COUNT"
# The setting `launch_record_dir`, which the launcher sets.
RECORD_FOLDER = "SHARDWISE_LAUNCH_RECORD_DIR"


@final
class Variables:
    """Environment variables of a process.

    A variable with an empty value counts as unset.

    Args:
        values: the variables by name.
    """

    def __init__(self, values: Mapping[str, str]):
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self.text(name) is not None

    def text(self, name: str) -> str | None:
        """Return the value of a variable without surrounding whitespace; None if it is unset or empty."""
        return self._values.get(name, "").strip() or None

    def integer(self, name: str, minimum: int = 0) -> int | None:
        """Return the value of a variable as an integer, or None if it is unset.

        Raises:
            ValueError: if it is not an integer of at least `minimum`.
        """
        text = self.text(name)
        return None if text is None else parse_integer(f"{name}={text}", text, minimum)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return the integers of a comma-separated list, or None if the variable is unset.

        Raises:
            ValueError: if an item is not an integer of at least 0.
        """
        text = self.text(name)
        return None if text is None else tuple(parse_integer(f"{name}={text}", item, 0) for item in text.split(","))

    def seconds(self, name: str) -> float | None:
        """Return the value of a variable as a positive number of seconds, or None if it is unset.

        Raises:
            ValueError: if it is not a number of seconds in the range of `check_seconds`.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
            raise ValueError(f"{name}={text} is not a positive number of seconds")
        return check_seconds(f"{name}={text}", float(text))

    def required_text(self, name: str, present: str) -> str:
        """Return a variable that is required because `present` is set.

        Raises:
            ValueError: if it is unset.
        """
        if (text := self.text(name)) is None:
            raise ValueError(f"{name} is not set, but {present}={self.text(present)} is: set both or neither")
        return text

    def required_integer(self, name: str, present: str, minimum: int = 0) -> int:
        """Return a variable as an integer. It is required because `present` is set.

        Raises:
            ValueError: if it is unset or not an integer of at least `minimum`.
        """
        self.required_text(name, present)
        value = self.integer(name, minimum)
        assert value is not None
        return value

    def check_equal(self, name: str, other: str) -> None:
        """Raise an error if two variables are set and are different integers."""
        first, second = self.integer(name), self.integer(other)
        if None not in (first, second) and first != second:
            raise ValueError(f"{name}={first} contradicts {other}={second}: {HOW_TO_OVERRIDE}")


HOW_TO_OVERRIDE = (
    "unset the wrong one, or pass coordinator_address, num_processes and process_id to distributed.initialize"
)


def parse_integer(source: str, text: str, minimum: int) -> int:
    """Parse an integer.

    Args:
        source: the origin of the string, for the error.
        text: digits, with an optional minus sign.
        minimum: the smallest valid value.

    Raises:
        ValueError: if `text` is not an integer of at least `minimum`.
    """
    text = text.strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 19) or int(text) < minimum:
        raise ValueError(f"{source}: {text!r} is not an integer of at least {minimum}")
    return int(text)

"""Errors of commands that plan programs: each is one line on standard error, and exit code 2."""

import sys
from collections.abc import Callable

from shardwise.errors import (
    AutoshardError,
    HardwareError,
    PlatformError,
    ProfileError,
    ProgramError,
    ShardingError,
    TorchModuleError,
    UnsupportedError,
)
from shardwise.launch.load_target import CommandError


def run_command(command: str, action: Callable[[], None]) -> int:
    """Run a command, and return its exit code. Errors that its arguments may cause are printed."""
    try:
        action()
    except BrokenPipeError:
        raise  # the reader of the output has ended
    except (
        AutoshardError,
        CommandError,
        HardwareError,
        ImportError,
        OSError,
        PlatformError,
        ProfileError,
        ProgramError,
        ShardingError,
        TorchModuleError,
        UnsupportedError,
    ) as error:
        print(f"shardwise {command}: {error}", file=sys.stderr)
        return 2
    return 0

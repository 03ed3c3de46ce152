"""The command `shardwise calibrate`. `simulate_parser.py` has its arguments."""

import sys
from argparse import Namespace
from functools import partial

from shardwise.compiler.plan.chip_table import format_chip, write_chip
from shardwise.compiler.plan.hardware import built_in_chips, user_table
from shardwise.errors import HardwareError
from shardwise.explain.calibrate import calibrate


def run_calibrate(parsed: Namespace) -> int:
    """Measure this machine, write the chip to a table, and print it. Return the exit code."""
    path = parsed.output or user_table()
    try:
        if parsed.name.lower() in built_in_chips():
            raise HardwareError(f"--name: {parsed.name!r} is the name of a built-in chip: choose another")
        result = calibrate(parsed.name, report=partial(print, file=sys.stderr, flush=True))
        write_chip(path, result.chip, built_in_chips(), result.comment)
    except (HardwareError, OSError) as error:
        print(f"shardwise calibrate: {error}", file=sys.stderr)
        return 1
    print(format_chip(result.chip, result.comment))
    hardware = result.chip.name if parsed.output is None else f"{path}:{result.chip.name}"
    print(f'{path} has it: use hardware="{hardware}"')
    return 0

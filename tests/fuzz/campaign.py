"""A fuzz campaign: the cases of consecutive seeds are drawn and checked, and failures are printed."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track

SHOWN = 5  # failures printed in full

Draw = Callable[[int], Any]  # returns the case of a seed
Check = Callable[[Any], None]  # raises an exception if the case fails
Report = Callable[[Console, Any, Exception], None]


def campaign_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all campaigns have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--cases", type=int, default=1000, help="the number of seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=7200, help="stop after this time")
    return parser


def print_failure(console: Console, case: Any, failure: Exception) -> None:
    """Print a case and its exception."""
    console.print(f"[bold red]failed[/]: {escape(str(case))}")
    console.print(f"{type(failure).__name__}: {escape(str(failure))[:8000]}", highlight=False)


def run_campaign(
    options: argparse.Namespace, checks: Sequence[tuple[Draw, Check]], report: Report = print_failure
) -> int:
    """Draw and check the cases of all seeds. Return the exit status: 1 if a case failed."""
    console = Console(soft_wrap=True)
    failures: list[str] = []
    end = time.monotonic() + options.seconds
    ran = 0
    for seed in track(range(options.seed, options.seed + options.cases), "fuzzing", console=console):
        if time.monotonic() > end:
            break
        ran += 1
        for draw, check in checks:
            case = draw(seed)
            if failure := failure_of(check, case):
                failures.append(f"{draw.__name__}({seed})")
                if len(failures) <= SHOWN:
                    report(console, case, failure)
    console.print(f"{ran} cases from seed {options.seed}: {len(failures)} failed {failures[:20] or ''}")
    return 1 if failures else 0


def failure_of(check: Check, case: Any) -> Exception | None:
    """Return the exception that a check raises, or None."""
    try:
        check(case)
    except Exception as error:
        return error
    return None

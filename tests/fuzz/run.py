"""Run many random cases and report the failures, shrunk.

    python -m tests.fuzz.run --cases 1000 --seed 0 [--simulate-only] [--seconds 600]

A seed determines its case: `--cases 1 --seed S` repeats one.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from tests.fuzz.check import Case, check, random_case
from tests.fuzz.recipe import Recipe
from tests.fuzz.shrink import shrink

SHOWN = 5  # failures printed in full


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--simulate-only", action="store_true", help="simulate in numpy only; nothing is compiled")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time")
    options = parser.parse_args(arguments)
    console = Console()
    failures: list[int] = []
    end = time.monotonic() + options.seconds
    ran = 0
    for seed in track(range(options.seed, options.seed + options.cases), "fuzzing", console=console):
        if time.monotonic() > end:
            break
        ran += 1
        case = random_case(seed)
        if failure := failure_of(case, not options.simulate_only):
            failures.append(seed)
            if len(failures) <= SHOWN:
                report(console, case, failure, not options.simulate_only)
    console.print(f"{ran} cases from seed {options.seed}: {len(failures)} failed {failures[:20] or ''}")
    return 1 if failures else 0


def failure_of(case: Case, on_devices: bool) -> Exception | None:
    """Return the exception that a case raises, or None."""
    try:
        check(case, on_devices)
    except Exception as error:
        return error
    return None


def report(console: Console, case: Case, failure: Exception, on_devices: bool) -> None:
    console.print(f"[bold red]failed[/]: {escape(str(case))}")
    console.print(f"{type(failure).__name__}: {escape(str(failure))[:8000]}", highlight=False)

    def fails_the_same_way(original: Case) -> Callable[[Recipe], bool]:
        def fails(recipe: Recipe) -> bool:
            other_failure = failure_of(replace(original, recipe=recipe), on_devices)
            return type(other_failure) is type(failure) and str(other_failure)[:8] == str(failure)[:8]

        return fails

    # A vmap case has a mapped dim for each input, so the inputs must stay.
    smaller = shrink(case.recipe, fails_the_same_way(case), keep_inputs=case.kind == "vmap")
    console.print(f"[bold]shrunk[/]: {escape(str(replace(case, recipe=smaller)))}")


if __name__ == "__main__":
    sys.exit(main())

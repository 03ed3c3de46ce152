"""Run many random cases and report the failures, shrunk.

    python -m tests.fuzz.run --cases 1000 --seed 0 [--simulate-only | --compile-twice] [--seconds 600]

A seed determines its case: `--cases 1 --seed S` repeats one.
"""

import sys
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.markup import escape

from tests.fuzz.campaign import campaign_parser, failure_of, print_failure, run_campaign
from tests.fuzz.check import Case, check, random_case
from tests.fuzz.recipe import Recipe
from tests.fuzz.shrink import shrink


def main(arguments: list[str] | None = None) -> int:
    parser = campaign_parser("tests.fuzz.run", __doc__)
    parser.add_argument("--simulate-only", action="store_true", help="simulate in numpy only; nothing is compiled")
    parser.add_argument(
        "--compile-twice", action="store_true", help="also compile without XLA's fusions and algebraic simplifier"
    )
    options = parser.parse_args(arguments)
    check_case = partial(check, on_devices=not options.simulate_only, compile_twice=options.compile_twice)

    def report(console: Console, case: Case, failure: Exception) -> None:
        print_failure(console, case, failure)

        def fails_the_same_way(recipe: Recipe) -> bool:
            other_failure = failure_of(check_case, replace(case, recipe=recipe))
            return type(other_failure) is type(failure) and str(other_failure)[:8] == str(failure)[:8]

        # A vmap case has a mapped dim for each input, so the inputs must stay.
        smaller = shrink(case.recipe, fails_the_same_way, keep_inputs=case.kind == "vmap")
        console.print(f"[bold]shrunk[/]: {escape(str(replace(case, recipe=smaller)))}")

    return run_campaign(options, [(random_case, check_case)], report)


if __name__ == "__main__":
    sys.exit(main())

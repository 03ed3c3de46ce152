"""Read many damaged and forged files, and count the outcomes by class.

    python -m tests.checkpoints.forgeries --cases 1000 --seed 0

A seed determines its case: `--cases 1 --seed S` repeats one.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.checkpoints.forgeries.campaign import run_cases

SHOWN = 10  # failures printed in full


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints.forgeries", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="forgeries-") as folder:
        seeds = range(options.seed, options.seed + options.cases)
        outcomes = list(track(run_cases(seeds, Path(folder)), "forgeries", total=len(seeds), console=console))
    table = Table("outcome", "format", "cases")
    for (kind, form), count in sorted(Counter((outcome.kind, outcome.format) for outcome in outcomes).items()):
        table.add_row(kind, form, str(count))
    console.print(table)
    for kind, count in Counter(outcome.kind for outcome in outcomes).most_common():
        console.print(f"{kind}: {count}")
    failures = [outcome for outcome in outcomes if not outcome.passed]
    for failure in failures[:SHOWN]:
        console.print(f"{failure.seed} {failure.format} {failure.damage}: {failure.kind}", markup=False)
        console.print(failure.detail[-3000:], markup=False)
    failed = [failure.seed for failure in failures][:20] or ""
    console.print(f"{len(outcomes)} cases from seed {options.seed}: {len(failures)} failed {failed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

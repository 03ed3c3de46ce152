"""Run the suites and show ours beside JAX's: `python -m benchmarks.run [--suite NAME …] [--json FILE] [--quick]`."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import calls, compile, report, startup, step
from benchmarks.row import Row

SUITES = {"startup": startup.cases, "calls": calls.cases, "compile": compile.cases, "step": step.cases}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Shardwise beside JAX, in one run.")
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="which suites; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows, with the facts of the machine")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: its times mean nothing, its counts are exact"
    )
    asked = parser.parse_args()
    console = Console()
    results = {name: run(name, asked.quick, console) for name in dict.fromkeys(asked.suite)}
    if asked.json:
        asked.json.write_text(json.dumps(report.as_json(results, asked.quick), indent=2) + "\n")


def run(name: str, quick: bool, console: Console) -> list[Row]:
    """One suite, with its progress, then its table."""
    rows: list[Row] = []
    cases = SUITES[name](quick)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=len(cases))
        for case in cases:
            progress.update(task, description=f"{name}: {case.name}")
            rows += case.run()
            progress.advance(task)
    console.print(report.table(name, rows))
    return rows


if __name__ == "__main__":
    main()

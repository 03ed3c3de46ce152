"""Run the suites and show ours beside JAX's:

python -m benchmarks.run [--suite NAME …] [--only WORDS] [--json FILE] [--plot FILE] [--quick]
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import calls, compile, manual, planning, plot, report, startup, step, workloads
from benchmarks.row import Row

SUITES = {
    "startup": startup.cases,
    "calls": calls.cases,
    "compile": compile.cases,
    "step": step.cases,
    "workloads": workloads.cases,
    "manual": manual.cases,
    "planning": planning.cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Shardwise beside JAX, in one run.")
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="which suites; default: all")
    parser.add_argument("--only", metavar="WORDS", default="", help="cases that have these words in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows, with the facts of the machine")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the workloads' wire bytes: PNG, SVG, …")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: its times mean nothing, its counts are exact"
    )
    asked = parser.parse_args()
    console = Console()
    results = {name: run(name, asked.only, asked.quick, console) for name in dict.fromkeys(asked.suite)}
    if asked.json:
        asked.json.write_text(json.dumps(report.as_json(results, asked.quick), indent=2) + "\n")
    if asked.plot:
        plot.wire_ratios(results.get("workloads", []), asked.plot)


def run(name: str, only: str, quick: bool, console: Console) -> list[Row]:
    """One suite, with its progress, then its table."""
    rows: list[Row] = []
    cases = [case for case in SUITES[name](quick) if only in case.name]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=len(cases))
        for case in cases:
            progress.update(task, description=f"{name}: {case.name}")
            rows += case.run()
            progress.advance(task)
    console.print(report.table(name, rows))
    for line in report.above(rows):
        console.print(f"above the bar: {line}", style="red", highlight=False)
    return rows


if __name__ == "__main__":
    main()

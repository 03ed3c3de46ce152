"""Run the benchmark suites and print the comparison with JAX.

python -m benchmarks.run [--suite NAME …] [--only WORDS] [--json FILE] [--plot FILE] [--quick]
"""

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    calls,
    checkpoints,
    compile,
    explicit,
    flax_nnx,
    inside_jax,
    manual,
    planning,
    plot,
    processes,
    report,
    startup,
    step,
    workloads,
)
from benchmarks.row import Row

SUITES = {
    "startup": startup.cases,
    "calls": calls.cases,
    "compile": compile.cases,
    "step": step.cases,
    "workloads": workloads.cases,
    "manual": manual.cases,
    "explicit": explicit.cases,
    "inside_jax": inside_jax.cases,
    "planning": planning.cases,
    "processes": processes.cases,
}
if find_spec("flax"):  # as in the environment of `make test-ecosystem`
    SUITES["flax"] = flax_nnx.cases
if find_spec("orbax"):
    SUITES["checkpoints"] = checkpoints.cases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Compare Shardwise with JAX.")
    parser.add_argument(
        "--suite", nargs="+", choices=SUITES, default=list(SUITES), help="the suites to run; default: all"
    )
    parser.add_argument("--only", metavar="WORDS", default="", help="run only cases whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows, the machine and the revision")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the wire bytes of the workloads: PNG, SVG, …")
    parser.add_argument("--quick", action="store_true", help="a smoke run: times are meaningless, counts are exact")
    options = parser.parse_args()
    console = Console()
    results = {name: run(name, options.only, options.quick, console) for name in dict.fromkeys(options.suite)}
    if options.json:
        options.json.write_text(json.dumps(report.as_json(results, options.quick), indent=2) + "\n")
    if options.plot:
        plot.wire_ratios(results.get("workloads", []), options.plot)


def run(name: str, only: str, quick: bool, console: Console) -> list[Row]:
    """Run one suite with a progress bar, and print its table."""
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
    for line in report.rows_above_bar(rows):
        console.print(f"above the bar: {line}", style="red", highlight=False)
    return rows


if __name__ == "__main__":
    main()

"""Run all checks on the default device and print a table.

    python -m benchmarks.gpu [--only PATTERN] [--json FILE]

The exit status is 1 if a check fails. Without a GPU the checks run on the CPU.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shardwise as sw
from benchmarks.gpu import kernels, ops, pallas, runtime
from benchmarks.gpu.check import TOLERANCE, Check


def checks() -> Iterator[tuple[str, Check]]:
    yield from ops.families()
    yield from ops.decompositions()
    yield from ops.attention()
    yield from kernels.checks()
    yield from pallas.checks()
    yield from runtime.checks()


def run(name: str, check: Check) -> dict[str, Any]:
    """Run one check. Any exception is a failure."""
    start = time.perf_counter()
    try:
        error = check()
        state, shown = "ok" if error <= TOLERANCE else "BAD", f"{error:.1e}"
    except Exception as failure:
        state, shown = "BAD", f"{type(failure).__name__}: {failure}"
    return {"family": name, "state": state, "error": shown, "seconds": time.perf_counter() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="run the checks whose name this regular expression matches")
    options = parser.parse_args()
    if sw.default_backend() != "gpu":
        print("No GPU was found: the checks run on the CPU.")
    print(f"{sw.devices()[0].device_kind}\n{'family':36} {'':4} {'error':>9} {'seconds':>8}")
    rows = []
    for name, check in checks():
        if not re.search(options.only, name):
            continue
        row = run(name, check)
        rows.append(row)
        print(f"{name:36} {row['state']:4} {row['error']:>9} {row['seconds']:8.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    failed = [row["family"] for row in rows if row["state"] != "ok"]
    print(f"{len(rows) - len(failed)} of {len(rows)} ok" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

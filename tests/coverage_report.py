"""Print the share of covered lines of every folder of shardwise, and write it to a file: the end of `make coverage`.

python tests/coverage_report.py REPORT.json TABLE.txt

The report is that of `coverage json`.
"""

import json
import sys
from collections import Counter
from pathlib import Path, PurePosixPath


def table(report: dict[str, dict[str, dict[str, int]]]) -> str:
    """Return one row per folder, sorted by name, and a row for all: the folder, its lines, and the covered share.

    `report` has a summary, `{"num_statements": 40, "covered_lines": 38}`, for each file.
    """
    lines: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in report.items():
        for folder in (str(PurePosixPath(name).parent), "all"):
            lines[folder] += file["summary"]["num_statements"]
            covered[folder] += file["summary"]["covered_lines"]
    folders = [*sorted(lines.keys() - {"all"}), "all"]
    width = max(map(len, folders))
    rows = [f"{'folder':{width}}  {'lines':>6}  covered"]
    for folder in folders:
        share = covered[folder] / lines[folder] if lines[folder] else 1.0
        rows.append(f"{folder:{width}}  {lines[folder]:6}  {share:7.1%}")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    text = table(json.loads(source.read_text())["files"])
    target.write_text(text)
    print(text, end="")

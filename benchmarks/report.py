"""What a run leaves behind: a table for each suite, and everything as JSON."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure import ROOT
from benchmarks.row import Row

PACKAGES = ("shardwise", "jax", "jaxlib", "numpy")


def table(suite: str, rows: list[Row]) -> Table:
    """The rows of a suite; a ratio above its bar is red, one within it green. Experts have columns where a row does."""
    shown = Table(title=suite, title_justify="left", title_style="bold")
    shown.add_column("what")
    experts = any(row.expert is not None for row in rows)
    for column in ("ours", "JAX", "ratio", "bar", *(("JAX, experts'", "ratio", "bar") if experts else ())):
        shown.add_column(column, justify="right")
    for row in rows:
        cells = [
            row.name,
            _amount(row.ours, row.unit),
            *_beside(row.peer, row.ratio, row.bar, row.within_bar, row.unit),
        ]
        if experts:
            cells += _beside(row.expert, row.expert_ratio, row.expert_bar, row.within_expert_bar, row.unit)
        shown.add_row(*cells)
    return shown


def above(rows: list[Row]) -> list[str]:
    """The names of the rows that are above a bar, with the ratios that are."""
    found = []
    for row in rows:
        ratios = [
            f"{ratio:.3f} to {whose}" if ratio is not None else f"more than {whose} nothing"
            for ratio, within, whose in (
                (row.ratio, row.within_bar, "JAX's"),
                (row.expert_ratio, row.within_expert_bar, "its experts'"),
            )
            if within is False
        ]
        if ratios:
            found.append(f"{row.name}: {', '.join(ratios)}")
    return found


def _beside(value: float | None, ratio: float | None, bar: float | None, within: bool | None, unit: str) -> list[str]:
    """The cells of a peer: its figure, the ratio and the bar."""
    if value is None:
        return ["", "", ""]
    style = {True: "green", False: "red", None: "none"}[within]
    shown = "–" if ratio is None else f"{ratio:.3f}"
    return [_amount(value, unit), f"[{style}]{shown}", "" if bar is None else f"≤ {bar:g}"]


def as_json(suites: dict[str, list[Row]], quick: bool) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "revision": revision(),
        "machine": machine(),
        "rows": [{"suite": suite, **row.as_json()} for suite, rows in suites.items() for row in rows],
    }


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "load": list(os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def revision() -> dict[str, Any] | None:
    """The commit, and whether files differ from it; None outside a git checkout."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return None if commit is None or changes is None else {"commit": commit, "changed_files": bool(changes)}


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _amount(value: float, unit: str) -> str:
    if unit == "seconds":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if value * factor >= 1:
                return f"{value * factor:.3g} {name}"
        return f"{value * 1e6:.3g} µs"
    if unit == "growth":
        return f"{value:.2f}"
    return f"{value:,.0f} B" if unit == "bytes" else f"{value:,.0f}"

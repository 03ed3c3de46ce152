"""The report of a run: a table for each suite, and all rows as JSON."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure import ROOT
from benchmarks.row import Row
from shardwise.version import __version__

PACKAGES = ("jax", "jaxlib", "numpy", "tensorstore", "orbax-checkpoint", "torch")


def table(suite: str, rows: list[Row]) -> Table:
    """Return the table of a suite; ratios above their bar are red. Experts have columns if any row does."""
    result = Table(title=suite, title_justify="left", title_style="bold")
    result.add_column("row")
    experts = any(row.expert is not None for row in rows)
    for column in ("ours", "JAX", "ratio", "bar", *(("JAX + experts", "ratio", "bar") if experts else ())):
        result.add_column(column, justify="right")
    for row in rows:
        cells = [
            row.name,
            _amount(row.ours, row.unit),
            *_comparison_cells(row.peer, row.ratio, row.bar, row.within_bar, row.unit),
        ]
        if experts:
            cells += _comparison_cells(row.expert, row.expert_ratio, row.expert_bar, row.within_expert_bar, row.unit)
        result.add_row(*cells)
    return result


def rows_above_bar(rows: list[Row]) -> list[str]:
    """Return the rows above a bar, with the ratios that exceed it."""
    lines = []
    for row in rows:
        ratios = [
            f"{ratio:.3f} × {whose}" if ratio is not None else f"more than 0 of {whose}"
            for ratio, within, whose in (
                (row.ratio, row.within_bar, "JAX"),
                (row.expert_ratio, row.within_expert_bar, "JAX + experts"),
            )
            if within is False
        ]
        if ratios:
            lines.append(f"{row.name}: {', '.join(ratios)}")
    return lines


def _comparison_cells(
    value: float | None, ratio: float | None, bar: float | None, within: bool | None, unit: str
) -> list[str]:
    """Return the cells of a peer: its figure, the ratio and the bar."""
    if value is None:
        return ["", "", ""]
    style = {True: "green", False: "red", None: "none"}[within]
    text = "–" if ratio is None else f"{ratio:.3f}"
    return [_amount(value, unit), f"[{style}]{text}", "" if bar is None else f"≤ {bar:g}"]


def as_json(suites: dict[str, list[Row]], quick: bool) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "revision": revision(),
        "machine": machine(),
        "rows": [{"suite": suite, **row.as_json()} for suite, rows in suites.items() for row in rows],
    }


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "load": list(os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"shardwise": __version__, **_installed_versions()},
    }


def _installed_versions() -> dict[str, str]:
    """Return the versions of the packages that are measured or needed, if they are installed."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def revision() -> dict[str, Any] | None:
    """Return the commit and whether files differ from it; None outside of a git checkout."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return None if commit is None or changes is None else {"commit": commit, "changed_files": bool(changes)}


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _amount(value: float, unit: str) -> str:
    if unit == "seconds":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if value * factor >= 1:
                return f"{value * factor:.3g} {name}"
        return f"{value * 1e6:.3g} µs"
    if unit == "growth":
        return f"{value:.2f}"
    return f"{value:,.0f} B" if unit == "bytes" else f"{value:,.0f}"

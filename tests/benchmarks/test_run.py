"""The whole benchmark as a smoke run: the shape of its JSON, and the figures that have no noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

pytestmark = [pytest.mark.jax, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmarks") / "report.json"
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


def test_report_says_where_it_was_made(report):
    assert report["quick"] is True
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["versions"].keys() >= {"shardwise", "jax", "jaxlib", "numpy"}
    assert report["revision"] is None or len(report["revision"]["commit"]) >= 40


def test_every_suite_has_rows_of_one_shape(report):
    assert {row["suite"] for row in report["rows"]} == {"startup", "calls", "compile", "step"}
    names = [(row["suite"], row["name"]) for row in report["rows"]]
    assert len(names) == len(set(names))
    for row in report["rows"]:
        assert row.keys() == {"suite", "name", "unit", "ours", "peer", "ratio", "median_ratio", "bar", "within_bar"}
        assert row["unit"] in ("seconds", "bytes", "flops", "collectives", "growth")
        assert row["ours"] > 0 and row["peer"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert (row["median_ratio"] is None) == (row["unit"] != "seconds")


STEPS = ("demo", "demo, even batch", "larger", "larger, even batch", "12 layers")
COUNTS = ("wire bytes", "collectives", "temp memory", "flops")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", COUNTS)
def test_counts_are_at_most_the_peers(report, step, what):
    (row,) = [row for row in report["rows"] if row["suite"] == "step" and row["name"] == f"{step}: {what}"]
    assert row["ours"] <= row["peer"]

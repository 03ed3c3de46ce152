"""A smoke run of all suites: the structure of the JSON, and the counts, which have no noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from benchmarks.run import SUITES  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmarks") / "report.json"
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--json", str(file)]
    command += ["--plot", str(file.with_suffix(".svg"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.with_suffix(".svg").read_text().count("LM FSDP") == 2  # once in a label, once in a comment
    return json.loads(file.read_text())


def test_report_has_machine_and_revision(report):
    assert report["quick"] is True
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["versions"].keys() >= {"shardwise", "jax", "jaxlib", "numpy"}
    assert report["revision"] is None or len(report["revision"]["commit"]) >= 40


def test_every_suite_has_rows_with_all_keys(report):
    assert {row["suite"] for row in report["rows"]} == set(SUITES)
    names = [(row["suite"], row["name"]) for row in report["rows"]]
    assert len(names) == len(set(names))
    for row in report["rows"]:
        plain = {"suite", "name", "unit", "ours", "peer", "ratio", "median_ratio", "bar", "within_bar"}
        assert row.keys() == plain | {"expert", "expert_ratio", "expert_bar", "within_expert_bar"}
        assert row["unit"] in ("seconds", "bytes", "flops", "collectives", "growth")
        assert row["ours"] > 0 or row["unit"] != "seconds"
        assert row["ratio"] == (pytest.approx(row["ours"] / row["peer"]) if row["peer"] else None)
        assert row["expert_ratio"] == (pytest.approx(row["ours"] / row["expert"]) if row["expert"] else None)
        assert (row["median_ratio"] is None) == (row["unit"] != "seconds")


STEPS = ("example", "example, even batch", "larger", "larger, even batch", "12 layers")
COUNTS = ("wire bytes", "collectives", "temp memory", "flops")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", COUNTS)
def test_counts_are_at_most_those_of_jax(report, step, count):
    (row,) = [row for row in report["rows"] if row["suite"] == "step" and row["name"] == f"{step}: {count}"]
    assert row["ours"] <= row["peer"]


def test_no_workload_sends_more_than_jax_or_its_experts(report):
    rows = [row for row in report["rows"] if row["suite"] == "workloads" and row["name"].endswith(": wire bytes")]
    assert len(rows) >= 17
    assert [row["name"] for row in rows if not row["within_bar"] or row["within_expert_bar"] is False] == []


# The wire bytes of the optimal plan, found by an exact search; 5 % more is accepted.
OPTIMAL_MB = {
    "data parallel": 23.87,
    "FSDP": 23.87,
    "tensor parallel": 119.3,
    "data × tensor": 28.07,
    "FSDP × tensor": 28.07,
}


@pytest.mark.parametrize("kind", OPTIMAL_MB)
def test_wire_bytes_of_language_models_are_near_optimal(report, kind):
    (row,) = [row for row in report["rows"] if row["name"] == f"LM {kind}: wire bytes"]
    assert row["ours"] <= 1.05 * OPTIMAL_MB[kind] * 1e6

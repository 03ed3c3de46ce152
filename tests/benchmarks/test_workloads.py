"""The workloads: all libraries compute the same, and wire bytes equal values worked out by hand."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from benchmarks import ours, peer, plot  # noqa: E402
from benchmarks.counts import counts  # noqa: E402
from benchmarks.measure import Effort, Timing, interleaved  # noqa: E402
from benchmarks.patterns import WORKLOADS  # noqa: E402
from benchmarks.programs import EXAMPLE_EVEN  # noqa: E402
from benchmarks.report import rows_above_bar, table  # noqa: E402
from benchmarks.row import Row  # noqa: E402
from benchmarks.transformer import KINDS, Model, workload  # noqa: E402
from benchmarks.workloads import mlp, rows  # noqa: E402

pytestmark = pytest.mark.jax

PATTERNS = {work.name.partition(" along")[0]: work for work in WORKLOADS}
LANGUAGE_MODELS = {
    f"LM {kind}, {training}": workload(kind, model, parallel)
    for kind, parallel in KINDS.items()
    for training, model in {
        "sgd": Model(2).with_training("sgd"),
        "adam, scan": Model(2).with_training("adam", scanned=True),
    }.items()
    if kind != "tensor parallel"  # the mesh axis has more devices than the model has heads
}
QUICK = ("MLP", "x[1:] - x[:-1]", "P('a') → P('b'), 16.8 MB")
ALL = {"MLP": mlp("MLP", EXAMPLE_EVEN), **PATTERNS, **LANGUAGE_MODELS}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ALL])
def test_all_libraries_compute_the_same(name):
    work = ALL[name]
    sides = [(ours, False), (peer, False), *([(peer, True)] if work.pins == "experts" else [])]
    results = []
    for side, expert in sides:
        function, args = work.on(side, expert)
        results.append([np.asarray(x) for x in side.library.tree.leaves(side.library.jit(function)(*args))])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


F32 = 4
BYTES = {
    # Every device receives the 64 column sums of the seven other shards.
    "cumsum": 7 * 64 * F32,
    # Eight candidates and their indices from each of the seven other devices, for 64 rows.
    "top_k 8": 7 * 8 * 64 * 2 * F32,
    # One row from a neighbour.
    "x[1:] - x[:-1]": 64 * F32,
    # Each device sends 7/8 of its eighth; then half of a quarter is all-gathered.
    "P(('a','b')) → P(None,'a'), 16.8 MB": 2048 * 2048 * F32 * (7 / 8 / 8 + 1 / 2 / 4),
    "P('a') → P('b'), 16.8 MB": 2048 * 2048 * F32 / 2,
}


@pytest.mark.parametrize("name", BYTES)
def test_wire_bytes_of_patterns(name):
    work = PATTERNS[name]
    mine, theirs = (counts(side.compiled(*work.on(side))).wire.sent for side in (ours, peer))
    assert mine == BYTES[name]
    assert mine <= theirs


def test_only_experts_pin():
    work = PATTERNS["pipeline by shifting"]
    texts = [peer.lowered(*work.on(peer, expert)).as_text() for expert in (False, True)]
    assert ["sharding_constraint" in text for text in texts] == [False, True]


@pytest.mark.slow
def test_rows_of_a_workload():
    results = rows(PATTERNS["x[1:] - x[:-1]"], (Effort(1, 0.0), Effort(2, 0.0)))
    assert [row.name.rpartition(": ")[2] for row in results] == [
        "wire bytes",
        "collectives",
        "temp memory",
        "flops",
        "compile time",
        "step time",
        "call time",
    ]
    assert all(row.expert is None for row in results)
    assert results[0].ours == BYTES["x[1:] - x[:-1]"] and results[0].within_bar


def test_rows_above_a_bar_are_listed():
    good = Row("good: wire bytes", "bytes", 1.0, 2.0, 1.0, None, 1.0, 1.0)
    worse = Row("worse: wire bytes", "bytes", 3.0, 4.0, 1.0, None, 2.0, 1.0)
    bad = Row("bad: step time", "seconds", 3.0, 2.0, 1.0)
    peer_is_zero = Row("zero: wire bytes", "bytes", 3.0, 0.0, 1.0)
    without_bar = Row("no bar: collectives", "collectives", 3.0, 2.0)
    assert rows_above_bar([good, worse, bad, peer_is_zero, without_bar]) == [
        "worse: wire bytes: 1.500 × JAX + experts",
        "bad: step time: 1.500 × JAX",
        "zero: wire bytes: more than 0 of JAX",
    ]


def test_experts_have_columns_if_any_row_does():
    plain, expert = Row("a", "bytes", 1.0, 2.0), Row("b", "bytes", 1.0, 2.0, expert=1.5)
    assert len(table("t", [plain]).columns) == 5
    assert len(table("t", [plain, expert]).columns) == 8


@pytest.mark.slow
def test_rounds_alternate_and_after_is_called_with_results():
    order = []

    def side(name):
        return lambda: order.append(name) or name

    after_calls = []
    results = interleaved(side("ours"), side("peer"), Effort(2, 0.0), side("expert"), after_calls.append)
    assert order == ["ours", "peer", "expert"] * 2 + ["expert", "peer", "ours"]
    assert after_calls == order
    assert isinstance(results, Timing) and [len(x) for x in (results.ours_rounds, results.expert_rounds)] == [2, 2]
    assert results.expert == min(results.expert_rounds) and interleaved(int, int, Effort(1, 0.0)).expert is None


def test_plot_has_a_bar_for_each_ratio(tmp_path):
    results = [Row("one: wire bytes", "bytes", 1.0, 2.0, expert=4.0), Row("two: wire bytes", "bytes", 3.0, 3.0)]
    plot.wire_ratios([*results, Row("one: flops", "flops", 1.0, 1.0)], tmp_path / "ratios.svg")
    svg = (tmp_path / "ratios.svg").read_text()
    assert all(f"<!--  {ratio} -->" in svg for ratio in ("0.5", "0.25", "1")) and "flops" not in svg

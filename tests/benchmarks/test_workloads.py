"""The workloads: every side computes the same, and what is known by hand of their bytes."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from benchmarks import ours, peer, plot  # noqa: E402
from benchmarks.counts import counts  # noqa: E402
from benchmarks.measure import Effort, Timing, interleaved  # noqa: E402
from benchmarks.patterns import WORKLOADS  # noqa: E402
from benchmarks.programs import EXAMPLE_EVEN  # noqa: E402
from benchmarks.report import above, table  # noqa: E402
from benchmarks.row import Row  # noqa: E402
from benchmarks.transformer import KINDS, Model, workload  # noqa: E402
from benchmarks.workloads import mlp, rows  # noqa: E402

pytestmark = pytest.mark.jax

NAMED = {work.name.partition(" along")[0]: work for work in WORKLOADS}
SMALL = {
    f"LM {kind}, {how}": workload(kind, model, parallel)
    for kind, parallel in KINDS.items()
    for how, model in {"sgd": Model(2).trained("sgd"), "adam, scan": Model(2).trained("adam", scanned=True)}.items()
    if kind != "tensor parallel"  # its axis has more devices than there are heads
}
QUICK = ("MLP", "x[1:] - x[:-1]", "P('a') → P('b'), 16.8 MB")
ALL = {"MLP": mlp("MLP", EXAMPLE_EVEN), **NAMED, **SMALL}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ALL])
def test_every_side_computes_the_same(name):
    work = ALL[name]
    sides = [(ours, False), (peer, False), *([(peer, True)] if work.pins == "experts" else [])]
    found = []
    for side, expert in sides:
        function, args = work.on(side, expert)
        found.append([np.asarray(x) for x in side.library.tree.leaves(side.library.jit(function)(*args))])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


F32 = 4
BYTES = {
    # Of each shard's sums of 64 columns, every device gets the seven others.
    "cumsum": 7 * 64 * F32,
    # Eight candidates and their places from each of the seven others, for 64 rows.
    "top_k 8": 7 * 8 * 64 * 2 * F32,
    # One row from a neighbour.
    "x[1:] - x[:-1]": 64 * F32,
    # Seven of the eight parts of an eighth leave; then one half of a quarter is gathered.
    "P(('a','b')) → P(None,'a'), 16.8 MB": 2048 * 2048 * F32 * (7 / 8 / 8 + 1 / 2 / 4),
    "P('a') → P('b'), 16.8 MB": 2048 * 2048 * F32 / 2,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_movements(name):
    work = NAMED[name]
    mine, theirs = (counts(side.compiled(*work.on(side))).wire.sent for side in (ours, peer))
    assert mine == BYTES[name]
    assert mine <= theirs


def test_an_expert_pins_and_others_do_not():
    work = NAMED["pipeline by shifts"]
    texts = [peer.lowered(*work.on(peer, expert)).as_text() for expert in (False, True)]
    assert ["sharding_constraint" in text for text in texts] == [False, True]


@pytest.mark.slow
def test_rows_of_a_workload():
    found = rows(NAMED["x[1:] - x[:-1]"], (Effort(1, 0.0), Effort(2, 0.0)))
    assert [row.name.rpartition(": ")[2] for row in found] == [
        "wire bytes",
        "collectives",
        "temp memory",
        "flops",
        "compile time",
        "step time",
        "call time",
    ]
    assert all(row.expert is None for row in found)
    assert found[0].ours == BYTES["x[1:] - x[:-1]"] and found[0].within_bar


def test_what_is_above_a_bar_is_told():
    good = Row("good: wire bytes", "bytes", 1.0, 2.0, 1.0, None, 1.0, 1.0)
    worse = Row("worse: wire bytes", "bytes", 3.0, 4.0, 1.0, None, 2.0, 1.0)
    bad = Row("bad: step time", "seconds", 3.0, 2.0, 1.0)
    silent = Row("silent: wire bytes", "bytes", 3.0, 0.0, 1.0)
    watched = Row("watched: collectives", "collectives", 3.0, 2.0)
    assert above([good, worse, bad, silent, watched]) == [
        "worse: wire bytes: 1.500 to its experts'",
        "bad: step time: 1.500 to JAX's",
        "silent: wire bytes: more than JAX's nothing",
    ]


def test_experts_have_columns_where_a_row_does():
    plain, expert = Row("a", "bytes", 1.0, 2.0), Row("b", "bytes", 1.0, 2.0, expert=1.5)
    assert len(table("t", [plain]).columns) == 5
    assert len(table("t", [plain, expert]).columns) == 8


@pytest.mark.slow
def test_rounds_go_back_and_forth_and_waiting_is_not_timed():
    order = []

    def side(name):
        return lambda: order.append(name) or name

    waited = []
    found = interleaved(side("ours"), side("peer"), Effort(2, 0.0), side("expert"), waited.append)
    assert order == ["ours", "peer", "expert"] * 2 + ["expert", "peer", "ours"]
    assert waited == order
    assert isinstance(found, Timing) and [len(x) for x in (found.ours_rounds, found.expert_rounds)] == [2, 2]
    assert found.expert == min(found.expert_rounds) and interleaved(int, int, Effort(1, 0.0)).expert is None


def test_the_plot_has_a_bar_for_each_ratio(tmp_path):
    found = [Row("one: wire bytes", "bytes", 1.0, 2.0, expert=4.0), Row("two: wire bytes", "bytes", 3.0, 3.0)]
    plot.wire_ratios([*found, Row("one: flops", "flops", 1.0, 1.0)], tmp_path / "ratios.svg")
    drawn = (tmp_path / "ratios.svg").read_text()
    assert all(f"<!--  {ratio} -->" in drawn for ratio in ("0.5", "0.25", "1")) and "flops" not in drawn

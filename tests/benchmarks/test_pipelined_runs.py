"""A published run as one program: the bubble by the formula, and the flops that the paper counts."""

from dataclasses import replace

import pytest

from benchmarks.megatron_runs import RUNS
from benchmarks.pipelined_runs import bubble, simulate_run

BY_NAME = {run.name: run for run in RUNS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e", "f"])
def test_a_published_run_with_a_pipeline_is_simulated(name):
    run = BY_NAME[name]
    simulation = simulate_run(run)
    (row,) = simulation.plan.timeline.idle
    assert row.share == pytest.approx(bubble(run))
    assert simulation.plan.mesh.size == run.gpus
    # Recomputation of whole stages has more flops than that of layers, which the paper counts.
    assert 1.0 < simulation.flops * run.gpus / run.flops < 1.1


@pytest.mark.slow
def test_a_small_run_with_a_pipeline_is_simulated():
    run = replace(
        BY_NAME["e"], layers=4, gpus=8, tensor=2, batch=16, micro=1, hidden=512, heads=8, words=512, length=128
    )
    simulation = simulate_run(run)
    assert simulation.plan.timeline.idle[0].share == pytest.approx(bubble(run)) == pytest.approx(1 / 9)
    assert {total.axes for total in simulation.plan.totals()} >= {("tensor",), ("data",), ("pipeline",)}

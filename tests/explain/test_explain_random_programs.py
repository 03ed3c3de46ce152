"""Reports of random programs on random meshes: totals agree with independent counts, and text and page render."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.hardware import CPU, built_in_chips
from shardwise.compiler.report.report import report
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.search.pins import pin_candidates
from shardwise.compiler.search.replan import replan_with_pin
from shardwise.compiler.shardings.spec import pin_of
from shardwise.explain.advise import advise
from shardwise.explain.page import format_page
from shardwise.explain.text import format_report
from tests.explain.test_page import checked
from tests.fuzz.check import random_case
from tests.fuzz.layouts import abstract, partition_spec

BLOCK = 10


def stages_of(case):
    program, captured = case.traced
    mesh = abstract(case.mesh)
    in_specs = (*case.in_specs, *((),) * len(captured))
    pins = [pin_of(partition_spec(s), t.shape, mesh) for s, t in zip(in_specs, program.in_types, strict=True)]
    outs = zip(case.out_specs, program.out_types, strict=True)
    out_pins = [None if s is None else pin_of(partition_spec(s), t.shape, mesh) for s, t in outs]
    return run_stages(program, mesh, pins, out_pins, [n % 2 == 0 for n in range(len(pins))])


def check(case):
    stages = stages_of(case)
    rng = Random(case.seed)
    chip = rng.choice(list(built_in_chips().values()))
    found = report(stages.problem, stages.plan, stages.local, chip, donated=stages.module.aliases)
    steps, alive = found.timeline.steps, found.timeline.alive
    assert found.wire_bytes == pytest.approx(stages.local.counts()["wire bytes"])
    assert sum(step.sent for step in steps) == pytest.approx(found.wire_bytes)
    assert found.communication_seconds == pytest.approx(sum(row.seconds for row in found.collectives))
    assert found.peak_bytes == max((step.held for step in steps), default=found.peak_bytes)
    assert found.peak_bytes == sum(held.bytes for held in alive)
    assert found.peak_bytes >= max(sum(row.bytes for row in rows) for rows in (found.inputs, found.outputs)) * (
        not stages.module.aliases and not _repeats(stages.local.program)
    )
    for row in found.values:
        assert set(row.layout.axes) <= set(found.mesh.axis_names)
    for row in found.collectives:
        assert row.inserted == bool(row.reason)
    advice = advise(stages, chip, [abstract(case.mesh)])
    if advice.layout is not None:
        serial = timeline(stages.local, replace(chip, overlaps=False), donated=stages.module.aliases)
        assert advice.before_seconds == pytest.approx(serial.seconds)  # advice compares times without overlap
        assert advice.sent < found.wire_bytes and advice.seconds < serial.seconds
        assert set(advice.layout.axes) <= set(case.mesh)
    assert found.name in format_report(found, str(advice))
    checked(format_page(found, str(advice)))
    costliest = next((e for e in stages.local.collectives() if e.reason), None)
    if costliest is not None:  # a further constraint does not change the results
        args = [*case.args, *(np.asarray(array) for array in case.traced[1])]
        for value, layout in list(pin_candidates(stages.problem, stages.plan, costliest))[:1]:
            pairs = zip(
                evaluate_shards(replan_with_pin(stages.problem, value, layout, CPU).local, args),
                evaluate_shards(stages.local, args),
                strict=True,
            )
            for got, expected in pairs:
                np.testing.assert_allclose(
                    got.astype(np.complex128), expected.astype(np.complex128), rtol=2e-2, atol=1e-2, equal_nan=True
                )


def _repeats(program):
    return len(set(program.outputs)) < len(program.outputs) or not set(program.outputs).isdisjoint(program.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5040, BLOCK))
def test_random_programs(first):
    for seed in range(first, first + BLOCK):
        case = random_case(seed)
        try:
            with np.errstate(all="ignore"):
                check(case)
        except Exception as error:
            raise AssertionError(str(case)) from error

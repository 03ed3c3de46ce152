"""The idle time of devices, which named scopes state and timelines add up."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.program import Source
from shardwise.compiler.report.idle import IdleRow, idle_of, idle_scope


def test_scope_states_idle_time():
    name = idle_scope("pipeline", "1f1b", "stage", 3, 11)
    assert name == "pipeline[1f1b,stage,idle=3/11]"
    assert idle_of(Source("", 0, "", ("model", name, "layer"))) == IdleRow("1f1b pipeline", "stage", 3, 11)
    assert idle_of(Source("", 0, "", ("pipeline",))) is None


def test_timeline_adds_up_the_steps_of_a_scope():
    def f(x):
        with sw.named_scope(idle_scope("pipeline", "gpipe", "stage", 1, 4)):
            y = x @ x
        return y @ x

    plan = sw.jit(f).lower(np.ones((8, 8), np.float32)).plan
    inside, outside = (step for step in plan.timeline.steps if step.op == "dot")
    assert (inside.idle, outside.idle) == (pytest.approx(inside.seconds / 4), 0)
    (row,) = plan.timeline.idle
    assert (row.what, row.axis, row.share, row.seconds) == ("gpipe pipeline", "stage", 0.25, inside.seconds)
    assert row.idle_seconds == pytest.approx(inside.idle)
    assert "  gpipe pipeline along 'stage': each device is idle in 1 of 4 ticks, 25.0% of" in str(plan)
    page = plan.to_html()
    assert "each device is idle in 1 of 4 ticks" in page and "idle, on each device:" in page and 'class="idle"' in page


def test_a_program_without_a_schedule_has_no_idle_time():
    plan = sw.jit(lambda x: x * 2).lower(np.ones(4, np.float32)).plan
    assert plan.timeline.idle == () and " is idle " not in str(plan) and 'class="idle"' not in plan.to_html()

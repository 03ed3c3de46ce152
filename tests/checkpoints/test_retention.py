"""Retention: a step that any rule keeps is kept."""

import math

from hypothesis import given
from hypothesis import strategies as st

from shardwise.checkpoints.retention import Retention

numbers = st.none() | st.integers(1, 5)


@given(
    steps=st.dictionaries(st.integers(0, 60), st.floats(allow_infinity=False)),
    last=numbers,
    every=numbers,
    best=numbers,
    larger=st.booleans(),
)
def test_retention_keeps_what_any_rule_keeps(steps, last, every, best, larger):
    retention = Retention(last, every, best, None if best is None else "m", larger)
    metrics = {step: {"m": value} for step, value in steps.items()}
    kept = [step for step in sorted(steps) if step not in retention.obsolete(metrics)]
    ordered = sorted(steps)
    if last is every is best is None:
        assert kept == ordered
        return
    assert not ordered or kept[-1] == ordered[-1]
    assert set(ordered[-(last or 1) :]) <= set(kept)
    if every:
        assert all(step in kept for step in ordered if step % every == 0)
    measured = sorted((value for value in steps.values() if not math.isnan(value)), reverse=larger)
    if best:
        values = sorted((steps[step] for step in kept if not math.isnan(steps[step])), reverse=larger)
        assert values[: min(best, len(measured))] == measured[: min(best, len(measured))]

"""Equal layers get equal plans: an unrolled training step sends the bytes of the scanned one."""

import pytest

import shardwise as sw
from benchmarks import gpu_steps
from shardwise.compiler.plan import choose


@pytest.fixture
def exact(monkeypatch):
    """Fail if the elimination fixes variables at a hint."""

    def no_hint(*args):
        raise AssertionError("a table of costs exceeds the limit")

    monkeypatch.setattr(choose._AxisProblem, "_hint", no_hint)
    monkeypatch.setattr(gpu_steps, "LAYERS", 3)


def collectives(kind, scanned, devices):
    """Return the bytes that each device sends, by the kind of collective."""
    step, arguments = gpu_steps.jitted_step(sw, gpu_steps.abstract_mesh(sw, devices, kind), kind, scanned)
    sent = {}
    for row in sw.simulate(step, hardware="h200")(*arguments).plan.collectives:
        sent[row.kind] = sent.get(row.kind, 0) + row.sent
    return sent


@pytest.mark.parametrize("kind", ["FSDP", "ZeRO-1", pytest.param("tensor parallel", marks=pytest.mark.slow)])
def test_unrolled_layers_are_planned_like_scanned_ones(exact, kind):
    assert collectives(kind, False, 8) == pytest.approx(collectives(kind, True, 8))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FSDP", "long sequences, FSDP"])
def test_axes_that_a_reshape_splits_are_planned_exactly(exact, kind):
    unrolled, scanned = (sum(collectives(kind, is_scanned, 64).values()) for is_scanned in (False, True))
    assert unrolled <= 1.005 * scanned

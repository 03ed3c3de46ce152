"""Weights that are gathered before a loop over microbatches are converted first, to the dtype of the compute."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise.compiler import pipeline
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak_bytes
from shardwise.compiler.search.fit_memory import fit_any_in_memory
from shardwise.sharding import PartitionSpec as P
from tests.compiler.search.test_gather_in_loops import accumulated, gathers, planned, scanned

NARROW = jnp.bfloat16


@pytest.fixture
def wide(monkeypatch):
    """Return a function like `planned` without the conversions."""

    def without(*args, **keywords):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "narrow_gathers", SimpleNamespace(narrow_gathers=lambda program: program))
            return planned(*args, **keywords)[0]

    return without


@pytest.mark.parametrize("accumulate", [scanned, pytest.param(accumulated, marks=pytest.mark.slow)])
def test_weights_are_gathered_in_the_dtype_of_the_compute(wide, accumulate):
    program, leaves, expected = planned(accumulate, 3, NARROW)
    assert {(times, dtype) for times, dtype, rank in gathers(program.local) if rank == 3} == {(1, "bfloat16")}
    before = wide(accumulate, 3, NARROW)
    assert {(times, dtype) for times, dtype, rank in gathers(before.local) if rank == 3} == {(1, "float32")}
    assert program.local.sent < before.local.sent
    assert peak_bytes(program.local) < peak_bytes(before.local)
    for actual, reference in zip(evaluate_shards(program.local, leaves), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=0.05, atol=1e-3)


def test_weights_that_are_not_gathered_are_not_converted(wide):
    program, before = planned(scanned, 3, NARROW, spec=P())[0], wide(scanned, 3, NARROW, spec=P())
    assert str(program.local.program) == str(before.local.program)


def test_the_first_form_that_fits_is_taken(wide):
    def held(program):
        return peak_bytes(program.local, chip=program.plan.chip)

    narrow, before = planned(scanned, 3, NARROW)[0], wide(scanned, 3, NARROW)
    assert fit_any_in_memory([narrow, before], held(before)) is narrow
    assert fit_any_in_memory([before, narrow], held(before)) is before
    least = [held(fit_any_in_memory([form], 1)) for form in (narrow, before)]
    assert held(fit_any_in_memory([narrow, before], 1)) == min(least)

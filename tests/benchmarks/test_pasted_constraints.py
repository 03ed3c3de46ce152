"""Constraints of a plan are pasted into a copy of a benchmark's source, which JAX compiles."""

import sys

import pytest

pytest.importorskip("jax")

from benchmarks.inside_jax import programs
from benchmarks.pasted_constraints import paste_constraints

pytestmark = pytest.mark.jax


def program(name):
    return next(work for work in programs() if work.name == name)


def test_jax_applies_the_constraints_of_a_plan():
    before = sys.modules["benchmarks.inside_jax"]
    pasted = paste_constraints(program("heads"))
    assert pasted.applied and not pasted.rejected and not pasted.outside
    assert pasted.wire.sent == pasted.plan.wire_bytes == 4096
    assert pasted.difference() == ""
    assert sys.modules["benchmarks.inside_jax"] is before


def test_a_difference_names_the_collectives():
    pasted = paste_constraints(program("cumsum along a sharded dim (4096×64)"))
    assert pasted.applied == ()
    assert pasted.difference() == "all_gather +915,712"

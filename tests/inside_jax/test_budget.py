"""Budgets of programs of real JAX."""

import pytest

jax = pytest.importorskip("jax")

from shardwise import inside_jax  # noqa: E402
from shardwise.explain.budget import CommBudgetExceeded  # noqa: E402
from shardwise.explain.memory_budget import MemoryBudgetExceeded  # noqa: E402
from tests.inside_jax import steps  # noqa: E402

pytestmark = pytest.mark.jax


def test_every_call_counts_also_after_the_first():
    args = steps.arguments()
    step = inside_jax.jit(steps.step)
    step(*args)
    with inside_jax.comm_budget(all_reduce=4, bytes=steps.BYTES):
        step(*args)
    with (
        pytest.raises(CommBudgetExceeded, match="8 all_reduce, allowed: 4"),
        inside_jax.comm_budget(all_reduce=4),
    ):
        step(*args)
        step(*args)


def test_functions_of_jax_do_not_count():
    with inside_jax.comm_budget(bytes=0):
        jax.jit(steps.step)(*steps.arguments())


def test_a_memory_budget_is_the_peak_of_the_plan():
    args = steps.arguments()
    step = inside_jax.jit(steps.step)
    peak = inside_jax.explain(step)(*args).plan.peak_bytes
    with inside_jax.memory_budget(peak):
        step(*args)
        jax.jit(lambda x: x + 1)(jax.numpy.ones(peak))  # functions of JAX do not count
    with pytest.raises(MemoryBudgetExceeded, match="estimated by the plan"), inside_jax.memory_budget(peak - 1):
        step(*args)

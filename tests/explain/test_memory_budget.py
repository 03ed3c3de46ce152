"""Memory budgets: XLA's figure and the plan's, programs compiled inside and before, decorators, the message."""

import re
from dataclasses import replace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.execute import executor
from shardwise.explain.memory_budget import MemoryBudgetExceeded
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def x(mesh):
    return sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))


@sw.jit
def total(x):
    return jnp.sin(x).sum(0)  # 48 bytes of arguments, 24 of outputs, 24 of temporaries


def test_programs_within_their_budget_pass(x):
    with sw.memory_budget(total.lower(x).compile().memory_analysis().peak_memory_in_bytes):
        total(x)
        total(x)  # programs do not add up


def test_the_error_states_the_excess_the_parts_and_the_largest_values(x):
    with pytest.raises(MemoryBudgetExceeded) as caught, sw.memory_budget(90):
        total(x)
    text = re.sub(r"test_memory_budget.py:\d+", "LINE", str(caught.value))
    assert text.startswith(
        "memory budget exceeded: `total` needs 96 B per device, allowed: 90 B; that is 6 B too much\n"
        "  XLA: 48 B of arguments, 24 B of outputs that reuse no argument, 24 B of temporaries\n"
        "  peak memory: 96 B per device, during sum at LINE\n"
        "        48 B `x`                      f32[2,6]\n"
        "        24 B a result                 f32[6]\n"
        "        24 B sum                      f32[6]           LINE\n"
    )
    assert text.endswith("or set the setting `memory_limit` to the budget, so that the plan gathers later.")
    assert isinstance(caught.value, AssertionError)


def test_programs_that_ran_before_or_are_only_compiled_are_checked(x):
    total(x)
    with pytest.raises(MemoryBudgetExceeded), sw.memory_budget(90):
        total(x)
    with pytest.raises(MemoryBudgetExceeded), sw.memory_budget(90):
        total.lower(x).compile()
    with sw.memory_budget(0):
        sw.explain(total)(x)  # nothing is compiled


def test_donated_arguments_count_once(mesh):
    def donated():
        return sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))

    step = sw.jit(lambda x: x + 1, donate_argnums=0)
    first, second = donated(), donated()
    with sw.memory_budget(48):
        step(first)
    with pytest.raises(MemoryBudgetExceeded, match="needs 96 B per device"), sw.memory_budget(48):
        sw.jit(lambda x: x + 1)(second)


def test_temporaries_of_xla_count_although_the_plan_fits(x, monkeypatch):
    grown = total.lower(x).compile().memory_analysis()
    grown = replace(grown, temp_size_in_bytes=5000)
    monkeypatch.setattr(executor, "known_memory_stats", lambda loaded: grown)
    over = pytest.raises(
        MemoryBudgetExceeded, match=r"5\.0 kB of temporaries(.|\n)*The plan is within the budget, but XLA"
    )
    with over, sw.memory_budget(100):
        total(x)


def test_the_peak_of_the_plan_counts_where_xla_has_no_figures(x, monkeypatch):
    monkeypatch.setattr(executor, "known_memory_stats", lambda loaded: None)
    with sw.memory_budget(96):
        total(x)
    with pytest.raises(MemoryBudgetExceeded, match="estimated by the plan"), sw.memory_budget(95):
        total(x)


def test_a_decorated_function_is_checked_in_every_call(x):
    @sw.memory_budget(90)
    def step():
        return total(x)

    for _ in range(2):
        with pytest.raises(MemoryBudgetExceeded):
            step()


@pytest.mark.parametrize("wrong", [-1, "16 GB", None, float("nan"), True])
def test_wrong_budgets_raise(wrong):
    with pytest.raises(TypeError, match="bytes must be the number that each device may hold, not"):
        sw.memory_budget(wrong)

"""Equations that wait for others that they do not need."""

from dataclasses import replace
from itertools import count

import numpy as np

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.order import order_by_launches
from shardwise.compiler.schedule.wait import Wait, let_wait
from tests.compiler.schedule.local_programs import DOT, local_of

TWO_PRODUCTS = f"""(x: f32[16,16], y: f32[16,16]) {{
  a: f32[16,16] = {DOT} x x
  b: f32[16,16] = tanh y
  c: f32[16,16] = {DOT} b b
  return a, c
}}"""


def test_an_equation_stands_after_those_that_it_waits_for():
    local = local_of(TWO_PRODUCTS)
    first, _, second = local.program.equations
    waited = order_by_launches(let_wait(local.program, [Wait((first,), (second,))], count()), (), count())
    assert [equation.op.name for equation in waited.equations] == ["tanh", "dot", "barrier", "barrier", "dot"]
    assert waited.equations[2].op.launch == waited.equations[3].op.launch is not None
    args = [np.random.default_rng(0).normal(size=(16, 16)) for _ in range(2)]
    scheduled = verify_local(replace(local, program=waited))
    np.testing.assert_array_equal(evaluate_shards(scheduled, args), evaluate_shards(local, args))


def test_equations_that_would_wait_for_each_other_do_not_wait():
    local = local_of(TWO_PRODUCTS)
    first, _, second = local.program.equations
    both = let_wait(local.program, [Wait((first,), (second,)), Wait((second,), (first,))], count())
    ordered = order_by_launches(both, (), count(), local.program)
    assert [equation.op.name for equation in ordered.equations] == ["dot", "tanh", "dot"]


def test_without_an_equation_that_waits_all_that_needs_the_others_does():
    local = local_of(TWO_PRODUCTS)
    first, second, _ = local.program.equations
    waited = order_by_launches(let_wait(local.program, [Wait((), (first, second))], count()), (), count())
    assert [equation.op.name for equation in waited.equations] == ["dot", "tanh", "barrier", "barrier", "dot"]

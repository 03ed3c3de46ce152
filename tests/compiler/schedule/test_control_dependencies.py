"""Control dependencies between equations."""

from dataclasses import replace
from itertools import count

import numpy as np

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from tests.compiler.schedule.local_programs import DOT, local_of

TWO_PRODUCTS = f"""(x: f32[16,16], y: f32[16,16]) {{
  a: f32[16,16] = {DOT} x x
  b: f32[16,16] = tanh y
  c: f32[16,16] = {DOT} b b
  return a, c
}}"""


def test_a_successor_stands_after_its_predecessors():
    local = local_of(TWO_PRODUCTS)
    first, _, second = local.program.equations
    ordered = order_by_dependencies(local.program, [ControlDependency((first,), (second,))], count())
    assert [equation.op.name for equation in ordered.equations] == ["tanh", "dot", "barrier", "barrier", "dot"]
    assert ordered.equations[2].op.launch == ordered.equations[3].op.launch is not None
    args = [np.random.default_rng(0).normal(size=(16, 16)) for _ in range(2)]
    scheduled = verify_local(replace(local, program=ordered))
    np.testing.assert_array_equal(evaluate_shards(scheduled, args), evaluate_shards(local, args))


def test_cyclic_control_dependencies_are_dropped():
    local = local_of(TWO_PRODUCTS)
    first, _, second = local.program.equations
    cyclic = [ControlDependency((first,), (second,)), ControlDependency((second,), (first,))]
    ordered = order_by_dependencies(local.program, cyclic, count())
    assert [equation.op.name for equation in ordered.equations] == ["dot", "tanh", "dot"]


def test_a_program_without_control_dependencies_is_unchanged():
    program = local_of(TWO_PRODUCTS).program
    assert order_by_dependencies(program, [], count()) is program


def test_without_successors_all_that_reads_a_predecessor_waits_for_all():
    local = local_of(TWO_PRODUCTS)
    first, second, _ = local.program.equations
    ordered = order_by_dependencies(local.program, [ControlDependency((), (first, second))], count())
    assert [equation.op.name for equation in ordered.equations] == ["dot", "tanh", "barrier", "barrier", "dot"]

"""Collectives on the critical path, hidden behind products that nothing needs soon."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.independent_products import overlap_independent_products
from tests.compiler.schedule.local_programs import DOT, graph_of

REDUCE = "all_reduce[axes=('data',), reduction=sum]"
# The gradient `v` of a weight is a result; the gradient `t` of an activation is reduced, and needed at once.
BACKWARD = f"""(x: f32[1024,1024], w: f32[1024,1024]) {{
  s: f32[1024,1024] = {DOT} x w
  v: f32[1024,1024] = {DOT} x x
  t: f32[1024,1024] = {DOT} s w
  r: f32[1024,1024] = {REDUCE} t
  u: f32[1024,1024] = tanh r
  z: f32[1024,1024] = {DOT} u w
  return z, v
}}"""


@pytest.mark.slow
def test_an_independent_product_overlaps_with_a_collective_on_the_critical_path():
    graph = graph_of(BACKWARD)
    program = overlap_independent_products(graph, count())
    names = [equation.op.name for equation in program.equations]
    # The independent product is the third one: it waits for the second, and `tanh` waits for it.
    assert names == ["dot", "dot", "barrier", "barrier", "dot", "all_reduce", "barrier", "barrier", "tanh", "dot"]
    local = verify_local(replace(graph.local, program=program))
    args = [np.random.default_rng(0).normal(size=(1024, 1024)) for _ in range(2)]
    np.testing.assert_array_equal(evaluate_shards(local, args), evaluate_shards(graph.local, args))


def test_an_ancestor_of_the_collective_stays_before_it():
    text = BACKWARD.replace(f"v: f32[1024,1024] = {DOT} x x", "v: f32[1024,1024] = tanh x")
    graph = graph_of(text)
    assert overlap_independent_products(graph, count()) is graph.program

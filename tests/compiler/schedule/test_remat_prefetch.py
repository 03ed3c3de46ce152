"""Gathers of rematerialized layers, one layer earlier."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.remat_prefetch import prefetch_for_remat
from tests.compiler.schedule.local_programs import DOT, GATHER, graph_of

BARRIER = "barrier[before_recomputation=True]"
LAYERS = f"""(x: f32[16,16], v: f32[4,16], w: f32[4,16]) {{
  y: f32[16,16] = {BARRIER} x
  a: f32[4,16] = {BARRIER} v
  b: f32[16,16] = {GATHER} a
  z: f32[16,16] = {DOT} y b
  t: f32[16,16] = {BARRIER} z
  c: f32[4,16] = {BARRIER} w
  d: f32[16,16] = {GATHER} c
  r: f32[16,16] = {DOT} t d
  s: f32[16,16] = {BARRIER} r
  e: f32[4,16] = {BARRIER} v
  f: f32[4,16] = tanh e
  g: f32[16,16] = {GATHER} f
  u: f32[16,16] = {DOT} s g
  return u
}}"""
NOT_SENT = f"""(x: f32[16,16], w: f32[16,16]) {{
  y: f32[16,16] = {DOT} x x
  a: f32[16,16] = {BARRIER} y
  b: f32[16,16] = {DOT} a a
  c: f32[16,16] = {BARRIER} b
  d: f32[16,16] = {BARRIER} w
  e: f32[16,16] = {DOT} c d
  return e
}}"""


def barriers(program):
    """Return the shapes that pass through each group of barriers."""
    groups = [group for group in issue_groups(program) if group[0].op.fusion.is_barrier]
    return [[equation.inputs[0].type.shape for equation in group] for group in groups]


def test_gathered_arguments_pass_through_the_barrier_of_the_preceding_layer():
    graph = graph_of(LAYERS)
    assert barriers(graph.program) == [[(16, 16), (4, 16)]] * 3
    advanced = prefetch_for_remat(graph)
    # The first barrier waits for arguments alone: the weight of the second layer would not wait for anything.
    assert barriers(advanced) == [[(16, 16), (4, 16)], [(16, 16), (4, 16), (4, 16)], [(16, 16)]]


def test_the_numpy_meaning_is_the_same():
    graph = graph_of(LAYERS)
    advanced = verify_local(replace(graph.local, program=prefetch_for_remat(graph)))
    args = [np.random.default_rng(0).normal(size=type.shape) for type in graph.program.in_types]
    np.testing.assert_array_equal(evaluate_shards(advanced, args), evaluate_shards(graph.local, args))


def test_the_kernels_are_the_same():
    """`KernelGraph.with_moved_views` relies on it."""
    graph = graph_of(LAYERS)
    advanced = prefetch_for_remat(graph)
    assert advanced is not graph.program
    kernels = KernelGraph.from_program(graph.local, advanced, graph.chip).kernels
    assert [kernel.equations for kernel in kernels] == [kernel.equations for kernel in graph.kernels]


def test_arguments_that_are_not_sent_stay_at_their_barrier():
    graph = graph_of(NOT_SENT)
    assert prefetch_for_remat(graph) == graph.program


@pytest.mark.parametrize(("place", "advanced"), [("  y:", True), ("  t:", True), ("  s:", False)])
def test_weights_that_are_moved_before_the_preceding_barrier_pass_through_it(place, advanced):
    text = LAYERS.replace("w: f32[4,16])", "w: f32[4,16], k: f32[16,4])").replace(
        f"e: f32[4,16] = {BARRIER} v", f"e: f32[4,16] = {BARRIER} m"
    )
    graph = graph_of(text.replace(place, f"  m: f32[4,16] = transpose[permutation=(1, 0)] k\n{place}"))
    second, third = barriers(prefetch_for_remat(graph))[1:]
    assert (len(second), len(third)) == ((3, 1) if advanced else (2, 2))

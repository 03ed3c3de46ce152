"""Launches that complete before collectives on the critical path."""

from dataclasses import replace
from itertools import count

import numpy as np

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.control_dependencies import add_control_dependencies
from shardwise.compiler.schedule.critical_path import complete_before_critical
from shardwise.compiler.schedule.topological_sort import topological_sort
from tests.compiler.schedule.local_programs import DOT, GATHER, graph_of

REDUCE = "all_reduce[axes=('data',), reduction=sum]"
# The all-reduce of the activations is critical, and the gather of `w` is needed right after it.
ACTIVATIONS = f"""(x: f32[2048,2048], w: f32[512,2048]) {{
  y: f32[2048,2048] = {DOT} x x
  r: f32[2048,2048] = {REDUCE} y
  t: f32[2048,2048] = tanh r
  g: f32[2048,2048] = {GATHER} w
  z: f32[2048,2048] = {DOT} t g
  return z
}}"""
# The operand of the gather is the result of another one, at the start.
CHAIN = (
    ACTIVATIONS.replace("w: f32[512,2048]", "w: f32[128,2048]")
    .replace("  y:", f"  v: f32[512,2048] = {GATHER} w\n  y:")
    .replace(f"{GATHER} w\n  z", f"{GATHER} v\n  z")
)


def scheduled(text, launches=()):
    graph = graph_of(text)
    chosen = [[graph.program.equations[n] for n in launch] for launch in launches]
    constrained = add_control_dependencies(graph.program, complete_before_critical(graph, chosen), count())
    program = topological_sort(constrained, chosen, count())
    return graph, verify_local(replace(graph.local, program=program))


def names(local):
    return [equation.op.name for equation in local.program.equations]


def test_a_critical_collective_depends_on_the_launch_whose_deadline_follows_it():
    graph, local = scheduled(ACTIVATIONS)
    assert [equation.op.name for equation in graph.critical_collectives] == ["all_reduce"]
    assert names(local) == ["dot", "all_gather", "barrier", "barrier", "all_reduce", "tanh", "dot"]
    first, second = (equation for equation in local.program.equations if equation.op.name == "barrier")
    assert first.op.launch == second.op.launch is not None


def test_a_launch_that_fits_after_the_critical_collective_does_not_complete_before_it():
    later = f"t: f32[2048,2048] = tanh r\n  a: f32[2048,2048] = {DOT} t t\n  b: f32[2048,2048] = {DOT} a a\n"
    _, local = scheduled(ACTIVATIONS.replace("t: f32[2048,2048] = tanh r\n", later).replace(f"{DOT} t g", f"{DOT} b g"))
    assert "barrier" not in names(local)


def test_a_launch_that_depends_on_the_critical_collective_does_not_complete_before_it():
    sent = "s: f32[512,2048] = slice[start=(0, 0), limit=(512, 2048), stride=(1, 1)] r\n  g:"
    text = ACTIVATIONS.replace("g:", sent, 1).replace(f"{GATHER} w", f"{GATHER} s")
    _, local = scheduled(text)
    assert "barrier" not in names(local)


def test_of_dependent_launches_only_the_last_passes_through_the_barrier():
    _, local = scheduled(CHAIN)
    assert names(local) == ["all_gather", "dot", "all_gather", "barrier", "barrier", "all_reduce", "tanh", "dot"]


def test_the_numpy_meaning_is_the_same():
    for text in (ACTIVATIONS.replace("2048", "64").replace("512", "16"), CHAIN.replace("2048", "64")):
        graph, local = scheduled(text.replace("512", "16").replace("128", "4"))
        args = [np.random.default_rng(0).normal(size=type.shape) for type in local.program.in_types]
        np.testing.assert_array_equal(evaluate_shards(local, args), evaluate_shards(graph.local, args))

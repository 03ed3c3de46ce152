"""Collectives of outputs, overlapped with the remaining compute."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.output_collectives import advance_output_collectives
from tests.compiler.schedule.local_programs import DOT, GATHER, graph_of

PRODUCTS = 12


def updated_weight(products):
    """Return a program that gathers an updated weight, and computes products that do not depend on it."""
    chain = "".join(f"p{n + 1}: f32[512,512] = {DOT} p{n} w\n" for n in range(products))
    return (
        f"(p0: f32[512,512], w: f32[512,512], m: f32[64,64]) {{\n{chain}"
        f"u: f32[64,64] = tanh m\ng: f32[256,64] = {GATHER} u\nreturn p{products}, g\n}}"
    )


@pytest.mark.slow
def test_an_output_is_gathered_before_independent_products():
    graph = graph_of(updated_weight(PRODUCTS))
    program = advance_output_collectives(graph, count())
    names = [equation.op.name for equation in program.equations]
    assert names.index("all_gather") < len(names) - 1 - names[::-1].index("dot")
    local = verify_local(replace(graph.local, program=program))
    args = [np.random.default_rng(0).normal(size=placement.type.shape) for placement in graph.local.inputs]
    for got, wanted in zip(evaluate_shards(local, args), evaluate_shards(graph.local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_without_remaining_compute_the_program_is_unchanged():
    graph = graph_of(updated_weight(0))
    assert advance_output_collectives(graph, count()) is graph.program


def test_what_reads_a_loop_waits_for_a_gather_that_could_complete_during_it():
    """The loop is the last one, and no product follows: the gather would run after it, beside nothing."""
    graph = graph_of(f"""(p: f32[64,64], m: f32[64,64]) {{
      u: f32[64,64] = tanh m
      c: f32[64,64] = scan[program=program body(x: f32[64,64]) {{
        y: f32[64,64] = {DOT} x x
        return y
      }}, length=64, consts=0, carried=1, reverse=False, unroll=1] p
      o: f32[64,64] = tanh c
      g: f32[256,64] = {GATHER} u
      return o, g
    }}""")
    program = advance_output_collectives(graph, count())
    assert [equation.op.name for equation in program.equations] == [
        *("tanh", "scan", "all_gather", "barrier", "barrier", "tanh")
    ]
    local = verify_local(replace(graph.local, program=program))
    args = [np.random.default_rng(0).normal(size=placement.type.shape) * 1e-3 for placement in graph.local.inputs]
    for got, wanted in zip(evaluate_shards(local, args), evaluate_shards(graph.local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)

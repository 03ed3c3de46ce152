"""Collectives of results, beside the compute that is left."""

from dataclasses import replace
from itertools import count

import numpy as np

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.results import send_results_early
from tests.compiler.schedule.local_programs import DOT, GATHER, graph_of

PRODUCTS = 12


def updated_weight(products):
    """Return a program that gathers an updated weight, and computes products that do not need it."""
    chain = "".join(f"p{n + 1}: f32[512,512] = {DOT} p{n} w\n" for n in range(products))
    return (
        f"(p0: f32[512,512], w: f32[512,512], m: f32[64,64]) {{\n{chain}"
        f"u: f32[64,64] = tanh m\ng: f32[256,64] = {GATHER} u\nreturn p{products}, g\n}}"
    )


def test_a_result_is_gathered_beside_products_that_do_not_need_it():
    graph = graph_of(updated_weight(PRODUCTS))
    program = send_results_early(graph, count())
    names = [equation.op.name for equation in program.equations]
    assert names.index("all_gather") < len(names) - 1 - names[::-1].index("dot")
    local = verify_local(replace(graph.local, program=program))
    args = [np.random.default_rng(0).normal(size=placement.type.shape) for placement in graph.local.inputs]
    for got, wanted in zip(evaluate_shards(local, args), evaluate_shards(graph.local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_without_compute_that_is_left_the_order_stays():
    graph = graph_of(updated_weight(0))
    assert send_results_early(graph, count()) is graph.program

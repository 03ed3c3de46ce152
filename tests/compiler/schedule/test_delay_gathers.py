"""Gathers that start shortly before their results are needed."""

from dataclasses import replace
from itertools import count, pairwise

import numpy as np

from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.control_dependencies import order_by_dependencies
from shardwise.compiler.schedule.delay_gathers import delay_gathers, gathers_are_crowded
from tests.compiler.schedule.local_programs import REDUCE, graph_of, layers

# A product takes about as long as the gather of its weight, and one of 16,384 rows ten times as long.
CROWDED = layers(16, rows=2048, size=2048)


def delayed(text):
    graph = graph_of(text)
    dependencies = delay_gathers(graph, [])
    program = order_by_dependencies(graph.program, dependencies, count())
    return graph, dependencies, verify_local(replace(graph.local, program=program))


def test_gathers_are_crowded_if_kernels_take_about_as_long():
    assert gathers_are_crowded(graph_of(CROWDED))
    assert not gathers_are_crowded(graph_of(layers(16, rows=16384, size=2048)))


def test_gathers_are_not_crowded_if_critical_collectives_need_the_links():
    reduced = f"y: f32[2048,2048] = {REDUCE} x16\nz: f32[2048,2048] = {REDUCE} y\nreturn z"
    assert not gathers_are_crowded(graph_of(CROWDED.replace("return x16", reduced)))


def test_each_gather_waits_for_a_product_so_that_the_kernels_after_it_take_as_long():
    graph, dependencies, _ = delayed(CROWDED)
    places = {equation: index for index, equation in enumerate(graph.program.equations)}
    assert dependencies
    for successors, (product,) in dependencies:
        (gather,) = successors
        end = graph.start_of(product) + graph.seconds_of(product)
        assert product.op.is_contraction
        assert places[product] < places[gather]
        assert graph.first_use[gather.outputs[0]] - end >= graph.collective_seconds(gather)


def test_windows_do_not_overlap():
    graph, dependencies, _ = delayed(CROWDED)
    starts = sorted(graph.start_of(product) for _, (product,) in dependencies)
    seconds = graph.collective_seconds(graph.collectives[0])
    assert all(later - earlier >= seconds for earlier, later in pairwise(starts))


def test_the_numpy_meaning_is_the_same():
    small = layers(16, rows=64, size=32)
    graph, dependencies, local = delayed(small)
    assert dependencies
    args = [np.random.default_rng(0).normal(size=type.shape) for type in local.program.in_types]
    np.testing.assert_array_equal(evaluate_shards(local, args), evaluate_shards(graph.local, args))

"""Copies from and to host memory, each beside products that take as long."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.host_copies import hide_host_copies
from tests.compiler.schedule.local_programs import DOT, H200, graph_of

SIZE = 64


def updates(layers, rows, size=SIZE):
    """Return products one after the other, then an update of a state in host memory with each gradient, in reverse."""
    states = "".join(f", m{n}: f32[{size},{size}]" for n in range(layers))
    lines = [f"h{n + 1}: f32[{rows},{size}] = {DOT} h{n} w" for n in range(layers)]
    lines += [f"g{n}: f32[{size},{size}] = dot[contract=((0,), (0,)), batch=((), ())] h{n} h{n}" for n in range(layers)]
    for n in range(layers):
        lines += [f"d{n}: f32[{size},{size}] = copy_to_device m{n}", f"u{n}: f32[{size},{size}] = add d{n} g{n}"]
        lines.append(f"s{n}: f32[{size},{size}] = copy_to_host u{n}")
    results = ", ".join(f"s{n}" for n in range(layers))
    body = "\n".join(lines)
    return f"(h0: f32[{rows},{size}], w: f32[{size},{size}]{states}) {{\n{body}\nreturn h{layers}, {results}\n}}"


def order(program):
    """Return the names of ops in the order of their dependencies, with barriers as one op."""
    return [group[0].op.name for group in issue_groups(program)]


def graph_at(copy_per_product, layers=6, rows=128):
    """Return updates on a chip whose host link copies a state in this part of the time of a product."""
    graph = graph_of(updates(layers, rows))
    seconds = H200.product_time(1, rows, SIZE, SIZE, 0.0, np.dtype(np.float32))
    return replace(graph, chip=replace(H200, host_link=4 * SIZE * SIZE / (copy_per_product * seconds)))


@pytest.mark.parametrize("copy_per_product", [0.1, 1.5, 30.0])
def test_results_stay_and_at_most_two_copies_are_in_flight(copy_per_product):
    graph = graph_at(copy_per_product)
    program = hide_host_copies(graph, count())
    scheduled = verify_local(replace(graph.local, program=program))
    args = [np.random.default_rng(0).normal(size=placement.type.shape) for placement in graph.local.inputs]
    for got, wanted in zip(evaluate_shards(scheduled, args), evaluate_shards(graph.local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)
    # A copy may be in flight from the barrier that its operand passes through to that of its result.
    barriers = [group for group in issue_groups(program) if group[0].op.name == "barrier"]
    passed = {value: number for number, group in enumerate(barriers) for e in group for value in e.outputs}
    awaited = {value: number for number, group in enumerate(barriers) for e in group for value in e.inputs}
    windows = [
        (passed[e.inputs[0]], awaited[e.outputs[0]])
        for e in program.equations
        if e.op.name.startswith("copy_") and e.inputs[0] in passed and e.outputs[0] in awaited
    ]
    assert windows
    assert all(sum(first <= number < last for first, last in windows) <= 2 for number in range(len(barriers)))


def test_short_copies_run_just_before_their_use_and_as_soon_as_they_can():
    graph = graph_at(0.8)
    names = order(hide_host_copies(graph, count()))
    first_product, last_product = names.index("dot"), len(names) - 1 - names[::-1].index("dot")
    to_device = [place for place, name in enumerate(names) if name == "copy_to_device"]
    to_host = [place for place, name in enumerate(names) if name == "copy_to_host"]
    assert all(place > first_product for place in to_device)  # no copy of a state before the first product
    # The copy of the last update but one runs beside the last product, so that only the last one is exposed.
    assert sum(place < last_product for place in to_host) == len(to_host) - 2
    assert sum(place < last_product for place, name in enumerate(names) if name == "add") == len(to_host) - 1


def test_copies_hold_less_device_memory():
    graph = graph_at(0.4, layers=12)
    scheduled = replace(graph.local, program=hide_host_copies(graph, count()))
    state = 4 * SIZE * SIZE
    kept = sum(value.type.nbytes for value in graph.program.inputs[:2])
    held = [value.type.nbytes for equation in graph.program.equations[:12] for value in equation.outputs]
    assert peak(scheduled)[0] <= kept + sum(held) + 4 * state  # of twelve states, a few at a time


def test_programs_without_copies_or_without_products_stay():
    for text in (
        f"(x: f32[8,8]) {{\ny: f32[8,8] = {DOT} x x\nreturn y\n}}",
        "(x: f32[8]) {\ny: f32[8] = copy_to_device x\nreturn y\n}",
    ):
        graph = graph_of(text)
        assert hide_host_copies(graph, count()) is graph.program

"""Which collectives share a launch, in programs that are written by hand."""

from itertools import pairwise

import pytest

from shardwise.compiler.schedule.buckets import buckets
from tests.compiler.schedule.local_programs import DOT, GATHER, H200, REDUCE, SCATTER, gradients, graph_of, layers

OTHER_AXIS = "all_gather[dim=0, axes=('model',), count=2]"


def launches(text, in_own_stage=False):
    """Return the number of collectives in each launch with several."""
    return [len(launch) for launch in buckets(graph_of(text), in_own_stage)]


def two(first, second, size=64):
    """Return the text of two collectives that are ready and needed together."""
    types = {GATHER: f"f32[{4 * size}]", REDUCE: f"f32[{size}]", SCATTER: f"f32[{size // 4}]"}
    types[OTHER_AXIS] = f"f32[{2 * size}]"
    return (
        f"(a: f32[{size}], b: f32[{size}]) {{\nc: {types[first]} = {first} a\nd: {types[second]} = {second} b\n"
        "return c, d\n}"
    )


@pytest.mark.parametrize("op", [GATHER, REDUCE, SCATTER])
def test_short_collectives_that_are_ready_and_needed_together_share_a_launch(op):
    assert launches(two(op, op)) == [2]


@pytest.mark.parametrize("other", [REDUCE, SCATTER, OTHER_AXIS])
def test_collectives_of_different_kinds_or_axes_do_not(other):
    assert launches(two(GATHER, other)) == []


@pytest.mark.parametrize("op", [REDUCE, SCATTER])
def test_reductions_of_two_dtypes_do_not(op):
    text = two(op, op)
    for name, type in (("b", "f32[64]"), ("d", "f32[64]" if op == REDUCE else "f32[16]")):
        text = text.replace(f"{name}: {type}", f"{name}: {type.replace('f32', 'bf16')}")
    assert launches(text) == []


def test_collectives_along_axes_of_one_device_are_no_launches():
    one = "all_gather[dim=0, axes=(), count=1]"
    assert launches(f"(a: f32[8], b: f32[8]) {{\nc: f32[8] = {one} a\nd: f32[8] = {one} b\nreturn c, d\n}}") == []


@pytest.mark.parametrize("between", ["", "tanh "])
def test_a_collective_does_not_share_a_launch_with_its_ancestor(between):
    chain = (
        f"(a: f32[64], b: f32[64]) {{\nc: f32[256] = {GATHER} a\nd: f32[256] = {between or 'barrier '}c\n"
        f"e: f32[1024] = {GATHER} d\nf: f32[256] = {GATHER} b\nreturn e, f\n}}"
    )
    graph = graph_of(chain)
    first, second, other = graph.collectives
    assert buckets(graph) == [[first, other]] or buckets(graph) == [[second, other]]
    direct = f"(a: f32[64]) {{\nb: f32[256] = {GATHER} a\nc: f32[1024] = {GATHER} b\nreturn c\n}}"
    assert launches(direct) == []


def test_the_gathers_of_layers_share_launches_that_hide_behind_the_layers_before():
    graph = graph_of(layers(8, rows=4096))
    found = buckets(graph)
    assert sum(map(len, found)) > 4
    seconds = [graph.local.launch_seconds(launch, H200) for launch in found]
    deadlines = [min(graph.first_use[equation.outputs[0]] for equation in launch) for launch in found]
    for (before, deadline), spent in zip(pairwise(deadlines), seconds[1:], strict=True):
        assert deadline - before >= spent


def test_a_launch_is_at_most_twice_as_long_as_the_longest_collective():
    text = layers(8, rows=4096, size=4096)
    assert launches(text) == [2, 2, 2]
    assert max(launches(text, in_own_stage=True)) > 2  # nothing waits for the first result


def test_gathers_that_nothing_hides_keep_their_own_launches():
    assert launches(layers(8, rows=64, size=4096)) == []


def test_reductions_share_a_launch_if_the_latency_exceeds_the_copying():
    assert sum(launches(gradients(8, size=64))) == 8
    assert launches(gradients(8, size=1024)) == []
    scattered = gradients(8, size=1024, reduce=SCATTER)
    for n in range(8):
        scattered = scattered.replace(f"r{n}: f32[1024,", f"r{n}: f32[256,")
    assert launches(scattered)  # XLA does not copy the operands of a shared reduce-scatter


def test_a_consumer_of_a_launch_ends_it():
    text = (
        f"(a: f32[64,64], b: f32[64,64], x: f32[4096,256]) {{\nc: f32[256,64] = {GATHER} a\n"
        f"d: f32[4096,64] = {DOT} x c\ne: f32[64] = sum[dims=(0,)] d\nf: f32[256] = {GATHER} e\n"
        f"g: f32[256,64] = {GATHER} b\nreturn d, f, g\n}}"
    )
    graph = graph_of(text)
    first, late, other = graph.collectives  # `late` is not ready when the result of `first` is needed
    assert all(not {first, late} <= set(launch) for launch in buckets(graph))
    assert other in {equation for launch in buckets(graph) for equation in launch}

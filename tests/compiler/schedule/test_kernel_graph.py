"""The times of kernels, and the ready times and first uses of values, against sums by hand."""

import pytest

from shardwise.compiler.report.kernel_times import kernel_seconds
from shardwise.compiler.schedule.kernel_graph import KernelGraph, is_movable
from tests.compiler.schedule.local_programs import DOT, GATHER, H200, graph_of, layers

SCAN = f"""(x: f32[64,64], w: f32[5,64,64]) {{
  y: f32[64,64] = scan[program=program body(a: f32[64,64], b: f32[64,64]) {{
    c: f32[64,64] = {DOT} a b
    return c
  }}, length=5, consts=0, carried=1] x w
  return y
}}"""


def test_kernels_run_one_after_the_other_and_collectives_take_no_time():
    graph = graph_of(layers(3))
    product = kernel_seconds(graph.local, graph.kernels[1], H200)
    assert [kernel.root.op.name for kernel in graph.kernels] == ["all_gather", "dot"] * 3
    assert graph.starts == pytest.approx([0, 0, product, product, 2 * product, 2 * product, 3 * product])
    assert graph.seconds == graph.starts[-1]


def test_gathered_arguments_are_ready_at_the_start_and_first_used_by_their_product():
    graph = graph_of(layers(3))
    assert [graph.ready_time[equation.inputs[0]] for equation in graph.collectives] == [0, 0, 0]
    assert [graph.first_use[equation.outputs[0]] for equation in graph.collectives] == graph.starts[1::2]


def test_a_cast_of_an_argument_could_run_at_any_time():
    graph = graph_of(
        f"(x: f32[256,256], w: f32[64,256]) {{\ny: f32[256,256] = {DOT} x x\nv: f32[64,256] = tanh w\n"
        f"g: f32[256,256] = {GATHER} v\nz: f32[256,256] = {DOT} y g\nreturn z\n}}"
    )
    (gather,) = graph.collectives
    assert graph.ready_time[gather.inputs[0]] == 0
    assert is_movable(graph.local, graph.program.equations[1])
    assert [is_movable(graph.local, graph.program.equations[n]) for n in (0, 2)] == [False, False]


def test_a_value_that_passes_through_a_barrier_waits_for_all_that_do():
    graph = graph_of(
        f"(x: f32[256,256], w: f32[64,256]) {{\ny: f32[256,256] = {DOT} x x\nz: f32[256,256] = barrier y\n"
        f"v: f32[64,256] = barrier w\ng: f32[256,256] = {GATHER} v\nreturn z, g\n}}"
    )
    (gather,) = graph.collectives
    assert graph.ready_time[gather.inputs[0]] == graph.seconds > 0


def test_outputs_of_the_program_are_first_used_at_its_end():
    graph = graph_of(layers(2))
    assert graph.first_use[graph.program.outputs[0]] == graph.seconds


def test_a_loop_takes_the_time_of_all_iterations():
    graph = graph_of(SCAN)
    (loop,) = graph.program.equations
    (body,) = loop.op.programs
    assert graph.seconds == pytest.approx(5 * KernelGraph.from_program(graph.local, body, H200).seconds)


def test_a_collective_is_critical_if_the_kernels_before_its_first_use_do_not_hide_it():
    graph = graph_of(layers(8, rows=64, size=4096))
    assert graph.critical_collectives == graph.collectives  # each takes longer than the products before
    assert graph.critical_times == graph.starts[0:-1:2]
    (first,) = graph_of(layers(8, rows=4096)).critical_collectives
    assert first.op.name == "all_gather"


def test_the_longest_gap_is_between_critical_collectives():
    graph = graph_of(layers(3, rows=64, size=4096))
    first, second, third = graph.critical_times
    assert graph.longest_gap(first, third) == pytest.approx(second - first)
    assert graph.longest_gap(first, graph.seconds) == pytest.approx(graph.seconds - third, rel=1e-3)


def test_ancestors_are_transitive_and_pass_through_barriers():
    graph = graph_of(
        f"(a: f32[4], b: f32[4]) {{\nc: f32[16] = {GATHER} a\nd: f32[16] = tanh c\ne: f32[16] = barrier d\n"
        f"f: f32[4] = barrier b\ng: f32[16] = {GATHER} f\nh: f32[64] = {GATHER} e\nreturn g, h\n}}"
    )
    first, through, last = graph.collectives
    assert graph.ancestors == {first: 0, through: graph.bits[first], last: graph.bits[first]}

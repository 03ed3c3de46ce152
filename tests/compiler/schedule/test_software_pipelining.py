"""Software pipelining of loops."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.compiler.control.pipelined_scan import PipelinedScan
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.software_pipelining import software_pipeline
from tests.compiler.schedule.local_programs import DOT, GATHER, REDUCE, local_of

FORWARD = f"""
    g: f32[16,16] = {GATHER} w
    d: f32[16,16] = {DOT} c g
    r: f32[16,16] = tanh d
    return r
"""
# The gradient of a weight is reduced and stacked; the gather of the weight has a short kernel before it.
BACKWARD = f"""
    v: f32[4,16] = sin w
    g: f32[16,16] = {GATHER} v
    d: f32[16,16] = {DOT} c g
    h: f32[16,16] = {DOT} d c
    s: f32[16,16] = {REDUCE} h
    r: f32[16,16] = add s d
    return d, r
"""


def loop(body, stacked="", length=6, **options):
    """Return the text of a loop with a carry of 16×16 and slices of 4×16."""
    given = "".join(f", {name}={value}" for name, value in options.items())
    row, results = (f", t: f32[{length},{stacked}]", "z, t") if stacked else ("", "z")
    return (
        f"(x: f32[16,16], w: f32[{length},4,16]) {{\nz: f32[16,16]{row} = scan[program=program body(c: f32[16,16], "
        f"w: f32[4,16]) {{{body}}}, length={length}, consts=0, carried=1{given}] x w\nreturn {results}\n}}"
    )


def pipelined(text):
    local = local_of(text)
    (equation,) = local.program.equations
    return local, software_pipeline(local, equation)


def names(program):
    return [equation.op.name for equation in program.equations]


def test_gathers_of_slices_are_fetched_one_iteration_earlier():
    _, equation = pipelined(loop(FORWARD))
    assert isinstance(equation.op, PipelinedScan)
    assert [names(program) for program in equation.op.programs] == [["all_gather"], ["dot", "tanh"], []]


def test_reductions_of_rows_are_finished_one_iteration_later_with_what_follows_them():
    _, equation = pipelined(loop(BACKWARD, "16,16"))
    fetch, body, finish = map(names, equation.op.programs)
    assert fetch == ["sin", "all_gather"]
    assert finish == ["all_reduce", "add"]
    assert body == ["dot", "dot"]  # without the sine, which only the gather reads


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("body", "stacked"), [(FORWARD, ""), (BACKWARD, "16,16")])
def test_the_numpy_meaning_is_the_same(body, stacked, reverse):
    local, equation = pipelined(loop(body, stacked, reverse=reverse))
    again = verify_local(replace(local, program=local.program.with_equations([equation])))
    args = [np.random.default_rng(0).normal(size=type.shape) for type in local.program.in_types]
    for got, wanted in zip(evaluate_shards(again, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_rows_that_are_not_reduced_come_before_those_that_are():
    body = f"\n h: f32[16,16] = {DOT} c c\n s: f32[16,16] = {REDUCE} h\n return h, s, h\n"
    text = (
        f"(x: f32[16,16]) {{\nz: f32[16,16], s: f32[5,16,16], h: f32[5,16,16] = scan[program=program body(c: "
        f"f32[16,16]) {{{body}}}, length=5, consts=0, carried=1] x\nreturn z, s, h\n}}"
    )
    local, equation = pipelined(text)
    carry, reduced, kept = local.program.outputs
    assert equation.outputs == (carry, kept, reduced)


GATHERED_CARRY = f"\n h: f32[16,16] = {REDUCE} c\n d: f32[16,16] = {DOT} h h\n return d\n"
REDUCED_CARRY = f"\n h: f32[16,16] = {DOT} c c\n s: f32[16,16] = {REDUCE} h\n return s\n"
NO_COLLECTIVE = f"\n d: f32[16,16] = {DOT} c c\n return d\n"


@pytest.mark.parametrize("body", [GATHERED_CARRY, REDUCED_CARRY, NO_COLLECTIVE])
def test_a_loop_whose_communication_depends_on_the_carry_is_unchanged(body):
    local, equation = pipelined(loop(body))
    assert equation is local.program.equations[0]


@pytest.mark.parametrize("text", [loop(FORWARD, length=3), loop(FORWARD, unroll=2)])
def test_short_and_unrolled_loops_are_unchanged(text):
    local, equation = pipelined(text)
    assert equation is local.program.equations[0]


def test_of_nested_loops_only_the_inner_one_is_pipelined():
    """XLA receives the body of a pipelined loop several times: the module would grow with a power of the depth."""
    inner = loop(FORWARD).partition("\n")[2].partition(" x w")[0]
    body = f"\n g: f32[16,16] = {GATHER} w\n d: f32[16,16] = {DOT} c g\n {inner} d v\n return z\n"
    text = (
        f"(x: f32[16,16], w: f32[5,4,16], u: f32[5,6,4,16]) {{\ny: f32[16,16] = scan[program=program body(c: "
        f"f32[16,16], w: f32[4,16], v: f32[6,4,16]) {{{body}}}, length=5, consts=0, carried=1] x w u\nreturn y\n}}"
    )
    local, equation = pipelined(text)
    assert equation is local.program.equations[0]
    *_, within = equation.op.programs[0].equations
    assert isinstance(software_pipeline(local, within).op, PipelinedScan)

"""A pipelined scan against the scan that it is made of: in numpy, and as XLA runs it."""

from functools import partial

import numpy as np
import pytest

from shardwise.compiler.control.pipelined_scan import PipelinedScan
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.lower.lower import lower
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.transcendental import Sin, Tanh
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from tests.compiler.control.control_programs import program, types
from tests.fuzz.check import run_local


def compute(k, c, x, y, *fetched, finishes=False):
    """Return a new carry and two rows, of a const, a carry and two slices; `finish` computes the last sine."""
    (u,) = fetched or (Sin()(Mul()(k, x)),)
    new = Tanh()(Add()(c, Mul()(u, y)))
    last = Mul()(new, x)
    return [new, Mul()(new, k), last if finishes else Sin()(last)]


BODY = program("body", "f32[3] f32[3] f32[3] f32[3]", compute)
EMPTY = program("none", "f32[3]", lambda k: [])
FETCH = program("fetch", "f32[3] f32[3] f32[3]", lambda k, x, y: [Sin()(Mul()(k, x))])
NO_FETCH = program("fetch", "f32[3] f32[3] f32[3]", lambda k, x, y: [])
FINISH = program("finish", "f32[3] f32[3]", lambda k, p: [Sin()(p)])


def pipelined(length, fetches, finishes, reverse):
    text = "f32[3] f32[3] f32[3] f32[3]" + (" f32[3]" if fetches else "")
    fetch, finish = FETCH if fetches else NO_FETCH, FINISH if finishes else EMPTY
    body = program("body", text, partial(compute, finishes=finishes))
    return PipelinedScan(fetch, body, finish, length, 1, 1, reverse)


def local_of(op, length):
    """Return the program that consists of a loop, on one device."""
    inputs = [Value(type) for type in types(f"f32[3] f32[3] f32[{length},3] f32[{length},3]")]
    outputs = [Value(type) for type in op.out_types(*(value.type for value in inputs))]
    program = Program(tuple(inputs), (Equation(op, inputs, outputs),), tuple(outputs))
    ins, outs = (
        tuple(Placement(type, Layout.replicated(type.ndim)) for type in types)
        for types in (program.in_types, program.out_types)
    )
    return verify_local(LocalProgram(program, AbstractMesh((1,), ("data",)), ins, outs))


def arguments(length):
    rng = np.random.default_rng(length)
    return [np.float32(rng.standard_normal(shape)) for shape in ((3,), (3,), (length, 3), (length, 3))]


@pytest.mark.table(default=12)
@pytest.mark.parametrize(("fetches", "finishes"), [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize(("length", "reverse"), [*((length, False) for length in range(1, 8)), (4, True), (5, True)])
def test_it_computes_what_the_scan_computes(length, fetches, finishes, reverse):
    args = arguments(length)
    local = local_of(pipelined(length, fetches, finishes, reverse), length)
    expected = evaluate_shards(local_of(Scan(BODY, length, 1, 1, reverse), length), args)
    for got, wanted in zip(evaluate_shards(local, args), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(run_local(local, args), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_rows_are_finished_even_if_nothing_is_pending():
    finish = program("finish", "f32[3]", lambda k: [Sin()(k)])
    body = program("body", "f32[3] f32[3] f32[3] f32[3]", lambda k, c, x, y: [Add()(c, x)])
    local, args = local_of(PipelinedScan(NO_FETCH, body, finish, 4, 1, 1), 4), arguments(4)
    for got, wanted in zip(run_local(local, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_xlas_loop_has_two_iterations_and_the_first_and_last_are_outside():
    text = lower(local_of(pipelined(6, fetches=True, finishes=True, reverse=False), 6)).text
    inside, outside = 2, 1 + 1  # the first iteration finishes nothing, the last one fetches nothing
    assert text.count("stablehlo.while") == 1
    assert text.count("stablehlo.tanh") == inside + outside
    assert text.count("stablehlo.sine") == 2 * (inside + outside)


@pytest.mark.parametrize(("length", "after_the_loop"), [(4, 0), (5, 1), (6, 0)])
def test_barriers_separate_iterations(length, after_the_loop):
    text = lower(local_of(pipelined(length, fetches=True, finishes=True, reverse=False), length)).text
    in_the_loop = 1  # between its two iterations
    assert text.count("stablehlo.while") == 1
    assert text.count("stablehlo.optimization_barrier") == in_the_loop + after_the_loop


def test_its_text_parses_back():
    loop = local_of(pipelined(5, fetches=True, finishes=True, reverse=True), 5).program
    assert parse_program(str(loop)) == loop

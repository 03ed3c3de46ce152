"""Programs in parts: the same numpy meaning, the same bytes, and parts that overlap."""

from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest

from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.schedule.emit_parts import emit_parts
from shardwise.compiler.schedule.split_region import RegionFinder
from tests.compiler.schedule.local_programs import DOT, REDUCE, local_of

TWO_LAYERS = f"""(x: f32[8,16], up: f32[16,32], down: f32[32,16]) {{
  h: f32[8,32] = {DOT} x up
  y: f32[8,16] = {DOT} h down
  r: f32[8,16] = {REDUCE} y
  i: f32[8,16] = iota[shape=(8, 16), dim=0, dtype=f32]
  z: f32[8,16] = add r i
  k: f32[8,32] = {DOT} z up
  w: f32[8,16] = {DOT} k down
  v: f32[8,16] = {REDUCE} w
  g: f32[16,32] = dot[contract=((0,), (0,)), batch=((), ())] z k
  return v, g, i
}}"""
# Queries are split along the sequence; keys and values are joined.
ATTENTION = f"""(x: f32[8,16], w: f32[16,16]) {{
  q: f32[8,16] = {DOT} x w
  k: f32[8,16] = {DOT} x w
  s: f32[8,8] = dot[contract=((1,), (1,)), batch=((), ())] q k
  e: f32[8,8] = tanh s
  o: f32[8,16] = {DOT} e k
  y: f32[8,16] = {DOT} o w
  r: f32[8,16] = {REDUCE} y
  p: f32[8,16] = {DOT} r w
  return p
}}"""


def in_parts(text, parts):
    """Return the local program of a text, unchanged and with the region of its first collective in parts."""
    local = local_of(text)
    collectives = dict.fromkeys(local.collectives(), 0)
    uses = local.kernel_groups(local.program).expressions.uses
    region = RegionFinder(local.program, uses, parts, collectives, collectives).region(next(iter(collectives)), ())
    assert region.dims
    return local, verify_local(replace(local, program=emit_parts(local.program, region, collectives, count())))


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("text", [TWO_LAYERS, ATTENTION])
def test_the_numpy_meaning_and_the_bytes_are_the_same(text, parts):
    local, split = in_parts(text, parts)
    rng = np.random.default_rng(0)
    args = [np.float32(rng.integers(-3, 4, type.shape)) / 4 for type in local.program.in_types]
    for got, wanted in zip(evaluate_shards(split, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert split.sent == local.sent
    assert len(split.collectives()) == parts * len(local.collectives())


def test_a_part_is_computed_while_the_one_before_is_reduced():
    _, split = in_parts(TWO_LAYERS, 2)
    kinds = [each.op.name for each in split.program.equations if each.op.name in ("dot", "all_reduce")]
    layer = ["dot", "dot", "all_reduce"]
    assert kinds[: 4 * len(layer)] == 4 * layer


def ancestors(program, equation):
    """Return the equations that an equation waits for. Barriers of a group wait for all their operands."""
    groups = {}
    for each in program.equations:
        if isinstance(each.op, Barrier):
            groups.setdefault(each.op.launch, []).append(each)
    producers, found, stack = program.producers(), set(), [equation]
    while stack:
        each: Equation = stack.pop()
        for other in groups.get(each.op.launch, [each]) if isinstance(each.op, Barrier) else [each]:
            before = [producers[value] for value in other.inputs if value in producers]
            stack += [producer for producer in before if producer not in found]
            found.update(before)
    return found


def test_what_reads_a_part_waits_for_the_part_that_is_computed_before():
    _, split = in_parts(TWO_LAYERS, 2)
    program = split.program
    products = [each for each in program.equations if each.op.name == "dot" and each.inputs[0].type.shape[0] == 4]
    assert len(products) == 8
    for before, product in pairwise(products):
        assert before in ancestors(program, product)
    reductions = split.collectives()
    assert reductions[1] not in ancestors(program, products[5])  # the first part does not wait for the second

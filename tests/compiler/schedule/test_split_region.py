"""Regions of equations that can be computed in parts."""

import pytest

from shardwise.compiler.schedule.split_region import RegionFinder
from tests.compiler.schedule.local_programs import DOT, REDUCE, SCATTER, local_of

LAYER = f"""(x: f32[8,16], up: f32[16,32], down: f32[32,16]) {{
  h: f32[8,32] = {DOT} x up
  t: f32[8,32] = tanh h
  y: f32[8,16] = {DOT} t down
  r: f32[8,16] = {REDUCE} y
  z: f32[8,16] = add r x
  s: f32[8] = sum[dims=(1,)] z
  g: f32[16,16] = dot[contract=((0,), (0,)), batch=((), ())] z z
  return s, g
}}"""


def region_of(text, parts=2, excluded=(), splittable=None):
    """Return the program, the region of its first collective, and the names of the ops in the region."""
    local = local_of(text)
    collectives = local.collectives()
    uses = local.kernel_groups(local.program).expressions.uses
    finder = RegionFinder(local.program, uses, parts, collectives, collectives if splittable is None else splittable)
    seed = collectives[0]
    region = finder.region(seed, [each for each in local.program.equations if each.op.name in excluded])
    inside = [equation.op.name for equation in local.program.equations if equation in region.dims]
    return local.program, region, inside


def test_a_region_reaches_from_the_collective_to_all_that_can_be_split():
    program, region, inside = region_of(LAYER)
    assert inside == ["dot", "tanh", "dot", "all_reduce", "add", "sum"]
    assert {dims.result for dims in region.dims.values()} == {0}
    first = region.dims[program.equations[0]]
    assert first.operands == (0, None)  # all parts read the weight


def test_values_that_are_read_as_a_whole_are_joined():
    program, region, _ = region_of(LAYER)
    z, s = program.equations[4].outputs[0], program.equations[5].outputs[0]
    assert set(region.joined_values(program)) == {z, s}  # the product over rows needs all of z; s is an output


def test_a_region_ends_at_barriers_and_excluded_equations():
    text = LAYER.replace("t: f32[8,32] = tanh h", "t: f32[8,32] = barrier[launch=0] h")
    program, region, _ = region_of(text)
    assert program.equations[1] not in region.dims and program.equations[3] in region.dims
    assert "tanh" not in region_of(LAYER, excluded=("tanh",))[2]


@pytest.mark.parametrize(("parts", "inside"), [(2, 6), (4, 6), (8, 6), (16, 4), (3, 0)])
def test_sizes_must_be_divisible(parts, inside):
    """Into 16 parts, only columns can be split."""
    assert len(region_of(LAYER, parts)[2]) == inside


def test_a_scatter_is_not_split_along_its_dim():
    text = LAYER.replace(f"r: f32[8,16] = {REDUCE}", f"r: f32[2,16] = {SCATTER}")
    text = text.replace("z: f32[8,16] = add r x", "z: f32[2,16] = add r r").replace("s: f32[8]", "s: f32[2]")
    program, region, inside = region_of(text)
    assert inside == ["dot", "reduce_scatter", "add", "dot"]
    assert {region.dims[equation].result for equation in program.equations[2:5]} == {1}


def test_collectives_that_may_not_be_split_end_a_region():
    assert region_of(LAYER, splittable=())[2] == []

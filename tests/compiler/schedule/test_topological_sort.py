"""Topological sort of programs with launches."""

from itertools import count

import pytest

from shardwise.compiler.ir.verify import verify
from shardwise.compiler.schedule.topological_sort import topological_sort
from shardwise.errors import ProgramError
from tests.compiler.schedule.local_programs import GATHER, layers, local_of


def ordered(text, *launches):
    """Return the op names of the ordered program, with the numbers of launches; `launches` are places."""
    program = local_of(text).program
    found = topological_sort(program, [[program.equations[n] for n in launch] for launch in launches], count())
    verify(found)
    return [e.op.name if e.op.launch is None else e.op.launch for e in found.equations]


def test_a_launch_stands_where_its_first_collective_stood():
    assert ordered(layers(4), (2, 6)) == ["all_gather", "dot", 0, 0, "dot", "all_gather", "dot", "dot"]


def test_a_launch_stands_after_its_ancestors():
    text = (
        f"(a: f32[4], b: f32[4]) {{\nc: f32[16] = {GATHER} a\nd: f32[4] = tanh b\ne: f32[4] = sin d\n"
        f"f: f32[16] = {GATHER} e\nreturn c, f\n}}"
    )
    assert ordered(text, (0, 3)) == ["tanh", "sin", 0, 0]


def test_a_program_without_launches_keeps_its_order():
    assert ordered(layers(3)) == ["all_gather", "dot"] * 3


CROSSED = f"""(a: f32[4], b: f32[4]) {{
  c: f32[16] = {GATHER} a
  d: f32[64] = {GATHER} c
  e: f32[16] = {GATHER} b
  f: f32[64] = {GATHER} e
  return d, f
}}"""


def test_of_launches_in_a_cycle_one_is_split():
    assert ordered(CROSSED, (0, 3), (1, 2)) == ["all_gather", 0, 0, "all_gather"]
    assert ordered(CROSSED, (0, 2), (1, 3)) == [0, 0, 1, 1]


def test_a_launch_that_depends_on_itself_is_split():
    assert ordered(CROSSED, (0, 1)) == ["all_gather"] * 4


def test_a_cycle_of_equations_is_an_error():
    program = local_of(CROSSED).program
    first, second, *rest = program.equations
    broken = program.with_equations([first.replace(inputs=second.outputs), second, *rest])
    with pytest.raises(ProgramError, match="equations form a cycle"):
        topological_sort(broken, [], count())

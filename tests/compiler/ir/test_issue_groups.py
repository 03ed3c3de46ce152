"""The equations that XLA receives as one op."""

from shardwise.compiler.ir.issue_groups import issue_groups
from shardwise.compiler.ir.parse import parse_program

GATHER = "all_gather[dim=0, axes=('data',), count=2, launch={}]"


def group_sizes(*lines):
    """Return the number of equations in each group of a program with inputs a to d."""
    text = "\n".join(lines)
    program = parse_program(f"program main(a: f32[2], b: f32[2], c: f32[2], d: f32[2]) {{\n{text}\nreturn a\n}}")
    return [len(group) for group in issue_groups(program)]


def test_other_equations_are_alone():
    assert group_sizes("e: f32[2] = sin a", "f: f32[2] = sin b") == [1, 1]
    assert group_sizes() == []


def test_collectives_of_one_launch_are_a_group():
    gathers = [f"{name}: f32[4] = {GATHER.format(0)} {name[0]}" for name in ("aa", "bb", "cc")]
    assert group_sizes(*gathers) == [3]
    other = f"dd: f32[4] = {GATHER.format(1)} d"
    assert group_sizes(*gathers[:2], other) == [2, 1]
    assert group_sizes(gathers[0], "e: f32[2] = sin d", gathers[1]) == [1, 1, 1]


def test_collectives_without_a_launch_are_alone():
    gathers = [f"{name}: f32[4] = {GATHER.format(None)} {name[0]}" for name in ("aa", "bb")]
    assert group_sizes(*gathers) == [1, 1]


def test_adjacent_barriers_are_a_group_unless_one_passes_on_the_result_of_another():
    assert group_sizes("e: f32[2] = barrier a", "f: f32[2] = barrier b") == [2]
    assert group_sizes("e: f32[2] = barrier a", "f: f32[2] = barrier e", "g: f32[2] = barrier b") == [1, 2]
    assert group_sizes("e: f32[2] = barrier a", "f: f32[2] = barrier[launch=0] b") == [1, 1]

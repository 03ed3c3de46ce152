"""Boundary ops: result types, factor rules, partial sums, padding."""

import pytest

from shardwise.compiler.control.region_boundary import Carry, Enter, Join, Merge, Predicate, Split, Stack, Unstack
from shardwise.compiler.ir.types import parse_type

MATRIX = parse_type("f32[3,4]")


def types(text):
    return [parse_type(word) for word in text.split()]


@pytest.mark.parametrize(
    ("boundary", "operands", "results"),
    [
        (Enter(2), "f32[3,4]", "f32[3,4] f32[3,4]"),
        (Carry(2), "f32[3,4] f32[3,4]", "f32[3,4] f32[3,4]"),
        (Carry(3), "f32[]~ f32[]~", "f32[]~ f32[]~ f32[]~"),
        (Merge(), "i32[2] i32[2] i32[2]", "i32[2]"),
        (Unstack(3), "f32[3,4]", "f32[4]"),
        (Stack(5), "f32[3,4]", "f32[5,3,4]"),
        (Stack(0), "f32[]", "f32[0]"),
        (Predicate(), "bool[]", ""),
        (Predicate(), "i32[]", ""),
        (Split((("x", "y"), ()), (6, 1), ("x", "y")), "f32[12,5]", "f32[2,5]{V:(x,y)}"),
        (Split(((), ("x",)), (1, 5)), "f32[12,5]{V:z}", "f32[12,1]{V:z}"),
        (Join((("x",), ()), (2, 1), ("x", "y")), "f32[12,5]{V:(x,z)}", "f32[24,5]{V:z}"),
    ],
    ids=str,
)
def test_result_types_of_boundary_ops(boundary, operands, results):
    assert list(boundary.out_types(*types(operands))) == types(results)


@pytest.mark.parametrize(
    ("boundary", "operands", "text"),
    [
        (Carry(2), "f32[3] f32[4]", r"f32\[3\] and f32\[4\] should be one type"),
        (Carry(2), "f32[] f32[]~", r"f32\[\] and f32\[\]~ should be one type"),
        (Merge(), "f32[] i32[] f32[]", r"f32\[\] and i32\[\] should be one type"),
        (Unstack(3), "f32[4,3]", r"f32\[4,3\] does not have 3 slices along its first dim"),
        (Unstack(3), "f32[]", r"f32\[\] does not have 3 slices"),
        (Predicate(), "bool[2]", r"bool\[2\] should be a scalar"),
        (Split((("x",),), (4,)), "f32[6]", r"f32\[6\] does not divide into \(4,\) shards"),
        (Join((("x",),), (4,)), "f32[6,2]", r"f32\[6,2\] does not have 1 dims"),
    ],
    ids=str,
)
def test_boundary_ops_reject_wrong_operands(boundary, operands, text):
    with pytest.raises(TypeError, match=text):
        boundary.out_types(*types(operands))


def test_dims_pass_through_boundary_ops():
    same = ((0,), (1,))
    for boundary, operands in ((Enter(2), 1), (Carry(2), 2), (Merge(), 2)):
        rule = boundary.factors(*[MATRIX] * operands)
        assert rule.operands == (same,) * operands and rule.results == (same,) * boundary.results
        assert rule.sizes == (3, 4) and not rule.need_replication and not rule.reduce


def test_a_dim_that_a_region_shards_has_two_factors():
    """The index of the shard, and the position in it, which both sides have."""
    split = Split((("x",), ()), (2, 1)).factors(parse_type("f32[12,5]"))
    assert (split.operands, split.results) == ((((0, 1), (3,)),), (((1,), (3,)),))
    join = Join((("x",), ()), (2, 1)).factors(parse_type("f32[6,5]"))
    assert (join.operands, join.results) == (split.results, split.operands)
    assert split.sizes == join.sizes == (2, 6, 1, 5)


def test_the_dim_of_the_iterations_needs_replication():
    unstack = Unstack(3).factors(MATRIX)
    assert (unstack.operands, unstack.results, unstack.need_replication) == ((((0,), (1,)),), (((1,),),), {0})
    stack = Stack(5).factors(MATRIX)
    assert (stack.operands, stack.results, stack.need_replication) == ((((1,), (2,)),), (((0,), (1,), (2,)),), {0})
    assert stack.sizes == (5, 3, 4)


def test_a_predicate_has_no_factors():
    rule = Predicate().factors(parse_type("bool[]"))
    assert (rule.operands, rule.results) == (((),), ())


def test_carries_stacks_and_merged_results_may_be_partial():
    assert Carry(2).linear_in(MATRIX, MATRIX) == ((0, 1),)
    assert Merge().linear_in(MATRIX, MATRIX, MATRIX) == ((0, 1, 2),)
    assert Stack(2).linear_in(MATRIX) == ((0,),)
    # A program in a loop would reduce what it reads in every iteration, unless its type is unreduced.
    assert all(op.reduces_operands_first for op in (Enter(1), Unstack(3)))
    assert not any(op.reduces_operands_first for op in (Carry(2), Stack(2)))


def test_fill_of_the_padding_after_a_boundary_op():
    assert [boundary.padding([0.5]) for boundary in (Enter(1), Unstack(3), Stack(3))] == [0.5] * 3
    assert Carry(2).padding([0.5, 0.5]) is None  # unknown after an iteration
    assert [Merge().padding(fills) for fills in ([0.5, 0.5], [0.5, 1.5], [0.5, None], [None, None])] == [
        *(0.5, None, None, None)
    ]

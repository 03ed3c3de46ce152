"""Candidates of single equations, compared with those worked out by hand from their factors."""

import numpy as np

from shardwise.compiler.candidates.candidate import candidates, manual_candidates
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.shardings.mesh import AbstractMesh

MATMUL = Dot(((1,), (0,)), ((), ()))  # factors: 0 contracted, 1 rows, 2 columns
MESH = AbstractMesh((4, 2), ("data", "model"))


def texts(op, *types, factors=(), partial=(), scales=()):
    """The candidates on the axis `data` as text, in their order."""
    found = candidates(
        op, tuple(map(parse_type, types)), 1, "data", frozenset(factors), frozenset(partial), frozenset(scales)
    )
    return list(map(str, found))


def all_factors(op, *types):
    rule = op.factors(*map(parse_type, types))
    return range(len(rule.sizes))


def test_without_factors_everything_is_replicated():
    assert texts(Exp(), "f32[8,4]") == ["replicated -> replicated"]


def test_elementwise_ops_are_sharded_along_the_same_dim_of_all_operands():
    factors = all_factors(Add(), "f32[8,4]", "f32[8,4]")
    assert texts(Add(), "f32[8,4]", "f32[8,4]", factors=factors) == [
        "replicated, replicated -> replicated",
        "0, 0 -> 0",
        "1, 1 -> 1",
    ]


def test_contractions_have_no_replicated_candidate_if_they_can_be_sharded():
    types = "f32[8,16]", "f32[16,4]"
    every = texts(MATMUL, *types, factors=all_factors(MATMUL, *types))
    assert sorted(every) == ["0, replicated -> 0", "1, 0 -> sum", "replicated, 1 -> 1"]
    assert texts(MATMUL, *types) == ["replicated, replicated -> replicated"]


def test_reduced_factors_leave_partial_results():
    assert texts(Sum((0,)), "f32[8,4]", factors=all_factors(Sum((0,)), "f32[8,4]"))[1:] == ["0 -> sum", "1 -> 0"]
    assert "0 -> max" in texts(ReduceMax((0,)), "f32[8,4]", factors=all_factors(ReduceMax((0,)), "f32[8,4]"))


def test_partial_operands_pass_through_linear_ops():
    assert texts(Add(), "f32[4]", "f32[4]", partial={0})[-1] == "sum, sum -> sum"
    assert texts(Exp(), "f32[4]", partial={0}) == ["replicated -> replicated"]


def test_partial_operands_are_multiplied_by_finite_constants_only():
    types = "f32[4]", "f32[4]"
    assert texts(Mul(), *types, partial={0}) == ["replicated, replicated -> replicated"]
    assert texts(Mul(), *types, partial={0}, scales={1})[-1] == "sum, replicated -> sum"


def test_integer_partial_sums_are_multiplied_by_any_value():
    assert texts(Mul(), "i32[4]", "i32[4]", partial={0})[-1] == "sum, replicated -> sum"


def test_a_replicated_operand_of_a_sum_may_enter_as_a_term():
    types = (parse_type("f32[4]"), parse_type("f32[4]"))
    *_, last = candidates(Add(), types, 1, "data", frozenset(), frozenset({0}), frozenset())
    assert last.replicated_as_partial
    *_, last = candidates(Mul(), types, 1, "data", frozenset(), frozenset({0}), frozenset({1}))
    assert not last.replicated_as_partial


def test_a_constraint_has_the_state_of_its_pin():
    op = Constrain((("data",), ()), MESH, ())
    assert texts(op, "f32[8,4]", factors={0, 1}) == ["0 -> 0"]
    elsewhere = Constrain((("model",), ()), MESH, ())
    assert texts(elsewhere, "f32[8,4]", factors={0, 1}) == ["replicated -> replicated"]


def test_open_dims_of_a_constraint_may_be_sharded():
    op = Constrain(((), ()), MESH, (1,))
    assert texts(op, "f32[8,4]", factors={0, 1}) == ["replicated -> replicated", "1 -> 1"]


def test_equations_of_a_manual_region_have_one_candidate():
    (only,) = manual_candidates(Add(), (parse_type("f32[4]"),) * 2, 1, "data")
    assert str(only) == "replicated, replicated -> replicated"


def test_equal_candidates_are_one_object():
    types = (parse_type("f32[8]"), parse_type("f32[8]"))
    first, second = (candidates(Add(), types, 1, "data", frozenset({0}), frozenset(), frozenset()) for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert np.size(first) == 2

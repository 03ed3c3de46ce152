"""The attributes by which stages read the rules of ops hold for every op."""

from dataclasses import fields

import numpy as np
import pytest

import shardwise  # noqa: F401  (fills the registry with every op that users can reach)
from shardwise.compiler.ir.op import Op, factor_rule, result_types
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert
from shardwise.compiler.shardings.factors import FactorRule
from tests.compiler.ops.cases import op_cases

ATTRIBUTES = ("is_constant", "is_elementwise", "only_moves", "reduced_dims")
CASTS = {"preduced", "punreduced"}  # in a manual region, whose mesh is the user's
CASES = [case for case in op_cases() if any(getattr(case.op, name) not in (False, None) for name in ATTRIBUTES)]


def test_cases_have_every_attribute():
    for name in ATTRIBUTES:
        assert any(getattr(case.op, name) not in (False, None) for case in CASES), name


def test_an_op_has_the_attributes_that_its_types_say():
    for case in CASES:
        op, types = case.op, tuple(case.types)
        results = result_types(op, types)
        if op.is_constant:
            assert not types, case
        if op.is_elementwise and not isinstance(op, BitcastConvert):  # which may add or remove a last dim
            assert {type.shape for type in types} == {type.shape for type in results}, case
            assert factor_rule(op, types) == FactorRule.pointwise(types[0].shape, len(types)), case
        if op.only_moves:
            assert {type.dtype for type in types} == {type.dtype for type in results}, case
        if op.reduced_dims is not None:
            assert results[0].shape == tuple(np.delete(types[0].shape, op.reduced_dims)), case


@pytest.mark.parametrize("name", sorted(Op.registry))
def test_an_op_on_a_mesh_of_the_user_names_its_function(name):
    cls = Op.registry[name]
    has_mesh = "mesh" in {field.name for field in fields(cls)} and not cls.is_boundary and name not in CASTS
    assert has_mesh == (cls.user_mesh is not Op.user_mesh) == bool(cls.user_function)


def test_only_boundary_ops_have_the_attributes_of_boundaries():
    for name, cls in Op.registry.items():
        flags = (cls.reduces_operands_first, cls.reads_slices, cls.writes_slices, cls.accumulates, cls.leaves_region)
        rules = [getattr(cls, rule) is not getattr(Op, rule) for rule in ("terms_entering", "shard_index_factors")]
        assert cls.is_boundary or not any((*flags, *rules)), name

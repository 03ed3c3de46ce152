"""Dim groups and padding classes of small programs, worked out by hand."""

import itertools

from shardwise.compiler.candidates.dim_groups import dim_groups, padding_classes
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.trace.build import rewrite


def groups(relation, types, body):
    """The groups of more than one dim: dims are written `value.dim`, values are a, b, … in the order of the program."""
    program = rewrite("groups", [parse_type(type) for type in types], body)
    values = [*program.inputs, *(value for equation in program.equations for value in equation.outputs)]
    names = dict(zip(values, "abcdefgh", strict=False))
    sets = relation(program.equations)
    dims = [(value, dim) for value in values for dim in range(value.type.ndim)]
    dims.sort(key=lambda place: sets.find(*place))
    found = [
        {f"{names[value]}.{dim}" for value, dim in group}
        for _, group in itertools.groupby(dims, key=lambda place: sets.find(*place))
    ]
    return sorted((group for group in found if len(group) > 1), key=sorted)


def test_elementwise_ops_join_equal_dims():
    assert groups(dim_groups, ["f32[8,4]", "f32[8,4]"], lambda a, b: [Add()(a, b)]) == [
        {"a.0", "b.0", "c.0"},
        {"a.1", "b.1", "c.1"},
    ]


def test_a_product_joins_contracted_dims():
    product = Dot(((1,), (0,)), ((), ()))
    assert groups(dim_groups, ["f32[8,16]", "f32[16,4]"], lambda a, b: [product(a, b)]) == [
        {"a.0", "c.0"},
        {"a.1", "b.0"},
        {"b.1", "c.1"},
    ]


def test_groups_follow_transposes_and_reductions():
    assert groups(dim_groups, ["f32[8,4]"], lambda a: [Sum((0,))(Transpose((1, 0))(a))]) == [
        {"a.0", "b.1", "c.0"},
        {"a.1", "b.0"},
    ]


def test_a_reshape_joins_dims_with_the_same_leading_factor():
    """32 = (4 · 8): the dim of 32 is led by the 4, so the dim of 8 is alone."""
    assert groups(dim_groups, ["f32[32]"], lambda a: [Reshape((4, 8))(a)]) == [{"a.0", "b.0"}]


def test_padding_classes_do_not_pass_reshapes_that_split_a_dim():
    """A shard of a padded dim of 32 is not a shard of a padded dim of 4."""
    assert groups(padding_classes, ["f32[32]"], lambda a: [Reshape((4, 8))(a)]) == []
    assert groups(padding_classes, ["f32[32]"], lambda a: [Add()(a, a)]) == [{"a.0", "b.0"}]


def test_unrelated_values_stay_apart():
    assert groups(dim_groups, ["f32[8]", "f32[8]"], lambda a, b: [Add()(a, a), Add()(b, b)]) == [
        {"a.0", "c.0"},
        {"b.0", "d.0"},
    ]

"""Padding of unevenly sharded dims: padded sizes, fills and masks, against values worked out by hand."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.partition.padding import (
    LedDim,
    Padding,
    mask_padding,
    resized_fill,
    result_fills,
    rule_of,
    set_fill,
    uneven_leading_factors,
)
from shardwise.compiler.partition.reason import Masking
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import build
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

FOUR = AbstractMesh((4,), ("a",))
ROWS = Layout((("a",), ()))
ZERO, ONE = np.float32(0), np.float32(1)


def planned(function, shapes, choices, mesh=FOUR):
    """Return a sharded program, and a plan with a pair of (operands, results) of layout dims for each equation."""
    program, _ = build(function, [ArrayType(shape, np.float32) for shape in shapes], "f")
    layouts = [tuple(tuple(map(Layout, side)) for side in choice) for choice in choices]
    plan = {e: Choice(*pair) for e, pair in zip(program.equations, layouts, strict=True)}
    produced = {
        value: layout for e, choice in plan.items() for value, layout in zip(e.outputs, choice.results, strict=True)
    }
    problem = layout_problem(program, mesh, [Pin(layout) for layout in layouts[0][0]], [None] * len(program.outputs))
    return problem, LayoutPlan(plan, tuple(produced[value] for value in program.outputs))


def class_sizes(problem, plan):
    """Return the size and padded size of every dim of every value, if they differ."""
    padding = Padding(problem, plan)
    dims = [(value, dim) for value in problem.values for dim in range(value.type.ndim)]
    padded = {(v.type.shape[dim], padding.sizes.get(padding.classes.find(v, dim))) for v, dim in dims}
    return {size: padded_size for size, padded_size in padded if padded_size is not None}


class TestClassSizes:
    def test_an_uneven_dim_is_padded_to_a_multiple_of_its_shards(self):
        problem = planned(lambda x: [Exp()(x)], [(30, 16)], [([(("a",), ())], [(("a",), ())])])
        assert class_sizes(*problem) == {30: 32}

    def test_an_even_or_replicated_dim_is_not_padded(self):
        assert class_sizes(*planned(lambda x: [Exp()(x)], [(8, 3)], [([(("a",), ())], [(("a",), ())])])) == {}

    def test_all_layouts_of_a_class_divide_its_padded_size(self):
        """10 rows over 3 devices in one op and over 2 in the next: the lcm is 6, and 12 is the next multiple."""
        mesh = AbstractMesh((3, 2), ("a", "b"))
        by_a, by_b = [(("a",),)], [(("b",),)]
        problem = planned(lambda x: [Exp()(Exp()(x))], [(10,)], [(by_a, by_a), (by_b, by_b)], mesh)
        assert class_sizes(*problem) == {10: 12}

    def test_the_classes_of_an_unevenly_sharded_reshape_have_the_same_number_of_units(self):
        """30 elements are 6 rows of 5. Over 4 devices 6 rows become 8, so 30 elements become 40, and not 32."""
        problem = planned(lambda x: [x.reshape(6, 5)], [(30,)], [([(("a",),)], [(("a",), ())])])
        assert class_sizes(*problem) == {30: 40, 6: 8}

    def test_classes_that_two_reshapes_link_form_one_group(self):
        """36 elements, 12 rows of 3, and 6 of 2×3, over 5 devices: 6 units become 10, of 6, 2 and 1 elements."""
        mesh = AbstractMesh((5,), ("a",))
        x, rows, blocks = [(("a",),)], [(("a",), ())], [(("a",), (), ())]
        problem = planned(lambda x: [x.reshape(12, 3).reshape(6, 2, 3)], [(36,)], [(x, rows), (rows, blocks)], mesh)
        assert class_sizes(*problem) == {36: 60, 12: 20, 6: 10}

    def test_the_classes_of_an_evenly_sharded_reshape_are_not_linked(self):
        """40 elements as 8 rows of 5 divide evenly over 4 devices."""
        problem = planned(lambda x: [x.reshape(8, 5)], [(40,)], [([(("a",),)], [(("a",), ())])])
        assert class_sizes(*problem) == {}


class TestCompoundDims:
    RULE = FactorRule.reshaping((30,), (6, 5))

    def choice(self, operand, result):
        return Choice((Layout(operand),), (Layout(result),))

    def test_an_unevenly_sharded_leading_factor_has_all_its_dims(self):
        choice = self.choice((("a",),), (("a",), ()))
        assert uneven_leading_factors(self.RULE, choice, FOUR) == {0: [LedDim(0, 0, 4), LedDim(1, 0, 4)]}

    @pytest.mark.parametrize("devices", [1, 2, 3, 6])
    def test_evenly_sharded_leading_factors_are_left_out(self, devices):
        choice = self.choice((("a",),), (("a",), ()))
        assert uneven_leading_factors(self.RULE, choice, AbstractMesh((devices,), ("a",))) == {}

    def test_the_padded_shapes_of_a_reshape_follow_its_factor(self):
        problem, plan = planned(lambda x: [x.reshape(6, 5)], [(30,)], [([(("a",),)], [(("a",), ())])])
        ((equation, choice),) = plan.choices.items()
        padding, rule = Padding(problem, plan), rule_of(equation)
        sizes = padding.factor_sizes(equation, rule, choice)
        assert sizes == {0: 8}
        (x,), (y,) = equation.inputs, equation.outputs
        assert padding.padded_shape(x, rule, rule.operands[0], choice.operands[0], sizes) == (40,)
        assert padding.padded_shape(y, rule, rule.results[0], choice.results[0], sizes) == (8, 5)

    def test_a_reshape_inside_a_program_equals_the_reshape_of_the_array(self):
        problem = planned(lambda x: [x.reshape(6, 5)], [(30,)], [([(("a",),)], [(("a",), ())])])
        (result,) = evaluate_shards(partition(*problem), [np.arange(30)])
        np.testing.assert_array_equal(result, np.arange(30).reshape(6, 5))


class TestFills:
    def fills_of(self, op, *operand_fills, shape=(30, 16), padded=(32, 16)):
        types = [ArrayType(shape, np.float32)] * len(operand_fills)
        equation = Equation(op, [Value(type) for type in types], [Value(types[0])])
        return result_fills(equation, rule_of(equation), 0, operand_fills, padded)

    def test_the_padding_rule_of_the_op_computes_the_fill_of_a_result(self):
        assert self.fills_of(Exp(), (ZERO, None)) == (ONE, None)
        assert self.fills_of(Add(), (ONE, None), (ONE, None)) == (np.float32(2), None)

    def test_an_unknown_fill_stays_unknown(self):
        assert self.fills_of(Exp(), (None, None)) == (None, None)
        assert self.fills_of(Add(), (ONE, None), (None, None)) == (None, None)

    def test_a_dim_without_padding_has_no_fill(self):
        assert self.fills_of(Exp(), (ZERO, ZERO)) == (ONE, None)

    def test_the_corner_of_two_padded_dims_has_one_fill(self):
        assert set_fill((ONE, None, ZERO), 1, ZERO) == (None, ZERO, ZERO)
        assert set_fill((ONE, ONE), 0, None) == (None, None)

    @pytest.mark.parametrize(
        ("fill", "before", "after", "expected"),
        [
            (None, 30, 32, ZERO),  # all of the padding is new
            (ZERO, 31, 32, ZERO),
            (ONE, 31, 32, None),  # ones, then zeros
            (None, 31, 32, None),
            (ONE, 32, 31, ONE),
        ],
    )
    def test_a_dim_grows_by_zeros(self, fill, before, after, expected):
        assert resized_fill(fill, 30, before, after, np.dtype(np.float32)) == expected


class TestMasks:
    def test_a_mask_replaces_all_elements_past_the_end(self):
        """5 elements over 4 devices: shards of 2, of which the third is half padding and the last only padding."""
        layout = Layout((("a",),))
        inside = Placement(ArrayType((5,), np.float32), layout)
        padded = Placement(ArrayType((8,), np.float32), layout)

        def mask(x):
            return [mask_padding(x, layout, (8,), FOUR, 0, 5, np.float32(7))]

        program, _ = build(mask, [ArrayType((2,), np.float32)], "mask")
        (result,) = evaluate_shards(verify_local(LocalProgram(program, FOUR, (inside,), (padded,))), [np.arange(5)])
        np.testing.assert_array_equal(result, [0, 1, 2, 3, 4, 7, 7, 7])

    def masks(self, function):
        """Return the reasons of all masks in the program of 30 rows over 4 devices."""
        x = sw.ShapeDtypeStruct((30, 16), np.float32, sharding=NamedSharding(FOUR, P("a")))
        local = sw.jit(function).lower(x)._prepared.stages.local
        selects = [equation for equation in local.program.equations if equation.op.name == "select"]
        assert all(isinstance(equation.reason, Masking) for equation in selects)
        return [(equation.reason.dim, equation.reason.fill) for equation in selects]

    def test_two_sums_of_one_value_share_a_mask(self):
        assert self.masks(lambda x: (x.sum(0), x.sum())) == [(0, 0)]

    def test_ops_that_keep_the_neutral_element_need_no_second_mask(self):
        assert self.masks(lambda x: (x.sum(0), (x * 3).sum(0))) == [(0, 0)]

    def test_ops_that_change_the_fill_need_a_second_mask(self):
        assert self.masks(lambda x: (x.sum(0), (x + 1).sum(0))) == [(0, 0), (0, 0)]

    def test_another_reduction_needs_its_own_neutral_element(self):
        assert self.masks(lambda x: (x.sum(0), x.max(0))) == [(0, 0), (0, -np.inf)]

    def test_a_reduction_along_an_even_dim_needs_no_mask(self):
        assert self.masks(lambda x: x.sum(1)) == []

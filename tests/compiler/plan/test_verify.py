"""A plan that breaks a rule is refused, by name."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.plan.verify import verify_plan
from shardwise.compiler.propagate.propagate import propagate
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import build
from shardwise.errors import ProgramError

MESH = AbstractMesh((2, 2), ("a", "b"))
WHOLE, ROWS, COLUMNS = Layout(((), ())), Layout((("a",), ())), Layout(((), ("a",)))
TWICE = Layout((("a",), ("a",)))
BOTH, SWAPPED = Layout((("a", "b"), ())), Layout((("b", "a"), ()))
TERM = Layout(((), ()), (("a", SUM),))


def planned():
    """exp, a sum of two, a product, a reshape, a constraint: with the plan that was chosen."""

    def function(x, y):
        product = (Exp()(x) + y) @ y
        return [Constrain(ROWS.dims, MESH)(product), product.reshape((2, 2, 4))]

    types = [ArrayType((4, 4), np.float32)] * 2
    program, _ = build(function, types, "planned")
    sharded = propagate(program, MESH, [Pin(ROWS), Pin(WHOLE)], [Pin(ROWS), None])
    return sharded, choose(sharded)


BROKEN = {
    "exp takes a term of a sum": ("exp", Choice((TERM,), (TERM,)), "in which it is not linear"),
    "an op makes a term of a sum": ("exp", Choice((WHOLE,), (TERM,)), "its result is"),
    "a sum is forgotten": ("dot", Choice((COLUMNS, ROWS), (WHOLE,)), "its result is"),
    "one operand of an addition is a term": ("add", Choice((TERM, WHOLE), (TERM,)), "in which it is not linear"),
    "both operands of a product are terms": ("dot", Choice((TERM, TERM), (TERM,)), "in which it is not linear"),
    "operands lie differently": ("add", Choice((ROWS, COLUMNS), (ROWS,)), "one factor is cut by"),
    "axes stand in another order": ("add", Choice((BOTH, SWAPPED), (BOTH,)), "one factor is cut by"),
    "an axis cuts two dims": ("exp", Choice((TWICE,), (TWICE,)), "uses an axis twice"),
    "a dim within another is cut": (
        "reshape",
        Choice((WHOLE,), (Layout(((), ("a",), ())),)),
        "one factor is cut by",
    ),
    "a factor of 2 is cut into 4": (
        "reshape",
        Choice((BOTH,), (Layout((("a", "b"), (), ())),)),
        "one factor is cut by",
    ),
    "a constraint is overruled": ("constrain", Choice((COLUMNS,), (COLUMNS,)), r"pinned to P\('a', None\)"),
}


def test_the_chosen_plan_keeps_the_rules():
    sharded, plan = planned()
    assert verify_plan(sharded, plan) is plan


@pytest.mark.parametrize("name", BROKEN)
def test_a_choice_that_breaks_a_rule_is_refused(name):
    op, choice, message = BROKEN[name]
    sharded, plan = planned()
    (equation,) = (e for e in sharded.program.equations if e.op.name == op)
    with pytest.raises(ProgramError, match=message):
        verify_plan(sharded, LayoutPlan({**plan.choices, equation: choice}, plan.outputs))


def test_an_output_that_leaves_as_a_term_is_refused():
    sharded, plan = planned()
    with pytest.raises(ProgramError, match="output 1: leaves as"):
        verify_plan(sharded, replace(plan, outputs=(plan.outputs[0], Layout(((), (), ()), (("a", SUM),)))))


def test_an_output_elsewhere_than_pinned_is_refused():
    sharded, plan = planned()
    with pytest.raises(ProgramError, match="output 0: pinned to"):
        verify_plan(sharded, replace(plan, outputs=(COLUMNS, plan.outputs[1])))

"""verify_plan rejects plans that break an invariant, and names the equation."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.plan.verify import verify_plan
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import build
from shardwise.errors import ProgramError

MESH = AbstractMesh((2, 2), ("a", "b"))
REPLICATED, ROWS, COLUMNS = Layout(((), ())), Layout((("a",), ())), Layout(((), ("a",)))
TWICE = Layout((("a",), ("a",)))
BOTH, SWAPPED = Layout((("a", "b"), ())), Layout((("b", "a"), ()))
PARTIAL = Layout(((), ()), (("a", SUM),))


def planned():
    """Return a program of exp, add, dot, reshape and constrain, and its chosen plan."""

    def function(x, y):
        product = (Exp()(x) + y) @ y
        return [Constrain(ROWS.dims, MESH)(product), product.reshape((2, 2, 4))]

    types = [ArrayType((4, 4), np.float32)] * 2
    program, _ = build(function, types, "planned")
    problem = layout_problem(program, MESH, [Pin(ROWS), Pin(REPLICATED)], [Pin(ROWS), None])
    return problem, choose(problem)


BROKEN = {
    "exp has a partial operand": ("exp", Choice((PARTIAL,), (PARTIAL,)), "but the op is not linear in them"),
    "an op without a reduction has a partial result": ("exp", Choice((REPLICATED,), (PARTIAL,)), "the result is"),
    "a reduced result is not partial": ("dot", Choice((COLUMNS, ROWS), (REPLICATED,)), "the result is"),
    "one operand of an addition is partial": (
        "add",
        Choice((PARTIAL, REPLICATED), (PARTIAL,)),
        "but the op is not linear in them",
    ),
    "both operands of a product are partial": (
        "dot",
        Choice((PARTIAL, PARTIAL), (PARTIAL,)),
        "but the op is not linear in them",
    ),
    "operands have different layouts": ("add", Choice((ROWS, COLUMNS), (ROWS,)), "one factor is sharded along"),
    "axes have another order": ("add", Choice((BOTH, SWAPPED), (BOTH,)), "one factor is sharded along"),
    "an axis shards two dims": ("exp", Choice((TWICE,), (TWICE,)), "uses an axis twice"),
    "a minor factor is sharded": (
        "reshape",
        Choice((REPLICATED,), (Layout(((), ("a",), ())),)),
        "one factor is sharded along",
    ),
    "a factor of 2 is sharded into 4": (
        "reshape",
        Choice((BOTH,), (Layout((("a", "b"), (), ())),)),
        "one factor is sharded along",
    ),
    "a constraint is overruled": ("constrain", Choice((COLUMNS,), (COLUMNS,)), r"pinned to P\('a', None\)"),
}


def test_the_chosen_plan_is_valid():
    problem, plan = planned()
    assert verify_plan(problem, plan) is plan


@pytest.mark.parametrize("name", BROKEN)
def test_a_choice_that_breaks_an_invariant_raises(name):
    op, choice, message = BROKEN[name]
    problem, plan = planned()
    (equation,) = (e for e in problem.program.equations if e.op.name == op)
    with pytest.raises(ProgramError, match=message):
        verify_plan(problem, LayoutPlan({**plan.choices, equation: choice}, plan.outputs))


def test_a_partial_output_raises():
    problem, plan = planned()
    with pytest.raises(ProgramError, match="output 1: is partial"):
        verify_plan(problem, replace(plan, outputs=(plan.outputs[0], Layout(((), (), ()), (("a", SUM),)))))


def test_an_output_that_differs_from_its_pin_raises():
    problem, plan = planned()
    with pytest.raises(ProgramError, match="output 0: pinned to"):
        verify_plan(problem, replace(plan, outputs=(COLUMNS, plan.outputs[1])))

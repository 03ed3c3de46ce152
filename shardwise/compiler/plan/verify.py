"""The rules of a plan: pieces line up inside every equation, sums stay where they are linear, pins are kept."""

from collections.abc import Sequence

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.propagate.candidates import PARTIAL_SUM
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


def verify_plan(sharded: ShardedProgram, plan: LayoutPlan) -> LayoutPlan:
    """`plan`, if it keeps the rules; else a ProgramError that names the equation."""
    right: dict[tuple[int, ...], FactorRule] = {}  # rules and layouts that keep it: layer after layer has the same
    for number, equation in enumerate(sharded.planned):
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        choice = plan.choices[equation]
        key = (id(rule), *map(id, choice.operands), *map(id, choice.results))
        wrong = (
            ("" if key in right else _cut_unevenly(rule, choice, sharded.mesh))
            or _partial_wrongly(equation, rule, choice)
            or (_overruled(choice.results[0], equation.op.pin) if isinstance(equation.op, Constrain) else "")
        )
        if wrong:
            where = f"{sharded.program.name}, equation {number} ({equation.op.name}, {equation.source})"
            raise ProgramError(f"{where}: {wrong}")
        right[key] = rule
    for number, (layout, pin) in enumerate(zip(plan.outputs, sharded.out_pins, strict=True)):
        wrong = f"leaves as {layout}" if layout.partial else _overruled(layout, pin) if pin else ""
        if wrong:
            raise ProgramError(f"{sharded.program.name}, output {number}: {wrong}")
    return plan


def _cut_unevenly(rule: FactorRule, choice: Choice, mesh: AbstractMesh) -> str:
    """Every dim that has a factor is cut by the same axes, in one order; a dim of several, into contiguous pieces."""
    axes_of: dict[int, tuple[str, ...]] = {}

    def check(layouts: Sequence[Layout], tables: Sequence[Dims]) -> str:
        for layout, dims in zip(layouts, tables, strict=True):
            if len(set(layout.axes)) != len(layout.axes):
                return f"{layout} uses an axis twice"
            for factors, axes in zip(dims, layout.dims, strict=True):
                if axes and (not factors or factors[0] in rule.need_replication):
                    return f"{layout} cuts a dim that must stay whole"
                for factor, mine in zip(factors, rule.assign_axes(factors, axes, mesh.shape), strict=True):
                    if axes_of.setdefault(factor, mine) != mine:
                        return f"one factor is cut by {axes_of[factor]} and by {mine}"
        return ""

    wrong = check(choice.operands, rule.operands) or check(choice.results, rule.results)
    if not wrong and not rule.allows_sharding({factor: mesh.extent(axes) for factor, axes in axes_of.items()}):
        wrong = (
            f"{choice.operands} -> {choice.results} cuts dims of several factors into pieces that are not contiguous"
        )
    return wrong


def _partial_wrongly(equation: Equation, rule: FactorRule, choice: Choice) -> str:
    """Terms of a sum enter only operands in which the op is linear; they leave where they entered or were made."""
    linear = [set(places) for places in equation.op.linear_in(*(value.type for value in equation.inputs))]
    made = {
        (axis, rule.reduce[factors[0]])
        for layout, dims in zip(choice.operands, rule.operands, strict=True)
        for factors, axes in zip(dims, layout.dims, strict=True)
        for axis in axes
        if factors[0] in rule.reduce
    }
    entered = {term for layout in choice.operands for term in layout.partial}
    for term in sorted(entered):
        places = {place for place, layout in enumerate(choice.operands) if term in layout.partial}
        added = term in made and places <= rule.addends
        if term[1] != PARTIAL_SUM or not (places in linear or added):
            return f"operands {sorted(places)} are terms of a {term[1]} over {term[0]!r}, in which it is not linear"
    for layout in choice.results:
        if set(layout.partial) != made | entered:
            return f"its result is {layout}, but its terms are {sorted(made | entered)}"
    return ""


def _overruled(layout: Layout, pin: Pin) -> str:
    for dim, axes in enumerate(pin.layout.dims):
        if layout.dims[dim] != axes and dim not in pin.open_dims:
            return f"pinned to {pin.layout}, planned as {layout}"
    return ""

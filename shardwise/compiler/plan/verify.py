"""The invariants of a plan: shards line up in every equation, partial sums flow through linear ops only, pins hold."""

from collections.abc import Sequence

from shardwise.compiler.candidates.candidate import PARTIAL_MAX, PARTIAL_SUM
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


def verify_plan(problem: LayoutProblem, plan: LayoutPlan) -> LayoutPlan:
    """Check the invariants of a plan.

    Returns:
        The plan.

    Raises:
        ProgramError: if an invariant is broken; the message names the equation.
    """
    verified: dict[tuple[int, ...], FactorRule] = {}  # layers repeat the same rules and layouts, which are checked once
    for index, equation in enumerate(problem.planned):
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        choice = plan.choices[equation]
        key = (id(rule), *map(id, choice.operands), *map(id, choice.results))
        message = (
            ("" if key in verified else _factor_error(rule, choice, problem.mesh))
            or _partial_error(equation, rule, choice)
            or (_constraint_error(choice.results[0], equation.op, pin) if (pin := equation.op.constraint) else "")
        )
        if message:
            where = f"{problem.program.name}, equation {index} ({equation.op.name}, {equation.source})"
            raise ProgramError(f"{where}: {message}")
        verified[key] = rule
    for index, (layout, pin) in enumerate(zip(plan.outputs, problem.out_pins, strict=True)):
        pinned_terms = pin.layout.partial if pin else ()
        message = f"is partial: {layout}" if layout.partial != pinned_terms else _pin_error(layout, pin) if pin else ""
        if message:
            raise ProgramError(f"{problem.program.name}, output {index}: {message}")
    return plan


def _factor_error(rule: FactorRule, choice: Choice, mesh: AbstractMesh) -> str:
    """Return why the layouts do not match the factor rule; empty if they match.

    All dims with a factor are sharded along the same axes, in one order. The shards of compound dims are contiguous.
    """
    axes_of: dict[int, tuple[str, ...]] = {}

    def check(layouts: Sequence[Layout], tables: Sequence[Dims]) -> str:
        for layout, dims in zip(layouts, tables, strict=True):
            if len(set(layout.axes)) != len(layout.axes):
                return f"{layout} uses an axis twice"
            for factors, axes in zip(dims, layout.dims, strict=True):
                if axes and (not factors or factors[0] in rule.need_replication):
                    return f"{layout} shards a dim that needs replication"
                # An axis of one device shards nothing, so it may belong to any factor of a compound dim.
                sharding = tuple(axis for axis in axes if mesh.shape[axis] > 1)
                for factor, assigned in zip(factors, rule.assign_axes(factors, sharding, mesh.shape), strict=True):
                    if axes_of.setdefault(factor, assigned) != assigned:
                        return f"one factor is sharded along {axes_of[factor]} and along {assigned}"
        return ""

    message = check(choice.operands, rule.operands) or check(choice.results, rule.results)
    if not message and not rule.allows_sharding({factor: mesh.extent(axes) for factor, axes in axes_of.items()}):
        message = f"{choice.operands} -> {choice.results} shards compound dims into shards that are not contiguous"
    return message


def _partial_error(equation: Equation, rule: FactorRule, choice: Choice) -> str:
    """Return why a partial operand or result is wrong; empty if none is.

    Only operands in which the op is linear may be partial sums, and only operands that it moves partial maxima. Results
    are partial if such an operand is, or if a reduction factor is sharded that they do not have.
    """
    types = [value.type for value in equation.inputs]
    passing = {
        PARTIAL_SUM: [set(operands) for operands in equation.op.linear_in(*types)],
        PARTIAL_MAX: [set(operands) for operands in equation.op.maxima_in(*types)],
    }
    factor_of = {
        (axis, rule.reduce[factors[0]]): factors[0]
        for layout, dims in zip(choice.operands, rule.operands, strict=True)
        for factors, axes in zip(dims, layout.dims, strict=True)
        for axis in axes
        if factors[0] in rule.reduce
    }
    entering = {term for layout in choice.operands for term in layout.partial}
    entering -= {(axis, PARTIAL_SUM) for axis in equation.op.terms_entering}  # the shards of a manual region
    reduced = {*factor_of, *((axis, PARTIAL_SUM) for axis in equation.op.terms_leaving)}
    for axis, reduction in sorted(entering, key=str):
        numbers = {n for n, layout in enumerate(choice.operands) if (axis, reduction) in layout.partial}
        are_addends = (axis, reduction) in reduced and numbers <= rule.addends
        if not (numbers in passing.get(reduction, ()) or are_addends):
            return (
                f"operands {sorted(numbers)} are partial ({reduction} over {axis!r}), but the op is not linear in them"
            )
    for layout, dims in zip(choice.results, rule.results, strict=True):
        kept = {factor for factors in dims for factor in factors}
        expected = {term for term in reduced | entering if factor_of.get(term) not in kept}
        if set(layout.partial) != expected:
            return f"the result is {layout}, but is partial over {sorted(expected, key=str)}"
    return ""


def _constraint_error(layout: Layout, op: Op, pin: Pin) -> str:
    """Return an error if a layout differs from a constraint's pin along the axes that the constraint pins, else ""."""

    def along_pinned_axes(layout: Layout) -> Layout:
        return Layout(tuple(tuple(axis for axis in axes if op.pins(axis)) for axes in layout.dims), layout.partial)

    return _pin_error(along_pinned_axes(layout), Pin(along_pinned_axes(pin.layout), pin.open_dims))


def _pin_error(layout: Layout, pin: Pin) -> str:
    """Return an error if a layout differs from a pin in a closed dim, else ""."""
    for dim, axes in enumerate(pin.layout.dims):
        if layout.dims[dim] != axes and dim not in pin.open_dims:
            return f"pinned to {pin.layout}, planned as {layout}"
    return ""

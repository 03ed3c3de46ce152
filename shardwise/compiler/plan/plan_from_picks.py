"""plan_from_picks: the plan that the candidates of all equations on all mesh axes determine."""

from shardwise.base.caches import registered_cache
from shardwise.compiler.candidates.candidate import Candidate, State
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.plan.output_layout import output_layout
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.layout import Layout

Picks = dict[str, dict[Equation, Candidate]]  # for each axis, the chosen candidate of each equation


def plan_from_picks(problem: LayoutProblem, picks: Picks, chip: Chip = CPU) -> LayoutPlan:
    """Return the plan that picks determine. The axes of a dim are ordered as in an operand, if possible."""
    layouts: dict[Value, Layout] = {value: pin.layout for value, pin in problem.pinned.items()}
    out_layouts = {v: pin.layout for v, pin in zip(problem.program.outputs, problem.out_pins, strict=True) if pin}
    axes = problem.mesh.axis_names
    choices = {}
    for equation in problem.planned:
        picked = {axis: picks[axis][equation] for axis in axes}
        order = _order(equation, picked, layouts, out_layouts, axes)
        operands = tuple(
            [
                _layout(value.type.ndim, axes, tuple([pick.operands[i] for pick in picked.values()]), order)
                for i, value in enumerate(equation.inputs)
            ]
        )
        results = tuple(
            [
                _layout(value.type.ndim, axes, tuple([pick.results[i] for pick in picked.values()]), order)
                for i, value in enumerate(equation.outputs)
            ]
        )
        choices[equation] = Choice(operands, results)
        layouts.update(zip(equation.outputs, results, strict=True))
    costs = Costs(chip, problem.mesh)
    outputs = tuple(
        output_layout(
            layouts.get(value, Layout.replicated(value.type.ndim)), value.type, pin, costs, problem.user_meshes
        )
        for value, pin in zip(problem.program.outputs, problem.out_pins, strict=True)
    )
    return LayoutPlan(choices, outputs, chip)


def _order(
    equation: Equation,
    picked: dict[str, Candidate],
    layouts: dict[Value, Layout],
    out_layouts: dict[Value, Layout],
    axes: tuple[str, ...],
) -> tuple[str, ...]:
    """Return all axes in the order in which they shard the dims of an equation.

    The order is the constraint's pin, else an operand's layout, else the layout of a pinned output. Axes that the pin
    omits go last.
    """
    known = [layouts[value] for value in equation.inputs if value in layouts]
    known += [out_layouts[value] for value in equation.outputs if value in out_layouts]
    pin = equation.op.operand_pin or equation.op.result_pin
    pinned: tuple[tuple[str, ...], ...] = pin.layout.dims if pin else ()
    orders = [*pinned, *(dim for layout in known for dim in layout.dims if _in_order(dim, pinned))]
    pinned_axes = [axis for dim in pinned for axis in dim]
    ordered: list[str] = []
    # The first factor of a compound dim is major, so its axes come first.
    for factor in sorted({-1 if candidate.factor is None else candidate.factor for candidate in picked.values()}):
        factor_axes = [axis for axis in axes if picked[axis].factor == (None if factor < 0 else factor)]
        by_pin = sorted(factor_axes, key=lambda axis: pinned_axes.index(axis) if axis in pinned_axes else len(axes))
        order = next((dim for dim in orders if set(factor_axes) <= set(dim)), by_pin)
        ordered += [axis for axis in order if axis in factor_axes]
    return tuple(ordered)


def _in_order(axes: tuple[str, ...], pinned: tuple[tuple[str, ...], ...]) -> bool:
    """Return whether the pinned axes among `axes` are in the order of the pins."""
    return all(
        [axis for axis in axes if axis in dim] == [axis for axis in dim if axis in axes] for dim in pinned if dim
    )


@registered_cache(maxsize=65536)
def _layout(ndim: int, axes: tuple[str, ...], picked: tuple[State, ...], order: tuple[str, ...]) -> Layout:
    """Return the layout of a value with `ndim` dims, given its states along `axes`; cached."""
    states = dict(zip(axes, picked, strict=True))
    dims = tuple(tuple(axis for axis in order if states[axis] == dim) for dim in range(ndim))
    partial = tuple((axis, state) for axis in sorted(states) if isinstance(state := states[axis], Reduction))
    return Layout(dims, partial)

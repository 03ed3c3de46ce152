"""unpadded_dims: unsharded dims that keep their size in some equations, although their padding class is padded.

The state of an optimizer has no padding along a dim that is not sharded, even if activations shard this dim unevenly.
If the update padded the dim, all of the state would be copied before and after the update, which is otherwise in place;
and a loop that padded its stack of weights would read a copy of it. So elementwise ops, constraints and the boundaries
of control ops keep the dim unpadded where that copies less: gradients are trimmed and slices of weights are padded
instead.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardwise.compiler.candidates.dim_groups import DimGroups
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.shardings.layout import Layout

ValueDim = tuple[Value, int]


class _UnshardedFactor(NamedTuple):
    """A factor that all operands and results of an equation have, unsharded; with its dim in each of them."""

    equation: Equation
    factor: int
    dims: tuple[ValueDim, ...]


def unpadded_factors(
    problem: LayoutProblem, plan: LayoutPlan, is_padded: Callable[[Value, int], bool]
) -> dict[Equation, frozenset[int]]:
    """Return the factors of equations that keep their size because that copies fewer bytes.

    Args:
        problem: the program.
        plan: the layouts.
        is_padded: whether the padding class of a dim is padded.
    """
    rows = list(_unsharded_factors(problem, plan, is_padded))
    groups = DimGroups()
    for row in rows:
        for other in row.dims[1:]:
            groups.join(other, row.dims[0])
    connected: dict[int, list[_UnshardedFactor]] = defaultdict(list)
    for row in rows:
        connected[groups.find(*row.dims[0])].append(row)
    resized = _resized_bytes(problem, plan, rows)
    factors: dict[Equation, set[int]] = defaultdict(set)
    for members in connected.values():
        if sum(resized[dim] for dim in dict.fromkeys(dim for row in members for dim in row.dims)) < 0:
            for row in members:
                factors[row.equation].add(row.factor)
    return {equation: frozenset(numbers) for equation, numbers in factors.items()}


def _unsharded_factors(
    problem: LayoutProblem, plan: LayoutPlan, is_padded: Callable[[Value, int], bool]
) -> Iterator[_UnshardedFactor]:
    """Yield the padded factors of elementwise ops, constraints and boundaries that are nowhere sharded in them.

    Free values are left out, since they are computed with any padding.
    """
    for equation in problem.unfolded.equations:
        op, choice = equation.op, plan.choices.get(equation)
        keeps_positions = op.is_elementwise or op.is_boundary or op.constraint is not None
        if choice is None or not keeps_positions or equation in problem.unfolded.manual:
            continue
        values, layouts = (*equation.inputs, *equation.outputs), (*choice.operands, *choice.results)
        rule = factor_rule(op, tuple(value.type for value in equation.inputs))
        for factor, dims in rule.dims_by_padding_factor:
            if len(dims) < len(values) or any(layouts[number].dims[dim] for number, dim in dims):
                continue
            value_dims = tuple((values[number], dim) for number, dim in dims if values[number] not in problem.free)
            if value_dims and is_padded(*value_dims[0]):
                yield _UnshardedFactor(equation, factor, value_dims)


def _resized_bytes(problem: LayoutProblem, plan: LayoutPlan, rows: list[_UnshardedFactor]) -> dict[ValueDim, float]:
    """Return for each dim the bytes that are resized if the equations of `rows` keep its size, less those otherwise."""
    program, mesh, unfolded = problem.program, problem.mesh, problem.unfolded
    members = {(row.equation, *dim) for row in rows for dim in row.dims}
    layouts: dict[Value, Layout] = {}
    for equation, choice in plan.choices.items():
        layouts.update(zip(equation.outputs, choice.results, strict=True))
    pins = {value: pin.layout for value, pin in zip(program.inputs, problem.in_pins, strict=True)}
    layouts.update(pins)
    others: set[ValueDim] = set()  # dims that other equations read or write, padded
    for equation in plan.choices:
        for value in (*equation.inputs, *equation.outputs):
            others.update((value, dim) for dim in range(value.type.ndim) if (equation, value, dim) not in members)
    results: dict[Value, list[Layout]] = defaultdict(list)
    for value, layout in zip(program.outputs, plan.outputs, strict=True):
        results[value].append(layout)
    resized: dict[ValueDim, float] = {}
    for value, dim in dict.fromkeys(dim for row in rows for dim in row.dims):
        nbytes = value.type.nbytes * unfolded.run_counts[value] / mesh.extent(layouts[value].axes)
        is_shared = (value, dim) in others
        # If others read an input padded, the equations can read the same copy.
        ends = [*([pins[value]] if value in pins and not is_shared else []), *results[value]]
        copies = sum(1 if layout.dims[dim] else -1 for layout in ends)
        resized[value, dim] = nbytes * (copies + (is_shared and value not in pins))
    return resized

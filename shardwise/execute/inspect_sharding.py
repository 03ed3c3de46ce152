"""Report the sharding that the plan chose to the `inspect_array_sharding` calls of a program."""

from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.shardings.layout import Layout, partial_sums
from shardwise.execute.request import Target


def report_shardings(compiled: Stages, target: Target) -> None:
    """Call the callback of every Inspect op with the sharding of its operand."""
    problem, plan = compiled.problem, compiled.plan
    if not problem.mesh.axis_names:
        for equation in problem.program.walk():
            if isinstance(equation.op, Inspect):
                equation.op.callback(target.sharding(Layout.replicated(equation.inputs[0].type.ndim)))
        return
    inspections = [equation for equation in problem.unfolded.equations if isinstance(equation.op, Inspect)]
    if not inspections:
        return
    out_layouts = {
        value: plan.choices[equation].results[index]
        for equation in problem.unfolded.equations
        if equation in plan.choices
        for index, value in enumerate(equation.outputs)
    }
    for equation in inspections:
        (value,) = equation.inputs
        pin = problem.pinned.get(value)
        layout = pin.layout if pin else out_layouts.get(value, Layout.replicated(value.type.ndim))
        typed = problem.shardings.get(value)
        unreduced = typed.unreduced if typed else ()
        equation.op.callback(target.sharding(Layout(layout.dims, partial_sums(unreduced))))  # type: ignore[attr-defined]

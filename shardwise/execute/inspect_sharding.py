"""Pass the shardings that the plan chose to the `inspect_array_sharding` callbacks of a program."""

from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.shardings.layout import Layout, partial_sums
from shardwise.execute.request import Target


def report_shardings(compiled: Stages, target: Target) -> None:
    """Call the callback of every Inspect op with the sharding of its operand."""
    problem, plan = compiled.problem, compiled.plan
    equations = problem.unfolded.equations if problem.mesh.axis_names else problem.program.walk()
    inspections = [(equation.op, equation.inputs[0]) for equation in equations if isinstance(equation.op, Inspect)]
    if not inspections:
        return
    layouts = {
        value: plan.choices[equation].results[index]
        for equation in problem.unfolded.equations
        if equation in plan.choices
        for index, value in enumerate(equation.outputs)
    }
    layouts.update({value: pin.layout for value, pin in problem.pinned.items()})
    for op, value in inspections:
        layout = layouts.get(value, Layout.replicated(value.type.ndim))
        typed = problem.shardings.get(value)
        op.callback(target.sharding(Layout(layout.dims, partial_sums(typed.unreduced if typed else ()))))

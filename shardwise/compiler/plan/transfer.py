"""transfer_picks: reuse the picks of one program for another that differs only in sizes.

A step that is traced with another number of microbatches, or for another mesh, has the same equations with other
shapes, and often the same cheapest plan. Reusing that plan is much faster than the optimization of `choose`.
"""

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Value
from shardwise.compiler.plan.choose import is_compatible
from shardwise.compiler.plan.plan_from_picks import Picks


def transfer_picks(picks: Picks, source: LayoutProblem, target: LayoutProblem) -> Picks | None:
    """Transfer the picks of `source` to the equations of `target`, in order.

    Args:
        picks: for each axis, the candidate of each equation of `source`.
        source: the program that was planned.
        target: another program, on a mesh with the same axis names.

    Returns:
        The picks; None if the programs differ in more than sizes, or if a pick is not a candidate of its equation.
    """
    if source.mesh.axis_names != target.mesh.axis_names or len(source.planned) != len(target.planned):
        return None
    if not _have_same_structure(source, target):
        return None
    transferred: Picks = {}
    compound = [e for e in target.planned if factor_rule(e.op, tuple([value.type for value in e.inputs])).compound]
    for axis, rows in picks.items():
        options = target.candidates[axis]
        moved = {new: rows[old] for old, new in zip(source.planned, target.planned, strict=True)}
        if any(pick not in options[equation] for equation, pick in moved.items()):
            return None
        if not all(is_compatible(target, axis, equation, moved[equation], transferred) for equation in compound):
            return None
        transferred[axis] = moved
    return transferred


def _have_same_structure(source: LayoutProblem, target: LayoutProblem) -> bool:
    """Return whether the equations of two programs have the same op classes and the same dataflow."""
    values: dict[Value, Value] = {}  # the value of `target` for each of `source`
    for old, new in zip(source.planned, target.planned, strict=True):
        if (type(old.op), len(old.inputs), len(old.outputs)) != (type(new.op), len(new.inputs), len(new.outputs)):
            return False
        pairs = zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True)
        if any([values.setdefault(before, after) is not after for before, after in pairs]):
            return False
    return True

"""replicated_work: the fraction of the flops of products that devices compute for others too.

If a mesh axis shards no operand of a product, all devices along it compute the same. Inside manual regions, devices
along the manual axes have operands of their own.
"""

import math

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.transforms.remat import RECOMPUTED


def distinct_flops_fraction(problem: LayoutProblem, plan: LayoutPlan) -> float:
    """Return the flops of a call, each counted once, as a fraction of those of all devices, without recomputation."""
    total = distinct = 0.0
    for equation, choice in plan.choices.items():
        flops = (1 - equation.op.repeated_flops) * equation.op.flops(*[value.type for value in equation.inputs])
        if not flops or RECOMPUTED in equation.source.scope:
            continue
        sharding = {axis for layout in choice.operands for axis in layout.axes}
        manual = problem.unfolded.manual.get(equation, frozenset())
        sizes = {axis: size for axis, size in problem.mesh.shape.items() if axis not in manual}
        per_device = flops * problem.unfolded.run_counts[equation]
        per_device /= math.prod(size for axis, size in sizes.items() if axis in sharding)
        total += per_device
        distinct += per_device / math.prod(size for axis, size in sizes.items() if axis not in sharding)
    return distinct / total if total else 1.0

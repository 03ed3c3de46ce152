"""time_parts: the seconds of a call by their cause, to compare plans of one step."""

from collections import defaultdict

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.timeline import Step, Timeline
from shardwise.compiler.shardings.mesh import AbstractMesh

PRODUCTS, MEMORY, IDLE = "products", "memory traffic", "idle"
INTERFERENCE = "interference of collectives with compute"
COPIES = "exposed copies from and to host memory"


def time_parts(timeline: Timeline, chip: Chip, mesh: AbstractMesh) -> dict[str, float]:
    """Return the seconds of products, memory traffic, idle time, interference, and of each kind of exposed collective.

    Interference is the time by which kernels take longer because collectives run at the same time.
    Exposed collectives are named with their links, such as "exposed all-gather between nodes". All parts add up to the
    time of the call.
    """
    steps = timeline.steps
    computing = [step for step in steps if not step.sent and not step.copied]
    parts = {
        PRODUCTS: sum(step.seconds - step.slowed - step.idle for step in steps if _is_product_bound(step, chip)),
        IDLE: sum(step.idle for step in computing),
        INTERFERENCE: sum(step.slowed for step in computing),
    }
    compute = sum(step.seconds for step in computing)
    parts[MEMORY] = max(0.0, compute - sum(parts.values()))
    exposed: dict[str, float] = defaultdict(float)
    for step in steps:
        if step.exposed:
            exposed[_exposed_name(step, chip, mesh)] += step.exposed
    # Steps of a loop are exposed in one iteration as in all others. The time of the call is exact.
    total = sum(exposed.values())
    share = max(0.0, timeline.seconds - compute) / total if total else 0.0
    return {**parts, **{name: share * seconds for name, seconds in exposed.items()}}


def _exposed_name(step: Step, chip: Chip, mesh: AbstractMesh) -> str:
    if not step.sent:
        return COPIES
    links = "between nodes" if chip.crosses_nodes(mesh, step.axes) else "within nodes"
    return f"exposed {step.op.replace('_', '-')} {links}"


def _is_product_bound(step: Step, chip: Chip) -> bool:
    """Return whether the flops of a step take longer than its memory traffic."""
    bytes_seconds = step.times * chip.memory_time(step.accessed / step.times)
    return bool(step.flops) and step.seconds - step.slowed > bytes_seconds

"""simulate: predict the time, memory and utilization of a function on hardware that need not be present."""

import json
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from shardwise import tree_util
from shardwise.api.ahead_of_time.aot import Compiled, Lowered
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.base.render_hooks import HtmlReport
from shardwise.compiler.dtypes import is_float8
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.report.replicated_work import distinct_flops_fraction
from shardwise.compiler.report.report import Plan
from shardwise.compiler.report.time_parts import IDLE, INTERFERENCE, MEMORY, PRODUCTS, time_parts
from shardwise.compiler.report.timeline import Step, timeline
from shardwise.compiler.shardings.refine import merge_sub_axes
from shardwise.compiler.transforms.remat import RECOMPUTED
from shardwise.execute import plan_report as planning
from shardwise.execute.request import Request
from shardwise.explain import page, text
from shardwise.explain.failures import Failures
from shardwise.explain.goodput import Goodput, SaveTimes, predict_goodput
from shardwise.explain.plan import prepare
from shardwise.explain.snapshot_memory import snapshot_memory
from shardwise.sharding import AbstractMesh, Mesh, NamedSharding

_PRODUCTS, _MEMORY, _EXPOSED, _IDLE = "products", "memory", "exposed communication", "idle"
_INTERFERENCE = "interference of collectives"


@final
class Simulation(HtmlReport):
    """The predicted run of a function. It prints as text; a notebook shows it as a page.

    Attributes:
        plan: the plan of the function, with all collectives and the timeline.
        seconds: the time of one call.
        flops: the flops of all products of one device in one call, including rematerialization, but not the flops that
            a device computes while it is idle in a schedule, such as in a pipeline's bubble.
        utilization: these flops as a fraction of the peak flops of bf16 (hardware FLOPs utilization, HFU).
        model_flops: the flops without rematerialization and the scores that the gradient of attention repeats, of which
            each is counted on one device only.
        model_utilization: these flops as a fraction of the peak flops of bf16 (model FLOPs utilization, MFU).
        peak_bytes: the most bytes that the program holds on a device at once.
        device_bytes: these bytes, and those of the device's memory that no program can use (`Chip.reserved_memory`).
        fits: whether a device has as much memory.
        bounds: the seconds of a call by their bound: products, memory traffic, exposed communication (and copies from
            and to host memory), the time by which collectives that overlap with kernels slow these down, and idle time,
            such as a pipeline's bubble.
        memory: the live bytes of a device over time: pairs of seconds since the start of the call, and bytes.
        goodput: the progress of a long job with failures, by policy of recovery; None without `failures`.
    """

    def __init__(self, request: Request, stages: Stages, chip: Chip | None = None):
        self.plan = plan = planning.request_report(request, stages, chip)
        self._local = stages.local
        self.seconds = plan.seconds
        steps = plan.timeline.steps
        self.flops = _useful_flops(steps)
        first = [
            replace(step, flops=step.flops - step.repeated_flops)
            for step in steps
            if RECOMPUTED not in step.source.scope
        ]
        self.model_flops = _useful_flops(first) * distinct_flops_fraction(stages.problem, stages.plan)
        peak_flops = self.seconds * plan.chip.bf16_flops
        self.utilization, self.model_utilization = (
            flops / peak_flops if self.seconds else 0.0 for flops in (self.flops, self.model_flops)
        )
        self.peak_bytes = plan.peak_bytes
        self.device_bytes = plan.peak_bytes + plan.chip.reserved_memory
        self.fits = self.device_bytes <= plan.chip.memory
        self.memory = tuple(sorted((step.start, step.held) for step in steps))
        self.goodput: Goodput | None = None
        parts = time_parts(plan.timeline, plan.chip, plan.mesh)
        self.bounds = {
            _PRODUCTS: parts[PRODUCTS],
            _MEMORY: parts[MEMORY],
            _EXPOSED: plan.exposed_seconds,
            _INTERFERENCE: parts[INTERFERENCE],
            _IDLE: parts[IDLE],
        }

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The shortest and the longest time of one call, if assumed figures of the chip are wrong by a fifth."""
        chips = (self.plan.chip.fastest, self.plan.chip.slowest)
        if not self.plan.chip.assumed:
            return self.seconds, self.seconds
        shortest, longest = (timeline(self._local, chip, lists_alive=False).seconds for chip in chips)
        return shortest, longest

    def with_failures(self, failures: Failures) -> "Simulation":
        """Return the same simulation with the `goodput` of a long job of such calls."""
        result = copy(self)
        times, devices = self._save_times(failures), self.plan.mesh.device_count
        nodes = failures.devices_per_node, failures.processes_per_node
        memory = snapshot_memory(self.plan.inputs, devices, *nodes)
        result.goodput = predict_goodput(failures, devices, times, memory)
        return result

    def _save_times(self, failures: Failures) -> SaveTimes:
        """Return the times of saves. Those that `failures` does not state are times to copy the arguments."""
        chip, state = self.plan.chip, sum(row.bytes for row in self.plan.inputs)
        snapshot, copy = failures.snapshot_seconds, failures.copy_seconds
        if snapshot is None:
            snapshot = state / chip.host_link if chip.host_link else state / chip.memory_bandwidth
        if copy is None:
            copy = state * chip.oversubscription / (chip.slow_link.bandwidth * chip.slow_links)
        checkpoint = snapshot if failures.checkpoint_seconds is None else failures.checkpoint_seconds
        return SaveTimes(self.seconds, snapshot, copy, checkpoint)

    def job(self, tokens_per_call: float, tokens: float) -> "Job":
        """Return the time of a whole training job, without failures.

        Args:
            tokens_per_call: the tokens of the batch of one call, on all devices.
            tokens: the tokens of the job.

        Returns:
            Its rates and times.

        Raises:
            ValueError: if a number is not positive.

        Example:
            >>> x = jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16)
            >>> job = jax.simulate(lambda x: x @ x.T, hardware="h100")(x).job(8192, 1e12)
            >>> job.device_hours == 24 * job.days
            True
        """
        if not (tokens_per_call > 0 and tokens > 0):
            raise ValueError(
                f"job: the numbers of tokens must be positive, not tokens_per_call={tokens_per_call}, tokens={tokens}"
            )
        return Job(tokens_per_call, tokens, self.seconds, self.plan.mesh.device_count)

    def __str__(self) -> str:
        plan, rare = self.plan, (_INTERFERENCE, _IDLE)
        bounds = [name for name in self.bounds if name not in rare or self.bounds[name]]
        shares = ", ".join(f"{self._share(name)} {name}" for name in bounds)
        where = f"mesh {merge_sub_axes(plan.mesh)}" if plan.mesh.axis_names else "one device"
        reserved = f" and {text.human_bytes(plan.chip.reserved_memory)} reserved" if plan.chip.reserved_memory else ""
        memory = f"{text.human_bytes(self.peak_bytes)}{reserved} of {text.human_bytes(plan.chip.memory)} per device"
        fits = "" if self.fits else " (does not fit)"
        recomputed = f" ({100 * self.model_utilization:.1f}% without recomputed and replicated products)"
        shortest, longest = map(text.human_seconds, self.interval)
        spread = f" ({shortest} to {longest})" if shortest != longest else ""
        assumed = ", ".join(name.replace("_", " ") for name in plan.chip.assumed if self._has_f8 or "f8" not in name)
        no_f8 = f"\n  products of float8 have the rate of bf16: {plan.chip.name} has no units for them"
        return (
            f"{plan.name} on {where} of {plan.chip.name}: {text.human_seconds(self.seconds)} per call{spread}\n"
            f"  bound by: {shares}\n"
            f"  {100 * self.utilization:.1f}% of peak flops{recomputed if self.flops != self.model_flops else ''}; "
            f"{text.human_bytes(plan.wire_bytes)} sent per device\n"
            f"  memory: {memory}{fits}"
            + (f"\n  assumed for {plan.chip.name}: {assumed}" if assumed else "")
            + (no_f8 if self._has_f8 and not plan.chip.f8_flops else "")
            + (f"\n{self.goodput}" if self.goodput is not None else "")
        )

    @cached_property
    def _has_f8(self) -> bool:
        """Whether the program has products of float8 operands."""
        equations = self._local.program.walk()
        return any(
            e.op.needs_float8_units or (e.op.is_product and is_float8(e.inputs[0].type.dtype)) for e in equations
        )

    __repr__ = __str__

    def to_html(self) -> str:
        """Return the plan as one self-contained HTML page, with the timeline and the memory over time."""
        return page.format_page(self.plan, ())

    def write_trace(self, path: str | Path) -> None:
        """Write the timeline as a trace for Perfetto (https://ui.perfetto.dev) or Chrome.

        Args:
            path: the file to write, in the JSON trace event format.

        Returns:
            Nothing.

        Raises:
            OSError: if the file cannot be written.

        Example:
            >>> x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
            >>> jax.simulate(lambda x: x @ x, hardware="h100")(x).write_trace("/tmp/product.json")
        """
        Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": _trace_events(self.plan)}))

    def _share(self, name: str) -> str:
        return f"{100 * self.bounds[name] / self.seconds:.0f}%" if self.seconds else "0%"


@final
@dataclass(frozen=True)
class Job:
    """A training job: the same call again and again, without failures.

    Attributes:
        tokens_per_call: the tokens of the batch of one call, on all devices.
        tokens: the tokens of the job.
        seconds_per_call: the time of one call.
        devices: the number of devices.
    """

    tokens_per_call: float
    tokens: float
    seconds_per_call: float
    devices: int

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of all devices."""
        return self.tokens_per_call / self.seconds_per_call

    @property
    def days(self) -> float:
        """The days of the job."""
        return self.tokens / self.tokens_per_second / 86400

    @property
    def device_hours(self) -> float:
        """The hours of the job times the number of devices: GPU-hours."""
        return 24 * self.days * self.devices

    def __str__(self) -> str:
        per_device = self.tokens_per_second / self.devices
        return (
            f"{self.tokens_per_second:,.0f} tokens/s ({per_device:,.0f} per device); {self.tokens:.3g} tokens take "
            f"{self.days:,.1f} days, {self.device_hours:,.0f} device-hours"
        )


def simulate(
    function: Callable[..., Any] | Lowered | Compiled,
    *,
    hardware: str | Chip,
    mesh: AbstractMesh | Mesh | None = None,
    overlap: bool | None = None,
    expert_imbalance: float = 1.0,
    failures: Failures | None = None,
) -> Callable[..., Simulation]:
    """Return a function that predicts the time and memory of `function` for given arguments, without running it.

    Args:
        function: the function, jitted or not; or a lowered or compiled function, which needs no arguments.
        hardware: the chip to predict for: a name ("h100", "v5e", …) in the built-in table or in the table of the
            setting `chip_table`, or the path of a table (`docs/simulate.md`).
        mesh: the mesh to predict for. The arguments have the same specs on this mesh, so that a function
            for 8 devices can be simulated on 512. By default, the mesh of the arguments.
        overlap: whether collectives overlap with compute; by default, as on the hardware.
        expert_imbalance: how many times the mean number of tokens the device with the busiest experts has, at least 1.
            If devices exchange tokens by all-to-alls in a `named_scope` "experts", as `parallel.mixture_of_experts` has
            one, the times of these and of the kernels there are multiplied by it. Memory is that of balanced experts.
        failures: the failures of a long job of such calls. The result then has its `goodput`, by policy of recovery,
            with the intervals of snapshots and checkpoints that are best.

    Returns:
        A function of the same arguments as `function`, which returns a Simulation. Arguments may be arrays or
        ShapeDtypeStructs with shardings on an abstract mesh.

    Raises:
        HardwareError: if the hardware is unknown, if a table is invalid, or if the hardware has no units for float8, of
            which an FP8Policy needs products.
        ValueError: if a mesh is passed for a lowered or compiled function, if `expert_imbalance` is less than 1, or if
            so many `failures` are expected that they are not simulated.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((64,), ("data",))
        >>> x = jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16, sharding=jax.NamedSharding(mesh, P("data")))
        >>> w = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=jax.NamedSharding(mesh, P("data")))
        >>> run = jax.simulate(lambda x, w: x @ w, hardware="h100")(x, w)
        >>> run.plan.counts(), run.seconds < 1e-3
        ({'all_gather': 1}, True)
    """
    target = chip(hardware) if overlap is None else replace(chip(hardware), overlaps=overlap)
    if mesh is not None and isinstance(function, (Lowered, Compiled)):
        raise ValueError("simulate: a lowered or compiled function has a mesh: pass the function itself, or no mesh")
    check_expert_imbalance("simulate", expert_imbalance)

    def call(*args: Any, **keywords: Any) -> Simulation:
        if mesh is not None:
            args, keywords = on_mesh((args, keywords), mesh)
        prepared = prepare(function, args, keywords, target)
        run = Simulation(prepared.request, prepared.stages.with_expert_imbalance(expert_imbalance), target)
        return run if failures is None else run.with_failures(failures)

    return call


def check_expert_imbalance(function: str, expert_imbalance: float) -> None:
    """Raise a ValueError, with the name of the function that the user called, if an imbalance is less than 1."""
    if not 1 <= expert_imbalance < math.inf:
        raise ValueError(
            f"{function}: expert_imbalance must be at least 1, the balanced experts, not {expert_imbalance}"
        )


def on_mesh(arguments: Any, mesh: AbstractMesh | Mesh) -> Any:
    """Return a pytree of arguments with the same specs on another mesh."""

    def move(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return leaf
        return ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, sharding.spec))

    return tree_util.tree_map(move, arguments)


def _useful_flops(steps: Sequence[Step]) -> float:
    """Return the flops of steps, but not those that a device computes while it is idle in a schedule."""
    return sum(step.flops * (1 - step.idle / step.seconds) for step in steps if step.flops)


def _trace_events(plan: "Plan") -> list[dict[str, Any]]:
    """Return trace events: threads of compute, communication and host copies, and a counter of the live bytes."""
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(("compute", "communication", "copies from and to host memory"))
    ]
    for step in sorted(plan.timeline.steps, key=lambda step: step.start):
        details = {"line": str(step.source), "runs": step.times, "bytes sent": step.sent, "flops": step.flops}
        start, duration = step.start * 1e6, step.seconds * 1e6
        tid = 1 if step.sent else 2 if step.copied else 0
        events.append({"name": step.op, "ph": "X", "ts": start, "dur": duration, "pid": 0, "tid": tid, "args": details})
        events.append({"name": "live bytes", "ph": "C", "ts": start, "pid": 0, "args": {"bytes": step.held}})
    return events

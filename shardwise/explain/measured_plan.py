"""The measured plan: the kernels and collectives of a profile, each with its source line and its prediction.

A kernel of the profile belongs to the op and the line that the metadata of its HLO instruction state. XLA may fuse ops
other than the plan does, so predictions are compared per line: products, attention and collectives by op, and all
other kernels of a line together. A kernel that XLA has fused from several lines belongs to the line of its root, or, if
the plan has no such kernel there, to another one of these lines where it has.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.report import Plan
from shardwise.compiler.report.timeline import Step
from shardwise.errors import ProfileError
from shardwise.explain.device_trace import DeviceTrace, ProgramTrace
from shardwise.explain.traced_kernels import TracedKernel, traced_kernels
from shardwise.runtime.hlo_instructions import Instruction, read_instructions
from shardwise.runtime.hlo_types import HloArray, arrays_of

_LARGEST = 5  # the number of differences to name
_OTHER = ""  # the op of the kernels of a line that compute no product and send nothing
_Key = tuple[str, str]  # the line, such as `train.py:41`, and the op


@final
@dataclass(frozen=True)
class MeasuredKernel:
    """One kernel of the profile.

    Attributes:
        name: the name of its HLO instruction; if that is unknown, the name of the kernel.
        op: the name of its main op; "" if it is unknown.
        line: the user's line, such as `train.py:41`; "" if it is unknown.
        predicted: the seconds that the cost model predicts for the compiled kernel.
        seconds: the measured seconds, up to the start of the next kernel.
    """

    name: str
    op: str
    line: str
    predicted: float
    seconds: float


@final
@dataclass(frozen=True)
class MeasuredRow:
    """The kernels of an op at a line: as the plan predicts them, and as they ran.

    Attributes:
        ops: the names of the main ops, by measured time; of a row that was not measured, those of the plan.
        line: the user's line; "" if it is unknown.
        predicted: the predicted seconds in one call.
        measured: the measured seconds in one call.
        predicted_kernels: the number of kernels in the plan.
        measured_kernels: the number of kernels in the profile.
    """

    ops: tuple[str, ...]
    line: str
    predicted: float
    measured: float
    predicted_kernels: int
    measured_kernels: int

    @property
    def difference(self) -> float:
        """The measured seconds without the predicted ones."""
        return self.measured - self.predicted


@final
@dataclass(frozen=True)
class MeasuredPlan:
    """A plan beside a profile of it.

    Attributes:
        path: the file of the profile.
        device_kind: the kind of the devices in the profile.
        seconds: the measured time of one call, from the start of the first kernel to the end of the last.
        predicted: the predicted time of one call.
        attributed: the share of the device time that belongs to a line or an op.
        rows: the ops and lines, by measured time, the longest first.
        kernels: the kernels of one call, by start.
    """

    path: Path
    device_kind: str
    seconds: float
    predicted: float
    attributed: float
    rows: tuple[MeasuredRow, ...]
    kernels: tuple[MeasuredKernel, ...] = field(repr=False)

    @property
    def differences(self) -> list[MeasuredRow]:
        """The five rows whose predictions are the most seconds off, the worst first."""
        return sorted(self.rows, key=lambda row: -abs(row.difference))[:_LARGEST]


def measure_plan(plan: Plan, trace: DeviceTrace) -> MeasuredPlan:
    """Compare a plan with a profile.

    Args:
        plan: the plan of a function.
        trace: a profile in which the function ran. Of several runs, the one with the median time counts.

    Raises:
        ProfileError: if the function did not run in the profile, or with other arguments.
    """
    program = _program(plan, trace)
    run = program.typical
    instructions = read_instructions(program.text)
    rows = _Rows(plan.timeline.steps)
    kernels = []
    unknown = total = 0.0
    for kernel in traced_kernels(program, run, plan.chip):
        measured = rows.add(kernel, instructions.get(kernel.name), plan.chip)
        kernels.append(measured)
        total += kernel.busy
        unknown += kernel.busy if not measured.line and not measured.op else 0.0
    return MeasuredPlan(
        trace.path, program.device_kind, run.seconds, plan.seconds, 1 - unknown / total, rows.rows(), tuple(kernels)
    )


def _program(plan: Plan, trace: DeviceTrace) -> ProgramTrace:
    """Return the program of a profile with the name and the arguments of a plan."""
    name = re.sub(r"\W", "_", plan.name)
    names = (name, f"jit_{name}")  # as Shardwise and as JAX name a module
    programs = [program for program in trace.programs if program.name in names] or [trace.program(name)]
    arguments = Counter((row.type.partition("[")[0], row.shard_shape) for row in plan.inputs)
    for program in programs:
        if not Counter(map(_argument, _parameters(program))) - arguments:
            return program
    types = map(_argument, _parameters(programs[0]))
    shown = ", ".join(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in types)
    raise ProfileError(
        f"the program {plan.name!r} ran in the profile {str(trace.path)!r} with other arguments: {shown} per device. "
        "Pass the arguments of the call that was profiled, or profile a call with these arguments."
    )


def _parameters(program: ProgramTrace) -> list[HloArray]:
    """Return the types of the parameters of a program."""
    entry = program.module.computations.by_name[program.module.entry]
    return [next(arrays_of(each.type)) for each in entry if each.opcode == "parameter"]


def _argument(array: HloArray) -> tuple[str, tuple[int, ...]]:
    """Return the type of a parameter, with the name that plans have for its dtype."""
    dtype = {"pred": "bool"}.get(array.dtype, re.sub(r"^s(?=\d)", "i", array.dtype))
    return re.sub(r"^f(\d)e", r"f\1_e", dtype), array.shape


@final
class _Rows:
    """The rows of a table of predicted and measured kernels."""

    def __init__(self, steps: Iterable[Step]):
        self.predicted: dict[_Key, list[Step]] = defaultdict(list)
        self.products: dict[_Key, None] = {}  # ordered sets
        self.collectives: dict[_Key, None] = {}
        self.measured: dict[_Key, list[MeasuredKernel]] = defaultdict(list)
        for step in steps:
            line = step.source.place if step.source.file else ""
            key = line, step.op if step.sent or step.flops else _OTHER
            self.predicted[key].append(step)
            if key[1]:
                (self.collectives if step.sent else self.products)[key] = None

    def add(self, kernel: TracedKernel, instruction: Instruction | None, chip: Chip) -> MeasuredKernel:
        """Add a kernel of the profile to the row of its line and op."""
        line, op = self._site(kernel, instruction)
        computes = kernel.work.product is not None or kernel.work.attention is not None
        key = line, op if computes or kernel.is_collective else _OTHER
        measured = MeasuredKernel(kernel.name, op, line, kernel.predicted_seconds(chip), kernel.seconds)
        self.measured[key].append(measured)
        return measured

    def rows(self) -> tuple[MeasuredRow, ...]:
        """Return all rows, the longest measured first."""
        rows = []
        for key in {**self.measured, **self.predicted}:
            kernels, steps = self.measured.get(key, []), self.predicted.get(key, [])
            times: dict[str, float] = defaultdict(float)
            for kernel in kernels:
                times[kernel.op] += kernel.seconds
            ops = sorted(filter(None, times), key=lambda op: -times[op]) or [step.op for step in steps]
            rows.append(
                MeasuredRow(
                    tuple(dict.fromkeys(ops)),
                    key[0],
                    sum(step.seconds for step in steps),
                    sum(kernel.seconds for kernel in kernels),
                    sum(step.times for step in steps),
                    len(kernels),
                )
            )
        return tuple(sorted(rows, key=lambda row: (-row.measured, -row.predicted)))

    def _site(self, kernel: TracedKernel, instruction: Instruction | None) -> tuple[str, str]:
        """Return the line and the op of a kernel."""
        if instruction is None:
            return "", ""
        sites = [
            _split(name, instruction.source) for name in (*instruction.name.split(";")[:1], *instruction.made_of[::-1])
        ]
        sites = [site for site in sites if site[1]]
        if not sites:
            return _place(instruction.source), ""
        if kernel.is_collective:
            kind = instruction.opcode.removesuffix("-start").replace("-", "_")
            return next((site for site in sites if site in self.collectives), (sites[0][0], kind))
        if kernel.work.product is not None or kernel.work.attention is not None:
            # XLA may name a product after the op that reads it.
            same_line = [key for line, _ in sites for key in self.products if key[0] == line]
            return next((site for site in sites if site in self.products), (*same_line, (sites[0][0], "dot"))[0])
        return next((site for site in sites if (site[0], _OTHER) in self.predicted), sites[0])


def _split(name: str, source: str) -> tuple[str, str]:
    """Return the line and the op of an op name: `encoder/train.py:41/dot`; JAX's have no line, but a source."""
    *scopes, op = name.split("/")
    if scopes and re.fullmatch(r".*(:\d+|, line \d+)", scopes[-1]):
        return scopes[-1], op
    return _place(source), op


def _place(source: str) -> str:
    return source.rpartition("/")[2]

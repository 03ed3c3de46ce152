"""LocalProgram: the program that every device runs on its shards, with the layouts of its inputs and outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import final

from shardwise.compiler.ir.format import format_stage
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.collective.collectives import AllToAll, Collective
from shardwise.compiler.ops.collective.ragged_exchange import RaggedAllToAll
from shardwise.compiler.partition.gpu_program import gpu_program
from shardwise.compiler.partition.kernels import KernelGroups, group_kernels
from shardwise.compiler.partition.split_products import split_products
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, in_one_launch
from shardwise.errors import ProgramError

EXPERTS = "experts"  # the `named_scope` of ops whose work grows with the tokens of the device's experts
_TOKEN_EXCHANGES = (AllToAll, RaggedAllToAll)


@final
@dataclass(frozen=True)
class Placement:
    """The type and layout of a global array. Unevenly sharded dims are padded at their end.

    Attributes:
        type: the type of the global array.
        layout: its layout.
        may_be_partial: whether the program was requested with this array unreduced, along Auto axes too.
    """

    type: ArrayType
    layout: Layout
    may_be_partial: bool = False

    def shard_shape(self, mesh: AbstractMesh) -> tuple[int, ...]:
        """Return the shape of one device's shard, with padding."""
        return self.layout.shard_shape(self.layout.padded_shape(self.type.shape, mesh), mesh)


@final
@dataclass(frozen=True, eq=False)
class LocalProgram:
    """The program of one device.

    Attributes:
        program: the program, whose values are shards.
        mesh: the mesh.
        inputs: the placement of each input.
        outputs: the placement of each output.
        expert_imbalance: how many times the mean number of tokens the device with the busiest experts has. It affects
            predicted times, and not the program.
    """

    program: Program
    mesh: AbstractMesh
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    expert_imbalance: float = 1.0

    def __str__(self) -> str:
        ins, outs = ([f"{p.type} {p.layout}" for p in placements] for placements in (self.inputs, self.outputs))
        return format_stage("local", self.program, self.mesh, ins, outs)

    def with_expert_imbalance(self, expert_imbalance: float) -> "LocalProgram":
        """Return the program whose times are those of this imbalance of experts."""
        if expert_imbalance == self.expert_imbalance:
            return self
        return replace(self, expert_imbalance=expert_imbalance)

    @cached_property
    def with_balanced_experts(self) -> "LocalProgram":
        """The program whose times are those of balanced experts."""
        return self.with_expert_imbalance(1.0)

    def collectives(self) -> list[Equation]:
        """Return the equations that send bytes between devices, in nested programs too."""
        return [equation for equation in self.program.walk() if self.bytes_sent(equation) > 0]

    def host_copies(self) -> list[Equation]:
        """Return the equations that copy arguments from host memory, and results to it."""
        return [e for e in self.program.equations if e.op.reads_host_memory or e.op.writes_host_memory]

    @cached_property
    def times(self) -> dict[Equation, int]:
        """The number of times that each equation runs in one call. A loop of unknown length counts as one iteration."""
        return dict(_with_times(self.program, 1))

    def bytes_sent(self, equation: Equation) -> float:
        """Return the bytes that each device sends when the equation runs once."""
        return equation.op.bytes_sent(equation.inputs[0].type, self.mesh) if equation.inputs else 0

    @cached_property
    def launches(self) -> dict[Equation, tuple[Equation, ...]]:
        """The collectives of each launch with several, by each of them."""
        return {equation: launch for launch in _shared_launches(self.program) for equation in launch}

    def launch_seconds(self, launch: Sequence[Equation], chip: Chip) -> float:
        """Return the estimated seconds of one launch of collectives."""
        op = launch[0].op
        traffic = in_one_launch(*(_traffic(equation, self.mesh) for equation in launch))
        return chip.collective_time(traffic, self.mesh, op.communicates_along)

    def collective_seconds(self, equation: Equation, chip: Chip) -> float:
        """Return the estimated seconds of a collective that runs once; of a shared launch, its share by bytes."""
        launch = self.launches.get(equation, (equation,))
        share = self.bytes_sent(equation) / sum(map(self.bytes_sent, launch)) if len(launch) > 1 else 1.0
        return share * self.launch_seconds(launch, chip)

    @cached_property
    def sent(self) -> float:
        """The bytes that each device sends in one call."""
        return sum(times * self.bytes_sent(equation) for equation, times in self.times.items())

    def total_seconds(self, equation: Equation, chip: Chip) -> float:
        """Return the estimated seconds of all runs of a collective in one call."""
        return self.times[equation] * self.collective_seconds(equation, chip)

    def expert_slowdown(self, equation: Equation) -> float:
        """Return how many times longer than with balanced experts an equation takes on the device that all wait for.

        Equations in the scope of experts take longer if devices exchange tokens there. Collectives of weights do not.
        """
        if self.expert_imbalance == 1 or not self._exchanges_tokens or EXPERTS not in equation.source.scope:
            return 1.0
        is_exchange = isinstance(equation.op, _TOKEN_EXCHANGES)
        return self.expert_imbalance if is_exchange or not self.bytes_sent(equation) else 1.0

    @cached_property
    def _exchanges_tokens(self) -> bool:
        """Whether tokens are sent to the devices of their experts. Without, each device has all experts."""
        equations = self.program.walk()
        return any(isinstance(e.op, _TOKEN_EXCHANGES) and EXPERTS in e.source.scope for e in equations)

    def rewritten(self, program: Program) -> "LocalProgram":
        """Return another program of one device. Its kernels are found from those of this one, where the two are equal.

        It keeps the kernels of this one until `forget_other_kernels`.
        """
        local = replace(self, program=program)
        local._kernel_groups.update(self._kernel_groups)
        return local

    def forget_other_kernels(self) -> None:
        """Forget the kernels of programs that this one was rewritten from."""
        programs = (self.program, *(program for equation in self.program.walk() for program in equation.op.programs))
        own = {(program.equations, program.outputs) for program in programs}
        for key in [key for key in self._kernel_groups if key[:2] not in own]:
            del self._kernel_groups[key]

    def kernel_groups(self, program: Program, platform: str = "", chip: Chip | None = None) -> KernelGroups:
        """Return the kernels of this program or of a nested one; cached. See `group_kernels`."""
        key = (program.equations, program.outputs, platform, chip)
        if key not in self._kernel_groups:
            similar = self._most_similar(program, platform, chip)
            if similar is None:
                self._kernel_groups[key] = group_kernels(program, self.mesh, platform, chip)
            else:
                self._kernel_groups[key] = similar.rewritten(program)
        return self._kernel_groups[key]

    def _most_similar(self, program: Program, platform: str, chip: Chip | None) -> KernelGroups | None:
        """Return the known kernels of the program that shares most equations with this one; None if none does."""
        known = [groups for (_, _, *other), groups in self._kernel_groups.items() if other == [platform, chip]]
        if not known:
            return None
        equations = set(program.equations)
        shared = [len(equations.intersection(groups.program.equations)) for groups in known]
        most = max(shared)
        return known[shared.index(most)] if most else None

    def program_on_gpu(self, chip: Chip | None) -> Program:
        """Return the program as XLA compiles it for GPUs; cached.

        Args:
            chip: the GPU, if XLA may compute products with kernels of its own (`triton_chip`).
        """
        if chip not in self._programs_on_gpu:
            program = gpu_program(self.program)
            self._programs_on_gpu[chip] = program if chip is None else split_products(program, chip)
        return self._programs_on_gpu[chip]

    @cached_property
    def _programs_on_gpu(self) -> dict[Chip | None, Program]:
        return {}

    @cached_property
    def _kernel_groups(
        self,
    ) -> dict[tuple[tuple[Equation, ...], tuple[Value, ...], str, Chip | None], KernelGroups]:
        return {}

    @cached_property
    def known_bounds(self) -> dict[Chip, int]:
        """The upper bounds of the peak bytes that `liveness` has computed so far, by the hardware."""
        return {}

    @cached_property
    def known_peaks(self) -> dict[tuple[Chip | None, frozenset[int]], int]:
        """The peak bytes that `liveness` has computed so far, by the hardware and the donated inputs."""
        return {}

    def counts(self) -> dict[str, float]:
        """Return the flops of contractions, the bytes accessed and the bytes sent, per device and call."""
        flops = accessed = 0.0
        for equation, times in self.times.items():
            accessed += times * sum(value.type.nbytes for value in (*equation.inputs, *equation.outputs))
            flops += times * equation.op.flops(*(value.type for value in equation.inputs))
        return {"flops": flops, "bytes accessed": accessed, "wire bytes": self.sent}


def _with_times(program: Program, times: int) -> Iterator[tuple[Equation, int]]:
    """Yield every equation, in nested programs too, with the number of times that it runs."""
    for equation in program.equations:
        yield equation, times
        for inner in equation.op.programs:
            yield from _with_times(inner, times * (1 if equation.op.trip_count is None else equation.op.trip_count))


def _shared_launches(program: Program) -> Iterator[tuple[Equation, ...]]:
    """Yield the collectives of each launch that has several, in nested programs too."""
    for number, group in groupby(program.equations, key=lambda equation: equation.op.launch):
        launch = tuple(group)
        if number is not None and len(launch) > 1:
            yield launch
        for equation in launch if number is None else ():
            for inner in equation.op.programs:
                yield from _shared_launches(inner)


def _traffic(equation: Equation, mesh: AbstractMesh) -> Traffic:
    assert isinstance(equation.op, Collective)
    return equation.op.traffic(equation.inputs[0].type, mesh)


def verify_local(local: LocalProgram) -> LocalProgram:
    """Return `local` after checking its program and the shapes of its inputs and outputs.

    Raises:
        ProgramError: if the program is not well-formed, if an input or output is not a shard of its global array, or if
            it is partial and neither its type nor the request for the program is unreduced.
    """
    verify(local.program)
    explicit = local.mesh.explicit_axes
    for role, values, placements in (
        ("input", local.program.inputs, local.inputs),
        ("output", local.program.outputs, local.outputs),
    ):
        for index, (value, placement) in enumerate(zip(values, placements, strict=True)):
            if len(placement.layout.dims) != placement.type.ndim:
                raise ProgramError(
                    f"{local.program.name}: {role} {index}: {placement.layout} does not have the rank of "
                    f"{placement.type}"
                )
            for axis in placement.layout.axes:
                if axis not in local.mesh.shape:
                    raise ProgramError(f"{local.program.name}: {role} {index}: {local.mesh.unknown_axis_message(axis)}")
            if value.type.shape != placement.shard_shape(local.mesh) or value.type.dtype != placement.type.dtype:
                raise ProgramError(
                    f"{local.program.name}: {role} {index} is {value.type}, but a shard of {placement.type} in "
                    f"{placement.layout} has shape {placement.shard_shape(local.mesh)}"
                )
            axes = local.mesh.axis_names if placement.may_be_partial else explicit
            if any(axis not in axes or reduction is not SUM for axis, reduction in placement.layout.partial):
                raise ProgramError(f"{local.program.name}: {role} {index} is unreduced: {placement.layout}")
    return local

"""The compiler pipeline: from a Program with pinned inputs and outputs to StableHLO.

Each stage has its own type. A StageDump keeps the result of every pass, if the caller passes one. With the setting
`dump_to`, the dump of every compilation is written to a folder, formatted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, final

from shardwise.base.config import config
from shardwise.base.garbage_collection import pauses_garbage_collection
from shardwise.base.lazy import lazy_module as module_of
from shardwise.base.progress import set_stage
from shardwise.compiler.candidates.layout_problem import LayoutProblem, layout_problem
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.op import XLA_GPU_PLATFORMS
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.kernels.kernel import runs_kernels
from shardwise.compiler.lower.accumulate_products import accumulate_products
from shardwise.compiler.lower.fuse_quantize import fuse_quantize
from shardwise.compiler.lower.lower import StableHlo, lower
from shardwise.compiler.lower.split_norms import split_norms
from shardwise.compiler.lower.transpose_weights import transpose_weights
from shardwise.compiler.lower.unpack_small_arrays import unpack_small_arrays
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.product_options import product_options
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.stage_dump import StageDump
from shardwise.compiler.transforms.crop_pads import crop_pads
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.erase_shardings import erase_shardings
from shardwise.compiler.transforms.erase_varying import erase_varying
from shardwise.compiler.transforms.hoist import hoist
from shardwise.compiler.transforms.host_copies import NO_HOST_ARRAYS, HostArrays
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.inline_single_trips import inline_single_trips
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.compiler.transforms.merge_factorizations import merge_factorizations
from shardwise.compiler.transforms.merge_stacks import merge_stacks

if TYPE_CHECKING:
    from shardwise.compiler.schedule import combine_thresholds as thresholds
    from shardwise.compiler.schedule import schedule as scheduling
    from shardwise.compiler.search import fit_memory, move_exchanges, narrow_gathers
    from shardwise.compiler.search import improve as improving
else:  # loaded on first use: few programs need them
    fit_memory = module_of("shardwise.compiler.search.fit_memory")
    improving = module_of("shardwise.compiler.search.improve")
    move_exchanges = module_of("shardwise.compiler.search.move_exchanges")
    narrow_gathers = module_of("shardwise.compiler.search.narrow_gathers")
    scheduling = module_of("shardwise.compiler.schedule.schedule")
    thresholds = module_of("shardwise.compiler.schedule.combine_thresholds")
# `inline` is first because `lower_keys` expects no calls; `dce` is last because `merge_stacks` and `crop_pads` leave
# unused equations.
SIMPLIFICATIONS = (
    inline,
    erase_varying,
    lower_keys,
    inline_single_trips,
    hoist,
    merge_stacks,
    crop_pads,
    merge_factorizations,
    dce,
)
_dumps = count()


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """A program at every compiler stage. PRNG keys are arrays of words in all of them.

    Attributes:
        problem: the program with the candidate layouts of every equation.
        plan: the chosen layouts.
        partitioned: the program of one device.
        local: the same program with its communication scheduled.
        module: the StableHLO module.
        out_types: the types of the outputs as users see them, with key types.
    """

    problem: LayoutProblem
    plan: LayoutPlan
    partitioned: LocalProgram
    local: LocalProgram
    module: StableHlo
    out_types: tuple[ArrayType, ...]

    def with_expert_imbalance(self, expert_imbalance: float) -> "Stages":
        """Return the stages whose predicted times are those of this imbalance of experts."""
        return replace(self, local=self.local.with_expert_imbalance(expert_imbalance))


@pauses_garbage_collection
def run_stages(
    program: Program,
    mesh: AbstractMesh,
    in_pins: Sequence[Pin],
    out_pins: Sequence[Pin | None],
    donated: Sequence[bool] = (),
    platform: str = "cpu",
    chip: Chip = CPU,
    memory_limit: int | None = None,
    out_names: Sequence[str] = (),
    user_meshes: Sequence[AbstractMesh] = (),
    dump: StageDump | None = None,
    as_partitions: bool = False,
    host: HostArrays = NO_HOST_ARRAYS,
) -> Stages:
    """Run every stage that needs no device.

    Args:
        program: the traced program.
        mesh: the mesh.
        in_pins: the layout of each input.
        out_pins: the layout of each output, or None if the planner chooses it.
        donated: for each input, whether its buffer may be reused for an output.
        platform: the target platform.
        chip: the hardware for which layouts are chosen.
        memory_limit: the most bytes that each device should hold.
        out_names: the names of the outputs, for messages.
        user_meshes: the user's meshes. Each output layout must be expressible in the axes of one of them.
        dump: keeps the result of every pass; by default, results are kept only for the setting `dump_to`.
        as_partitions: whether the devices of the module are partitions, instead of replicas.
        host: the inputs that are in host memory when the module runs, and the outputs that it must leave there.
    """
    dump = StageDump(keeps=bool(config.dump_to)) if dump is None else dump
    dump.add("trace", program)
    set_stage("simplifying")
    # Shardings are erased after `simplify`, because `merge_stacks` and `crop_pads` skip values with Explicit shardings.
    simplified, shardings = erase_shardings(simplify(program, dump), mesh)
    dump.add("erase_shardings", simplified)
    ins = [
        _pin_words(pin, type) if is_key(type.dtype) else pin
        for pin, type in zip(in_pins, program.in_types, strict=True)
    ]
    outs = [
        _pin_words(pin, type) if is_key(type.dtype) else pin
        for pin, type in zip(out_pins, program.out_types, strict=True)
    ]
    set_stage("choosing layouts")
    problem = layout_problem(simplified, mesh, ins, outs, out_names, user_meshes, shardings, host=host)
    dump.add("layout_problem", problem)
    plan = choose(problem, chip)
    dump.add("choose", plan)
    set_stage("partitioning")
    local = partition(problem, plan)
    dump.add("partition", local)
    donors = [number for number, is_donated in enumerate(donated) if is_donated]
    planned = PartitionedProgram(problem, plan, local)
    set_stage("improving the plan")
    # `fit_memory` is last, because the two searches before it may increase memory by up to `MEMORY_RATIO`.
    first = planned
    if local.collectives():
        planned = narrow_gathers.narrow_gathers(planned)
        dump.add("narrow_gathers", planned)
        planned = move_exchanges.move_exchanges(planned, donors)
        dump.add("move_exchanges", planned)
    if config.improve_plans:
        planned = improving.improve(planned, donors)
        dump.add("improve", planned)
    if memory_limit is not None:
        forms = [planned] if planned.problem.program is first.problem.program else [planned, first]
        planned = fit_memory.fit_any_in_memory(forms, memory_limit, donors)
        dump.add("fit_memory", planned)
    problem, plan, local = planned
    options: dict[str, bool | int] = {}
    if platform in XLA_GPU_PLATFORMS:
        options.update(product_options(local, chip))
    if chip.overlaps and config.schedule_communication and (local.collectives() or local.host_copies()):
        set_stage("scheduling")
        local = scheduling.schedule(planned.local, chip, memory_limit, donors)
        dump.add("schedule", local)
        if platform in XLA_GPU_PLATFORMS:
            options.update(thresholds.combine_thresholds(local))
    set_stage("lowering")
    # Plans for a GPU that are made elsewhere have its kernels too.
    if runs_kernels(platform) or (platform not in XLA_GPU_PLATFORMS and chip.platform == "gpu"):
        for rewrite in (accumulate_products, transpose_weights, split_norms, fuse_quantize, unpack_small_arrays):
            local = replace(local, program=rewrite(local.program))
            dump.add(rewrite.__name__, local)
    module = lower(local, donated, platform, as_partitions, options)
    dump.add("lower", module)
    if config.dump_to:
        dump.write(Path(config.dump_to) / f"{next(_dumps):04}-{program.name}")
    return Stages(problem, plan, planned.local, local, module, program.out_types)


def simplify(program: Program, dump: StageDump | None = None) -> Program:
    """Return a traced program without calls, keys and dead code, as `layout_problem` expects it.

    Args:
        program: the traced program.
        dump: keeps the result of every pass.
    """
    program = verify(program)
    for simplification in SIMPLIFICATIONS:
        program = simplification(program)
        if dump is not None:
            dump.add(simplification.__name__, program)
    return program


def _pin_words(pin: Pin | None, type: ArrayType) -> Pin:
    """Return the pin of an array of keys as words. The trailing dim of words, implicit in a key type, is unsharded."""
    if pin is None:
        return Pin(Layout.replicated(type.ndim + 1), frozenset(range(type.ndim)))
    return Pin(Layout((*pin.layout.dims, ()), pin.layout.partial), pin.open_dims, pin.reason)

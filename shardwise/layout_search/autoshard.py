"""autoshard: choose the mesh and the shardings of all arguments of a step by its predicted time and memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise import tree_util
from shardwise.api.arguments import function_name
from shardwise.api.jit import Jitted, jit
from shardwise.api.static_args import NO_ARGUMENTS
from shardwise.base.garbage_collection import pauses_garbage_collection
from shardwise.base.progress import Task
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip as chip_named
from shardwise.compiler.plan.hardware import chip_of
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, device_grid
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import spec_of
from shardwise.errors import AutoshardError
from shardwise.execute.request import memory_limit_of
from shardwise.explain.simulate import check_expert_imbalance
from shardwise.explain.text import human_bytes
from shardwise.layout_search.evaluate import PLAIN, Alternative
from shardwise.layout_search.meshes import STAGE
from shardwise.layout_search.pipelines import PipelineOptions
from shardwise.layout_search.result import AutoSharding
from shardwise.layout_search.search import MAX_EQUATIONS
from shardwise.layout_search.source import StepSource, pipeline_parameters
from shardwise.layout_search.step import BATCH, Step, pinned_sharding, program_meshes
from shardwise.layout_search.variants import VariantSearch
from shardwise.runtime.client import devices as all_devices

_LARGER = 6  # doublings of the device count to try if nothing fits


def autoshard(
    step: Callable[..., Any],
    *,
    devices: Sequence[Any] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    hardware: str | Chip | None = None,
    count: int | None = None,
    memory_limit: int | None = None,
    stages: Sequence[int] | None = None,
    microbatches: Sequence[int] | None = None,
    chunks: Sequence[int] | None = None,
    expert_imbalance: float = 1.0,
) -> Callable[..., AutoSharding]:
    """Return a function that chooses the mesh and the shardings of all arguments and results of a step.

    Nothing runs. The step is traced and planned with many layouts of its arguments; the layout with the least predicted
    time that fits in memory is chosen. If a plan that does not fit would be faster, plans that rematerialize values of
    scan bodies in the backward pass are compared too (the setting `checkpoint_scans`). Shardings of arguments, and
    constraints in the step, are kept.

    Args:
        step: a function such as `step(state, batch)` that returns the new state and other results, jitted or not.
            Memory of arguments that a jitted step donates is counted once. A step that scans over its layers may be
            divided into stages. A step with a pipeline of its own also has keyword parameters,
            `step(state, batch, *, mesh, microbatches)`, which are chosen: the mesh has an axis `stage`, which may
            have size 1. If it has the parameter `chunks` too, the number of stages on each device is also
            chosen.
        devices: the devices to use, for which the shape of the mesh is chosen; by default all devices.
        mesh: the mesh to use, if its shape is not to be chosen.
        hardware: the chip to plan for, as for `simulate` ("h100", "v5e", …); by default the chip of the devices.
        count: the number of such chips, which need not be present.
        memory_limit: the bytes that each device may hold; by default the memory of the chip, and no limit on CPU.
        stages: the numbers of pipeline stages to try, of which 1 is no pipeline; by default the divisors of both the
            number of devices and the number of layers, and only 1 for devices in one node. For a pipelined step, the
            number of layers is the most common size of dim 0 in the state.
        microbatches: the numbers of microbatches of a pipeline to try; by default multiples of the stages.
        chunks: for a pipelined step with this parameter, the numbers of stages on each device to try; by default the
            divisors of the number of layers.
        expert_imbalance: how many times the mean number of tokens the device with the busiest experts has, as in
            `simulate`. It lengthens plans in which devices exchange tokens, and no others.

    Returns:
        A function of the arguments of the step, arrays or ShapeDtypeStructs, that returns an AutoSharding.

    Raises:
        HardwareError: if the hardware is unknown.
        TypeError: if `devices` is not a list, or `mesh` is not a mesh; when called, if arguments have keywords.
        ValueError: if more than one of `devices`, `mesh` and `count` is passed, or `count` without `hardware`; if the
            step has static arguments, or keyword parameters that a pipelined step does not have; when called, if the
            mesh has Explicit axes, if constraints in the step are on a mesh of another size, if no number of
            microbatches divides the batch, or if `stages` has no 1 and the step no scan that they divide; if
            `expert_imbalance` is less than 1.
        AutoshardError: when called, if no plan fits in memory. It states the number of devices on which a plan would
            fit.

    Example:
        >>> def step(w, x):
        ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        >>> w, x = (jax.ShapeDtypeStruct((rows, 4096), jnp.float32) for rows in (4096, 1 << 18))
        >>> result = jax.autoshard(step, hardware="h100", count=8)(w, x)
        >>> result.in_shardings[0].spec, result.wire_bytes
        (P(None, 'data'), 0)
    """
    _check_options(devices, mesh, hardware, count, memory_limit)
    check_expert_imbalance("autoshard", expert_imbalance)
    target = None if hardware is None else chip_named(hardware)
    jitted = step if isinstance(step, Jitted) else jit(step)
    if jitted.options.static != NO_ARGUMENTS:
        raise ValueError("autoshard: the step has static arguments: bind them with functools.partial first")

    parameters = pipeline_parameters(jitted.function)
    options = PipelineOptions(stages, microbatches, chunks)
    _check_pipeline_options(options, parameters)

    @pauses_garbage_collection
    def call(*args: Any, **keywords: Any) -> AutoSharding:
        if keywords:
            raise TypeError(
                f"autoshard: pass the arguments of the step by position, not as keywords: {', '.join(keywords)}"
            )
        platform = {} if target is None else {"target_platform": target.platform}
        source = StepSource(jitted, args, platform, parameters)
        place = _place(source, devices, mesh, count, target)
        limit = memory_limit_of(place.chip) if memory_limit is None else memory_limit
        search = VariantSearch(source, place.chip, limit, options, expert_imbalance)
        with Task(f"autoshard of `{function_name(jitted.function)}`"):
            alternatives = search.run(place.size, None if place.mesh is None else place.mesh.abstract)
        if not alternatives:
            raise _no_alternatives(source, place.size, stages if place.mesh is None else None)
        best = alternatives[0]
        if not best.fits:
            raise _does_not_fit(search, best, place.size, may_grow=place.mesh is None)
        chosen = place.mesh or _mesh_on(best.mesh, place.devices)
        traced = source.trace(best.variant)
        shardings = _shardings(traced, args, chosen, best.layouts)
        settings = {} if memory_limit is None else {"memory_limit": memory_limit}
        settings.update(best.variant.settings)
        return AutoSharding(
            source.bind(best.variant, chosen),
            args,
            chosen,
            shardings,
            [traced.request.names[number] for number in traced.next_outputs],
            alternatives,
            place.chip,
            settings,
            platform,
            expert_imbalance,
        )

    return call


def _check_options(
    devices: Sequence[Any] | None,
    mesh: Mesh | AbstractMesh | None,
    hardware: str | Chip | None,
    count: int | None,
    memory_limit: int | None,
) -> None:
    """Raise an error for options that contradict each other, or have wrong values."""
    if sum(option is not None for option in (devices, mesh, count)) > 1:
        raise ValueError("autoshard: pass only one of `devices`, `mesh` and `count`")
    if count is not None and (hardware is None or not isinstance(count, (int, np.integer)) or count < 1):
        raise ValueError(
            f"autoshard: `count` is the number of chips of `hardware`: pass both, and count ≥ 1, not {count}"
        )
    if devices is not None and (not isinstance(devices, (Sequence, np.ndarray)) or isinstance(devices, str)):
        raise TypeError(f"autoshard: `devices` is a list of devices, such as jax.devices()[:4], not {devices!r}")
    if devices is not None and not len(devices):
        raise ValueError("autoshard: devices is empty")
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"autoshard: `mesh` is a Mesh or an AbstractMesh, not {mesh!r}")
    if memory_limit is not None and (not isinstance(memory_limit, (int, float, np.integer)) or memory_limit <= 0):
        raise ValueError(f"autoshard: `memory_limit` is the bytes that each device may hold, not {memory_limit!r}")


@dataclass(frozen=True)
class _Place:
    """Where a step is to run.

    Attributes:
        mesh: the mesh; None if it is chosen.
        devices: the devices; None if they need not be present.
        chip: their kind.
        size: their number.
    """

    mesh: Mesh | AbstractMesh | None
    devices: list[Any] | None
    chip: Chip
    size: int


def _place(
    source: StepSource,
    devices: Sequence[Any] | None,
    mesh: Mesh | AbstractMesh | None,
    count: int | None,
    target: Chip | None,
) -> _Place:
    """Return where a step is to run, from the options or from the step itself; by default, on all devices.

    Raises:
        ValueError: if the mesh has Explicit axes, or differs from the options.
    """
    if mesh is not None and mesh.abstract.explicit_axes:
        raise ValueError("autoshard: the mesh has Explicit axes, along which types decide; use axes of type Auto")
    found = mesh or _mesh_of_step(source)
    present = None if devices is None else list(devices)
    if found is not None:
        _check_mesh(found, devices, count, source.is_pipelined)
        size = found.size
        present = list(found.flat_devices) if isinstance(found, Mesh) else present
    elif count is not None:
        size = count
    else:
        present = list(all_devices()) if present is None else present
        size = len(present)
    chip = target or chip_of(present[0].device_kind if present else "cpu")
    return _Place(found, present, chip, size)


def _check_pipeline_options(options: PipelineOptions, parameters: Sequence[str]) -> None:
    """Raise an error for options without a parameter of the step, or with numbers that are not positive."""
    for name in ("stages", "microbatches", "chunks"):
        numbers = getattr(options, name)
        if numbers is None:
            continue
        if name == "chunks" and not parameters:
            raise ValueError(
                "autoshard: `chunks` is for a pipelined step, which has the keyword parameters `mesh`, `microbatches` "
                "and `chunks`"
            )
        if name == "chunks" and name not in parameters:
            raise ValueError("autoshard: `chunks` is for a pipelined step that has a keyword parameter `chunks`")
        if not all(isinstance(number, (int, np.integer)) and number >= 1 for number in numbers) or not numbers:
            raise ValueError(f"autoshard: `{name}` are the positive numbers to try, such as (2, 4), not {numbers!r}")


def _mesh_of_step(source: StepSource) -> Mesh | AbstractMesh | None:
    """Return the mesh of the pinned arguments and constraints, or None.

    Raises:
        ValueError: if there are several.
    """
    pins = (pinned_sharding(leaf) for leaf in tree_util.tree_leaves(source.args))
    meshes = [sharding.mesh for sharding in pins if sharding is not None]
    if not source.is_pipelined:
        meshes += program_meshes(source.trace(PLAIN).program)
    distinct = list(dict.fromkeys(meshes))
    if len(distinct) > 1:
        raise ValueError(f"autoshard: the arguments and constraints of the step are on several meshes: {distinct}")
    return distinct[0] if distinct else None


def _check_mesh(
    mesh: Mesh | AbstractMesh, devices: Sequence[Any] | None, count: int | None, is_pipelined: bool
) -> None:
    if is_pipelined and STAGE not in mesh.axis_names:
        raise ValueError(
            f"autoshard: the mesh of a pipelined step needs an axis {STAGE!r}, which {mesh!r} does not have"
        )
    given = len(devices) if devices is not None else count
    if given is not None and given != mesh.size:
        raise ValueError(
            f"autoshard: arguments or constraints of the step are on {mesh!r}, which has {mesh.size} devices, not "
            f"{given}. Leave them out, or do not pass `devices` or `count`."
        )


def _mesh_on(mesh: AbstractMesh, devices: Sequence[Any] | None) -> Mesh | AbstractMesh:
    """Return a mesh of these devices; without devices, the AbstractMesh."""
    return mesh if devices is None else Mesh(device_grid(devices, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)


def _shardings(
    step: Step, args: tuple[Any, ...], mesh: Mesh | AbstractMesh, layouts: Sequence[Layout]
) -> tuple[Any, Any]:
    """Return the shardings of the arguments and results as trees, with None for results that are not state."""
    leaves, structure = tree_util.tree_flatten(args)

    def sharding(number: int) -> NamedSharding:
        ndim = step.request.program.in_types[number].ndim  # without the trailing dim of key words
        return step.pins[number] or NamedSharding(mesh, spec_of(Layout(layouts[number].dims[:ndim])))

    inputs = [sharding(number) for number in range(len(leaves))]
    outputs: list[NamedSharding | None] = [None] * step.structure.num_leaves
    for number, output in step.next_outputs.items():
        outputs[output] = inputs[number]
    return tree_util.tree_unflatten(structure, inputs), step.structure.unflatten(outputs)


def _no_alternatives(source: StepSource, size: int, stages: Sequence[int] | None) -> ValueError:
    """Return the error for a step without any plan; only pipelines may have none."""
    name = function_name(source.jitted.function)
    layers = None
    if not source.is_pipelined and stages is not None:
        if source.layer_scan is None:
            return ValueError(
                f"autoshard: `{name}` has no scan over layers that can be a pipeline, so `stages` must contain 1, not "
                f"only {stages}. Such a scan carries arrays whose dim 0 has the rows of the batch, slices stacked "
                "weights, stacks no results, and computes each row from this row alone, whatever the number of rows."
            )
        layers = source.layer_scan.layers
    for count, what in ((size, "devices"), (layers, "layers")):
        if stages is not None and count is not None and all(count % number for number in stages):
            return ValueError(f"autoshard: none of the numbers of stages, {stages}, divides the {count} {what}")
    return ValueError(
        f"autoshard: on {size} devices, no number of microbatches divides the rows of the batch evenly. Change the "
        "size of the batch, or pass other numbers of `stages`, `microbatches` or `chunks`; stages divide the "
        "microbatches if there are chunks."
    )


def _does_not_fit(search: VariantSearch, least: Alternative, count: int, may_grow: bool) -> AutoshardError:
    """Return the error for a step without a plan that fits, with the smallest configuration that was found to fit."""
    assert search.memory_limit is not None
    text = (
        f"autoshard: no plan of `{function_name(search.source.jitted.function)}` fits in "
        f"{human_bytes(search.memory_limit)} per device on {count} × {search.chip.name}. "
    )
    if search.may_fit(count):
        text += f"The smallest plan needs {human_bytes(least.peak_bytes)}: {least.strategy} on mesh {least.mesh}."
    else:
        text += f"Every plan needs at least {human_bytes(search.least_bytes(count))}."
    with Task(f"autoshard of `{function_name(search.source.jitted.function)}`"):
        larger = _smallest_count(search, count) if may_grow else None
    if larger is None:
        most = count << _LARGER if may_grow else count
        more = f" None was found for up to {most} devices either." if may_grow else ""
        state_bytes = _state_bytes(search.source.trace(least.variant)) / most
        remedy = (
            f"The state alone needs {human_bytes(state_bytes)} per device on {most} devices: use more devices, or "
            "devices with more memory."
            if state_bytes > search.memory_limit
            else "Recompute activations with jax.checkpoint, or use a smaller batch."
        )
        return AutoshardError(f"{text}{more}\n  {remedy}", least)
    devices = math.prod(larger.mesh.axis_sizes)
    return AutoshardError(
        f"{text}\n  It would fit on {devices} devices: {larger.strategy} on mesh {larger.mesh}, "
        f"{human_bytes(larger.peak_bytes)} per device.",
        least,
        larger,
    )


def _state_bytes(step: Step) -> int:
    """Return the bytes of all arguments but the batch."""
    return sum(type.nbytes for type, role in zip(step.types, step.roles, strict=True) if role != BATCH)


def _smallest_count(search: VariantSearch, count: int) -> Alternative | None:
    """Return a plan on the smallest number of devices on which one fits, by doubling; None if none does."""
    for _ in range(_LARGER):
        count *= 2
        if search.may_fit(count) and (found := search.find_fitting(count, MAX_EQUATIONS / 2)):
            return found
    return None

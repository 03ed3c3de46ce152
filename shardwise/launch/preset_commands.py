"""`shardwise autoshard`, and `simulate` and `explain` of presets, whose shardings `autoshard` chooses."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from shardwise.base.progress import Task
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.errors import AutoshardError
from shardwise.execute.request import memory_limit_of
from shardwise.explain.failures import Failures
from shardwise.explain.simulate import Simulation
from shardwise.explain.sweep import MESH, run_sweep
from shardwise.explain.text import count_text, human_bytes, human_seconds
from shardwise.jax_modules.install import as_jax
from shardwise.launch.command_errors import run_command
from shardwise.launch.failure_options import with_failures
from shardwise.launch.load_target import CommandError, load_target, parse_mesh_text, parse_variables
from shardwise.launch.preset_target import (
    Batch,
    check_preset_name,
    is_preset_name,
    parse_batch,
    parse_number,
    preset_step,
)
from shardwise.launch.report_files import print_sweep, write_reports
from shardwise.launch.smaller_microbatches import faster_without_limit, search_smaller_microbatches
from shardwise.layout_search.autoshard import autoshard
from shardwise.layout_search.comparison import strategy_text
from shardwise.layout_search.evaluate import Alternative
from shardwise.layout_search.result import AutoSharding
from shardwise.sharding import AbstractMesh

_PREFIX = "autoshard: "  # of the messages of its errors


def run_autoshard(parsed: Namespace) -> int:
    """Run `shardwise autoshard`, and return the exit code."""
    return run_command("autoshard", partial(_autoshard, parsed))


def _autoshard(parsed: Namespace) -> None:
    """Print the best plan in one line, then why others are not chosen."""
    target = chip(parsed.hardware)
    mesh = parse_mesh_text(parsed.mesh) if parsed.mesh else None
    if (mesh is None) == (parsed.count is None):
        raise CommandError("write either --count, the number of devices, or --mesh, such as --mesh data=64,model=8")
    if parsed.count is not None and parsed.count < 1:
        raise CommandError(f"--count {parsed.count}: there must be at least one device")
    batch: Batch | None = None
    step: Callable[..., Any]
    if is_preset_name(parsed.target):
        check_preset_name(parsed.target)
        if parsed.set:
            raise CommandError("--set needs a function: a model has --tokens, --sequences, --length and --microbatches")
        batch = parse_batch(parsed, parsed.count or mesh.size)  # type: ignore[union-attr]
        step, args = preset_step(parsed.target, batch)
    else:
        step, args = _function_step(parsed)
    limit = parse_number("--memory-limit", parsed.memory_limit, "70G") if parsed.memory_limit else None
    search = partial(
        autoshard,
        hardware=target,
        mesh=mesh,
        count=parsed.count,
        memory_limit=None if limit is None else int(limit),
        expert_imbalance=parsed.expert_imbalance,
    )
    with Task(f"autoshard of `{parsed.target}`"), _own_errors(batch):
        if batch is None or parsed.microbatches is not None:
            result = search(step)(*args)
        else:
            batch, result = _search_microbatches(parsed.target, batch, search, limit or memory_limit_of(target))
        print(summary(parsed.target, result, batch))
    print(result if parsed.table else result.comparison)
    write_reports(result.simulation, parsed)


def _search_microbatches(
    name: str, batch: Batch, search: Callable[..., Callable[..., AutoSharding]], memory: float | None
) -> tuple[Batch, AutoSharding]:
    """Return the best plan for a batch, in more microbatches if it does not fit in memory, or only if it is slow."""
    step, args = preset_step(name, batch)
    try:
        result = search(step)(*args)
    except AutoshardError as error:
        assert memory is not None and isinstance(error.least, Alternative)  # otherwise all plans fit
        found = search_smaller_microbatches(name, batch, search, error.least, memory)
        if found is None:
            raise
        return found
    too_large = None if memory is None else faster_without_limit(result, memory)
    if too_large is None or memory is None:
        return batch, result
    found = search_smaller_microbatches(name, batch, search, too_large, memory)
    return (batch, result) if found is None or found[1].seconds >= result.seconds else found


@contextmanager
def _own_errors(batch: Batch | None) -> Iterator[None]:
    """Return a context that turns the errors of autoshard into errors of the command. Those of the step stay."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(_PREFIX):
            raise
        text = str(error).removeprefix(_PREFIX)
        if batch is not None and isinstance(error, AutoshardError) and isinstance(error.larger, Alternative):
            text += f" This is for the same batch: --count {error.larger.mesh.size} --sequences {batch.sequences}."
        raise CommandError(text) from error


def _function_step(parsed: Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the step of a target that is a function, and its arguments."""
    as_jax()
    target = load_target(parsed.target, parsed.arguments)
    choice = {name: values[-1] for name, values in parse_variables(parsed.set).items()}
    target.check(list(choice))
    return target.function, target.call_arguments(choice)


def summary(name: str, result: AutoSharding, batch: Batch | None) -> str:
    """Return the answer of `autoshard` as one line."""
    run, best = result.simulation, result.best
    shortest, longest = map(human_seconds, run.interval)
    interval = f" ({shortest} to {longest})" if shortest != longest else ""
    used = f"{_memory_text(result)} per device"
    rate = ""
    if batch is not None:
        accumulated = f" in {batch.microbatches} microbatches" if batch.microbatches > 1 else ""
        rate = (
            f", {batch.tokens / run.seconds:,.0f} tokens/s ({count_text(batch.sequences, 'sequence')} of "
            f"{batch.length:,} tokens"
            f"{accumulated})"
        )
    return (
        f"{name} on {best.mesh.size} {run.plan.chip.name}: {strategy_text(best)}: {human_seconds(run.seconds)} per step"
        f"{interval}, {100 * run.model_utilization:.1f}% MFU, {used}{rate}"
    )


def _memory_text(result: AutoSharding) -> str:
    """Return the memory that a device needs, and its limit, if there is one."""
    run = result.simulation
    if result.memory_limit is not None:
        return f"{human_bytes(run.peak_bytes)} of a limit of {human_bytes(result.memory_limit)}"
    memory = "" if memory_limit_of(run.plan.chip) is None else f" of {human_bytes(run.plan.chip.memory)}"
    return f"{human_bytes(run.device_bytes)}{memory}"


def explain_preset(parsed: Namespace, hardware: Chip | None, choice: Mapping[str, Any]) -> None:
    """Print the plan of a preset on a mesh."""
    check_preset_name(parsed.target)
    if hardware is None:
        raise CommandError(f"{parsed.target!r} is planned for hardware: write --hardware, such as --hardware h100")
    if parsed.stages or parsed.pin or parsed.measured:
        raise CommandError("--stages, --pin and --measured need a function or a module, not a model")
    result = _on_mesh(parsed, hardware, _one_mesh(choice), 1.0)
    print(result.plan)
    write_reports(result.simulation, parsed)


def simulate_preset(
    parsed: Namespace, chips: Sequence[Chip], variables: Mapping[str, Sequence[Any]], failures: Failures | None
) -> None:
    """Print the predicted run of a preset on a mesh, or a sweep over meshes and chips."""
    check_preset_name(parsed.target)
    meshes = variables.get(MESH, ())
    hardware = [replace(each, overlaps=False) for each in chips] if parsed.no_overlap else list(chips)
    if len(hardware) == 1 and len(meshes) <= 1:
        if parsed.plot:
            raise CommandError("--plot needs several configurations: repeat --mesh or --hardware")
        mesh = _one_mesh({name: values[0] for name, values in variables.items()})
        run = _on_mesh(parsed, hardware[0], mesh, parsed.expert_imbalance).simulation
        print(with_failures(run, failures))
        write_reports(run, parsed)
        return
    if not meshes or set(variables) > {MESH}:
        raise CommandError(
            "a sweep of a model needs --mesh, and may have several of --mesh and --hardware, but no --set"
        )
    if parsed.page or parsed.trace or failures is not None:
        raise CommandError("--page, --trace and --failures need one configuration: do not repeat --mesh or --hardware")
    step, args = preset_step(parsed.target, parse_batch(parsed, max(mesh.size for mesh in meshes)))

    def simulate(step: Any, hardware: Chip, mesh: AbstractMesh, overlap: bool | None) -> Callable[..., Simulation]:
        search = autoshard(step, hardware=hardware, mesh=mesh, expert_imbalance=parsed.expert_imbalance)
        return lambda *args: search(*args).simulation

    print_sweep(run_sweep(simulate, step, args, hardware, list(meshes), None, {}), parsed)


def _one_mesh(choice: Mapping[str, Any]) -> AbstractMesh:
    if set(choice) != {MESH}:
        unknown = next((name for name in choice if name != MESH), None)
        raise CommandError(
            "a model needs a mesh: write --mesh, such as --mesh data=64,model=8; `shardwise autoshard` chooses one"
            if unknown is None
            else f"--set {unknown}: a model has --tokens, --sequences, --length and --microbatches instead"
        )
    mesh: AbstractMesh = choice[MESH]
    return mesh


def _on_mesh(parsed: Namespace, hardware: Chip, mesh: AbstractMesh, expert_imbalance: float) -> AutoSharding:
    """Return the shardings that `autoshard` chooses for a preset on a mesh."""
    step, args = preset_step(parsed.target, parse_batch(parsed, mesh.size))
    return autoshard(step, hardware=hardware, mesh=mesh, expert_imbalance=expert_imbalance)(*args)

"""The commands `shardwise explain`, `advise`, `simulate` and `calibrate`. `simulate_parser.py` has their arguments."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardwise.api.ahead_of_time.aot import Compiled, Lowered
from shardwise.base.config import config
from shardwise.base.lazy import lazy_module
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.chip_table import check_table, format_chip, write_chip
from shardwise.compiler.plan.hardware import built_in_chips, chip, user_table
from shardwise.compiler.report.report import Plan
from shardwise.compiler.stage_dump import StageDump
from shardwise.errors import HardwareError
from shardwise.execute.launch_hooks import LaunchedProgram, launch_hooks
from shardwise.execute.plan_report import replan_report
from shardwise.execute.request import Request, partition_request
from shardwise.explain.calibrate import Calibration, calibrate
from shardwise.explain.calibrate_trace import TraceCalibration, calibrate_trace
from shardwise.explain.device_trace import DeviceTrace, read_trace
from shardwise.explain.plan import Explanation, prepare, target_chip
from shardwise.explain.simulate import Simulation, simulate
from shardwise.explain.sweep import MESH, sweep
from shardwise.jax_modules.install import as_jax
from shardwise.launch.command_errors import run_command
from shardwise.launch.failure_options import parse_failures, with_failures
from shardwise.launch.load_target import (
    CommandError,
    check_file,
    is_script,
    load_target,
    parse_mesh_text,
    parse_variables,
)
from shardwise.launch.module_target import is_module_file, load_module
from shardwise.launch.preset_commands import explain_preset, simulate_preset
from shardwise.launch.preset_target import is_preset_name
from shardwise.launch.report_files import print_sweep, write_reports
from shardwise.launch.script import run_script, summary_after_script
from shardwise.launch.simulate_parser import ARGUMENTS

if TYPE_CHECKING:
    from shardwise.launch import jax_commands
else:  # it imports jax
    jax_commands = lazy_module("shardwise.launch.jax_commands")

_T = TypeVar("_T")


def run_explain(parsed: Namespace, script_arguments: Sequence[str] = ()) -> int:
    """Run `shardwise explain`, and return the exit code. `script_arguments` are the arguments after `--`."""
    return run_command("explain", partial(_explain, parsed, script_arguments))


def run_simulate(parsed: Namespace, script_arguments: Sequence[str] = ()) -> int:
    """Run `shardwise simulate`, and return the exit code. `script_arguments` are the arguments after `--`."""
    return run_command("simulate", partial(_simulate, parsed, script_arguments))


def run_advise(parsed: Namespace, script_arguments: Sequence[str] = ()) -> int:
    """Run `shardwise advise`, and return the exit code. `script_arguments` are the arguments after `--`."""
    return run_command("advise", lambda: jax_commands.advise_script(parsed, script_arguments))


def run_calibrate(parsed: Namespace) -> int:
    """Run `shardwise calibrate`, and return the exit code."""
    return run_command("calibrate", partial(_calibrate, parsed))


def _calibrate(parsed: Namespace) -> None:
    """Measure this machine, or read a profile, write the chip to a table, and print it."""
    path = parsed.output or user_table()
    if parsed.name.lower() in built_in_chips():
        raise HardwareError(f"--name: {parsed.name!r} is the name of a built-in chip: choose another")
    check_table(path, built_in_chips())
    result = _calibration(parsed, partial(print, file=sys.stderr, flush=True))
    write_chip(path, result.chip, built_in_chips(), result.comment)
    print(format_chip(result.chip, result.comment))
    hardware = result.chip.name if parsed.output is None else f"{path}:{result.chip.name}"
    print(f'{path} has it: use hardware="{hardware}"')


def _calibration(parsed: Namespace, report: Callable[[str], None]) -> Calibration | TraceCalibration:
    if parsed.from_trace is None:
        if options := [name for name in ("base", "program", "hlo") if getattr(parsed, name)]:
            raise CommandError(f"--{options[0]} needs --from-trace: without it, this machine is measured")
        return calibrate(parsed.name, report=report)
    return calibrate_trace(parsed.from_trace, parsed.name, parsed.base, parsed.program, parsed.hlo, report)


def _explain(parsed: Namespace, script_arguments: Sequence[str]) -> None:
    chips, variables = _parse(parsed, script_arguments)
    hardware = _single("--hardware", chips) if chips else None
    if parsed.measured and (parsed.inside_jax or is_script(parsed.target)):
        raise CommandError("--measured needs a function, FILE.py:FUNCTION: a script may compile several")
    trace = read_trace(parsed.measured) if parsed.measured else None
    hardware = target_chip(hardware, trace)
    if parsed.inside_jax:
        jax_commands.explain_script(parsed, script_arguments, hardware)
        return
    if is_script(parsed.target):
        _run_watched(
            parsed.target, script_arguments, lambda request: print(_plan_or_stages(request, hardware, parsed.stages))
        )
        return
    choice = {name: _single(name, values) for name, values in variables.items()}
    if is_module_file(parsed.target):
        _explain_module(parsed, choice, hardware, trace)
        return
    if is_preset_name(parsed.target):
        explain_preset(parsed, hardware, choice)
        return
    if parsed.pin:
        raise CommandError("--pin needs a module, FILE.mlir or FILE.bin: the arguments of a function have shardings")
    as_jax()
    target = load_target(parsed.target, parsed.arguments)
    target.check(list(variables))
    _explain_function(parsed, target.function, target.call_arguments(choice), hardware, trace)


def _explain_module(
    parsed: Namespace, choice: dict[str, Any], hardware: Chip | None, trace: DeviceTrace | None
) -> None:
    if parsed.arguments != ARGUMENTS:
        raise CommandError("--arguments needs a function: a module states the types of its arguments")
    sizes = {name: value for name, value in choice.items() if name != MESH}
    with config.override("enable_x64", True):  # the module states all dtypes
        target = load_module(parsed.target, choice.get(MESH), sizes)
        _explain_function(parsed, target.function, target.call_arguments(parsed.pin), hardware, trace)


def _explain_function(
    parsed: Namespace,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    hardware: Chip | None,
    trace: DeviceTrace | None,
) -> None:
    dump = StageDump() if parsed.stages else None
    if dump is not None and isinstance(function, (Lowered, Compiled)):
        raise CommandError(f"--stages: {parsed.target!r} is already lowered. Name the function that it was made of")
    prepared = prepare(function, args, {}, hardware, dump)
    explanation = Explanation(prepared, hardware, not parsed.no_advice, trace)
    print(explanation if dump is None else dump)
    if parsed.page:
        explanation.write_html(parsed.page)
    if parsed.trace:
        Simulation(prepared.request, prepared.stages, hardware).write_trace(parsed.trace)


def _simulate(parsed: Namespace, script_arguments: Sequence[str]) -> None:
    chips, variables = _parse(parsed, script_arguments)
    overlap = False if parsed.no_overlap else None
    failures = parse_failures(parsed.failures) if parsed.failures is not None else None
    if is_script(parsed.target):
        hardware = _single("--hardware", chips)

        def show(request: Request) -> None:
            stages, _ = partition_request(request, request.target(), hardware)
            run = Simulation(request, stages.with_expert_imbalance(parsed.expert_imbalance))
            print(with_failures(run, failures))

        _run_watched(parsed.target, script_arguments, show)
        return
    if is_preset_name(parsed.target):
        simulate_preset(parsed, chips, variables, failures)
        return
    as_jax()
    target = load_target(parsed.target, parsed.arguments)
    target.check(list(variables))
    if len(chips) == 1 and all(len(values) == 1 for values in variables.values()):
        if parsed.plot:
            raise CommandError("--plot needs several configurations: repeat --mesh, --hardware or --set")
        args = target.call_arguments({name: values[0] for name, values in variables.items()})
        run = simulate(target.function, hardware=chips[0], overlap=overlap, expert_imbalance=parsed.expert_imbalance)(
            *args
        )
        run = with_failures(run, failures)
        print(run)
        write_reports(run, parsed)
        return
    if parsed.page or parsed.trace or parsed.failures:
        raise CommandError(
            "--page, --trace and --failures need one configuration: do not repeat --mesh, --hardware or --set"
        )
    runs = sweep(
        target.function,
        target.arguments,
        hardware=chips,
        overlap=overlap,
        expert_imbalance=parsed.expert_imbalance,
        **variables,
    )
    print_sweep(runs, parsed)


def _parse(parsed: Namespace, script_arguments: Sequence[str]) -> tuple[list[Chip], dict[str, list[Any]]]:
    """Return the chips, and the values of the mesh and of other variables."""
    if not is_script(parsed.target) and script_arguments:
        raise CommandError(f"only a script has arguments, not {parsed.target!r}: {' '.join(script_arguments)}")
    if is_script(parsed.target) and (parsed.mesh or parsed.set or parsed.page or parsed.trace):
        raise CommandError(
            "a script has its own meshes and arguments: --mesh, --set, --page and --trace need a function"
        )
    variables = parse_variables(parsed.set)
    if parsed.mesh:
        variables[MESH] = [parse_mesh_text(text) for text in parsed.mesh]
    return [chip(name) for name in parsed.hardware or ()], variables


def _single(name: str, values: Sequence[_T]) -> _T:
    if len(values) != 1:
        raise CommandError(f"{name} can be given once here; `shardwise simulate FILE.py:FUNCTION` sweeps over several")
    return values[0]


def _plan_or_stages(request: Request, hardware: Chip | None, stages: bool) -> Plan | StageDump:
    dump = StageDump() if stages else None
    report = replan_report(request, hardware, dump)
    return report if dump is None else dump


def _run_watched(script: str, arguments: Sequence[str], show: Callable[[Request], None]) -> None:
    """Run a script, and show every jitted function when it is compiled."""
    shown = False

    def on_launch(launch: LaunchedProgram, runs: bool) -> None:
        nonlocal shown
        if not runs and launch.request.out_names:  # ops outside jit have no output names
            shown = True
            show(launch.request)

    def print_summary() -> None:
        if not shown:
            print(
                f"{script} has run, and compiled no jitted function. "
                f"To show one that it does not call: {script}:FUNCTION"
            )

    check_file(Path(script))
    launch_hooks.add(on_launch)
    try:
        with summary_after_script(print_summary):
            run_script(script, arguments, is_module=False)
    finally:
        launch_hooks.remove(on_launch)

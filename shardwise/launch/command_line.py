"""The command `shardwise`, or `python -m shardwise`: one parser with all subcommands."""

import os
import signal
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.base.lazy import lazy_module
from shardwise.launch.checkpoint_parser import add_checkpoint_arguments
from shardwise.launch.compile_command import add_compile_arguments, run_compile
from shardwise.launch.completion import SHELLS, completion_script
from shardwise.launch.doctor import run_doctor
from shardwise.launch.options import LaunchOptions
from shardwise.launch.script import run_script
from shardwise.launch.simulate_parser import (
    add_advise_arguments,
    add_autoshard_arguments,
    add_calibrate_arguments,
    add_explain_arguments,
    add_simulate_arguments,
    split_script_arguments,
)
from shardwise.launch.standard_streams import discard_output, open_standard_streams
from shardwise.launch.subcommand import CommandParser, add_command
from shardwise.version import __version__

if TYPE_CHECKING:
    from shardwise.checkpoints import commands as checkpoint_commands
    from shardwise.launch import chip_list, launcher, postmortem, preset_commands, simulate_commands
else:
    # These load the API, rich and the checkpoints, which takes half a second and is unnecessary for the other commands.
    checkpoint_commands = lazy_module("shardwise.checkpoints.commands")
    chip_list = lazy_module("shardwise.launch.chip_list")
    preset_commands = lazy_module("shardwise.launch.preset_commands")
    simulate_commands = lazy_module("shardwise.launch.simulate_commands")
    postmortem = lazy_module("shardwise.launch.postmortem")
    # This needs signals and process groups, which Windows does not have.
    launcher = lazy_module("shardwise.launch.launcher")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the command. Return the exit code.

    Args:
        arguments: the arguments; by default, the arguments of this process.
    """
    open_standard_streams()
    parser = _parser()
    given = sys.argv[1:] if arguments is None else list(arguments)
    script_arguments: list[str] = []
    if given and given[0] in ("advise", "explain", "simulate"):
        given, script_arguments = split_script_arguments(given)
    parsed = parser.parse_args(given)
    if parsed.command == "run":
        _check_script(parser, parsed)
        run_script(parsed.script, parsed.arguments, parsed.is_module, parsed.exact)
        return 0
    try:
        code = _run_command(parser, parsed, script_arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has ended
        discard_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print(f"shardwise {parsed.command}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run_command(parser: ArgumentParser, parsed: Namespace, script_arguments: Sequence[str]) -> int:
    match parsed.command:
        case "launch":
            _check_script(parser, parsed)
            return _launch(parser, parsed)
        case "checkpoint":
            return checkpoint_commands.run_checkpoint_command(parsed)
        case "autoshard":
            return preset_commands.run_autoshard(parsed)
        case "compile":
            return run_compile(parsed)
        case "explain":
            return simulate_commands.run_explain(parsed, script_arguments)
        case "simulate":
            return simulate_commands.run_simulate(parsed, script_arguments)
        case "advise":
            return simulate_commands.run_advise(parsed, script_arguments)
        case "calibrate":
            return simulate_commands.run_calibrate(parsed)
        case "postmortem":
            return postmortem.run_postmortem(parsed.folder, as_json=parsed.json)
        case "completion":
            print(completion_script(parser, parsed.shell, chip_list.chip_names()), end="")
            return 0
        case _:
            return run_doctor(as_json=parsed.json)


def _parser() -> ArgumentParser:
    parser = CommandParser(
        prog="shardwise",
        description="Run programs with Shardwise, and check checkpoints and this machine.",
        epilog="shardwise COMMAND --help describes a command and shows an example. Exit codes: 0 if all is well, 1 if "
        "the command found something wrong, 2 if it could not do its work, 128 + N after signal N; `run` and `launch` "
        "end with the code of the script.",
    )
    parser.add_argument("--version", action="version", version=f"shardwise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = add_command(
        commands,
        "run",
        "run a script or a module in which `import jax` is Shardwise",
        "shardwise run train.py --steps 100\nshardwise run --exact -m package.train",
    )
    run.add_argument(
        "--exact",
        action="store_true",
        help='behave exactly as JAX: the setting jax_compatibility is "exact"',
    )
    _add_script(run)

    launch = add_command(
        commands,
        "launch",
        "run a script in several processes, which use their devices together",
        "shardwise launch -n 2 --devices-per-process 4 train.py\n"
        "shardwise launch -n 8 --nodes 2 --node-rank 0 --coordinator host0:1234 train.py",
    )
    launch.add_argument("-n", "--processes", type=int, required=True, help="the number of processes, on each node")
    launch.add_argument("--devices-per-process", type=int, metavar="N", help="virtual CPU devices or GPUs per process")
    launch.add_argument("--nodes", type=int, default=1, help="the number of launchers, one on each node")
    launch.add_argument("--node-rank", type=int, default=0, metavar="RANK", help="the number of this launcher, from 0")
    launch.add_argument("--coordinator", default="", metavar="HOST:PORT", help="where launcher 0 hosts the coordinator")
    launch.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="how often all start again after a failure"
    )
    launch.add_argument(
        "--spares", type=int, metavar="N", help="replace processes that fail; N spare processes of each node are ready"
    )
    launch.add_argument(
        "--spare-nodes", type=int, default=0, metavar="N", help="with --spares: the last N nodes have only spares"
    )
    launch.add_argument(
        "--min-processes",
        type=int,
        default=1,
        metavar="N",
        help="the fewest of all nodes that continue without a spare",
    )
    launch.add_argument(
        "--replace-stragglers",
        action="store_true",
        help="with --spares: replace a process that delays the others for the seconds of the setting straggler_seconds",
    )
    launch.add_argument("--log-dir", type=Path, metavar="DIR", help="the folder of one log file per process")
    launch.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long processes wait for each other",
    )
    launch.add_argument(
        "--grace-period",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="from SIGTERM until the processes are killed",
    )
    launch.add_argument("--as-jax", action="store_true", help="`import jax` is Shardwise in the script")
    _add_script(launch)

    add_checkpoint_arguments(
        add_command(
            commands,
            "checkpoint",
            "list, verify, compare, export and import checkpoints",
            "shardwise checkpoint ls run",
        )
    )

    add_autoshard_arguments(
        add_command(
            commands,
            "autoshard",
            "choose the mesh and the shardings of a training step, and predict its time and memory",
            "shardwise autoshard llama3-70b --hardware h100 --count 512\n"
            "shardwise autoshard deepseek-v3 --hardware h100 --count 1024 --length 4096 --tokens 16M --table\n"
            "shardwise autoshard train.py:step --hardware v5p --count 256",
            "docs/simulate.md has the errors of predictions for published runs, by chip.",
        )
    )
    add_explain_arguments(
        add_command(
            commands,
            "explain",
            "show the plan of a function, a script or a module, or the program after every pass",
            "shardwise explain train.py:step --mesh data=4,model=2 --page plan.html\n"
            "shardwise explain step.mlir --mesh data=64,model=8 --hardware h100 --pin x=data --pin w=None,model\n"
            "shardwise explain train.py:step --mesh data=4,model=2 --stages",
        )
    )
    add_simulate_arguments(
        add_command(
            commands,
            "simulate",
            "predict the time and memory of a function on other hardware and meshes",
            "shardwise simulate train.py:step --hardware h100 --mesh data=64,model=8",
            "docs/simulate.md has the errors of predictions for published runs, by chip.",
        )
    )
    add_advise_arguments(
        add_command(
            commands,
            "advise",
            "run a script on real JAX, and print the five changes that save most communication",
            "shardwise advise train.py --hardware h100 -- --steps 1",
        )
    )
    add_compile_arguments(
        add_command(
            commands,
            "compile",
            "compile functions into the compilation cache, also for devices that are not present",
            "shardwise compile train.py:step --mesh data=8 --cache ~/cache\n"
            "shardwise compile train.py:step --mesh data=4,model=8 --topology 4x1x8 --target-config h200.txtpb "
            "--cache s3://bucket/cache",
        )
    )
    add_calibrate_arguments(
        add_command(
            commands,
            "calibrate",
            "measure the devices of this machine for `simulate`, and write a chip",
            "shardwise calibrate --name our-h100",
        )
    )

    doctor = add_command(
        commands, "doctor", "check this machine, and say how to fix what is wrong", "shardwise doctor --json"
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")

    record_parser = add_command(
        commands,
        "postmortem",
        "say which process of a launch stopped where, after a hang or a crash",
        "shardwise postmortem /tmp/shardwise-launch-x3k9",
    )
    record_parser.add_argument("folder", type=Path, help="the folder of the log files, or of launch_record_dir")
    record_parser.add_argument("--json", action="store_true", help="print the records as JSON")

    completion = add_command(
        commands,
        "completion",
        "print a script that completes commands, options and chips in a shell",
        'eval "$(shardwise completion bash)"      # in ~/.bashrc; zsh in ~/.zshrc\n'
        "shardwise completion fish > ~/.config/fish/completions/shardwise.fish",
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def _add_script(parser: ArgumentParser) -> None:
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as `python -m` does")
    parser.add_argument("script", help="the script, or the module with -m")
    parser.add_argument("arguments", nargs=REMAINDER, help="the arguments of the script")


def _check_script(parser: ArgumentParser, parsed: Namespace) -> None:
    path = Path(parsed.script)
    if not parsed.is_module and not path.is_file():
        problem = "is a folder, not a script" if parsed.script and path.is_dir() else "does not exist"
        parser.error(f"the script {parsed.script!r} {problem}")


def _launch(parser: ArgumentParser, parsed: Namespace) -> int:
    if not hasattr(os, "killpg"):
        parser.error(
            "launch needs process groups, which this system does not have. "
            "Start each process yourself, and call distributed.initialize with its rank and the coordinator's address"
        )
    command = launcher.python_command(parsed.script, parsed.arguments, is_module=parsed.is_module, as_jax=parsed.as_jax)
    try:
        options = LaunchOptions(
            command,
            parsed.processes,
            devices_per_process=parsed.devices_per_process,
            nodes=parsed.nodes,
            node_rank=parsed.node_rank,
            coordinator=parsed.coordinator,
            spares=parsed.spares,
            spare_nodes=parsed.spare_nodes,
            min_processes=parsed.min_processes,
            replace_stragglers=parsed.replace_stragglers,
            max_restarts=parsed.max_restarts,
            log_folder=parsed.log_dir,
            timeout=parsed.timeout,
            grace_period=parsed.grace_period,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        code = launcher.Launcher(options).run()
    except BrokenPipeError:  # the reader of the output has ended
        code = 128 + signal.SIGPIPE
    except (OSError, ValueError) as error:  # the log folder, or the coordinator's address
        # Without the errno, if the error is ours.
        text = error.strerror if isinstance(error, OSError) and not error.filename else None
        print(f"shardwise launch: {text or error}", file=sys.stderr)
        code = 2
    os._exit(code)  # XLA's coordination service would wait for processes that were killed

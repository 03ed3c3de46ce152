"""The arguments of `shardwise autoshard`, `explain`, `simulate` and `calibrate`.

Parsing them does not load the commands.
"""

import math
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from shardwise.base.lazy import lazy_module

if TYPE_CHECKING:
    from shardwise.launch import chip_list
else:
    chip_list = lazy_module("shardwise.launch.chip_list")  # it loads the planner and rich

_CONTRACT = """\
TARGET is FILE.py:FUNCTION or package.module:FUNCTION. The same file has a function `arguments` that returns the
arguments of FUNCTION, a tuple of arrays or ShapeDtypeStructs with shardings. It is called with those of its parameters
that the command line sets: `mesh`, and the names of --set.

TARGET may also be a script, FILE.py. It runs with `import jax` as Shardwise, and every program that it compiles is
shown. Its arguments follow `--`.
"""

_PRESETS = """
TARGET may also be a model of `shardwise.models`, such as llama3-70b, mixtral-8x7b or deepseek-v3: its training step.
`autoshard` chooses its shardings on --mesh.
"""
_AUTOSHARD = """\
TARGET is a model of `shardwise.models`, such as llama3-70b, mixtral-8x7b or deepseek-v3, or FILE.py:FUNCTION or
package.module:FUNCTION. The same file then has a function `arguments` that returns the arguments of FUNCTION, a tuple
of arrays or ShapeDtypeStructs. The mesh, the shardings of all arguments and recomputation are chosen by predicted time
and memory. The first line of the output is the answer; the others say why other plans were not chosen.
"""
_MODULES = """
TARGET may also be a file: a module of StableHLO, FILE.mlir or FILE.mlirbc, or a function of `export`, FILE.bin. It is
planned for --mesh, whose devices need not exist; by default, for the mesh that the file states. --pin states how an
argument is sharded: its name or index, and the axes of each of its dims. --set is the size of a symbolic dim.
"""
_CALIBRATE = """\
Measure the devices of this machine, and write their specs to a table of chips. With --from-trace, nothing runs: the
specs are fitted to the kernels and collectives of one step that XLA has profiled, on this machine or another.
"""
ARGUMENTS = "arguments"  # the default name of the function that returns the arguments


def add_explain_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise explain`."""
    _add_target(parser, hardware_required=False, repeatable="")
    parser.description = f"{_CONTRACT}{_PRESETS}{_MODULES}"
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="ARGUMENT=AXES",
        help="the sharding of an argument of a module, such as x=data,None or 0=data+model; repeat it for others",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="TRACE",
        help="compare with the kernels of a profile: a file *.xplane.pb, or the folder of `profiler.trace`",
    )
    parser.add_argument("--no-advice", action="store_true", help="do not plan again to find a better constraint")
    parser.add_argument("--stages", action="store_true", help="print the program after every compiler pass instead")
    parser.add_argument(
        "--inside-jax",
        action="store_true",
        help="run the script on real JAX, and show the plan of every function that JAX compiles for several devices",
    )


def add_autoshard_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise autoshard`."""
    parser.description, parser.formatter_class = _AUTOSHARD, RawDescriptionHelpFormatter
    parser.add_argument("target", metavar="TARGET", help="a model, FILE.py:FUNCTION, or module:FUNCTION")
    parser.add_argument("--hardware", required=True, metavar="CHIP", help="a chip, such as h100")
    parser.add_argument("--count", type=int, metavar="N", help="the number of devices, whose mesh is chosen")
    parser.add_argument("--mesh", metavar="AXES", help="the mesh, if it is not to be chosen, such as data=64,model=8")
    _add_batch(parser)
    parser.add_argument(
        "--memory-limit",
        metavar="BYTES",
        help="the bytes that each device may hold, such as 70G; by default, its memory",
    )
    _add_expert_imbalance(parser)
    parser.add_argument("--table", action="store_true", help="print the table of all plans that were compared")
    _add_arguments_function(parser, "")


def _add_batch(parser: ArgumentParser) -> None:
    """Add the options that state the batch of a model."""
    batch = parser.add_argument_group("the batch of a model")
    batch.add_argument("--tokens", metavar="N", help="tokens of a step, such as 4M")
    batch.add_argument(
        "--sequences", type=_positive, metavar="N", help="sequences of a step; by default, one per device"
    )
    batch.add_argument("--length", type=_positive, metavar="N", help="tokens of a sequence; by default, 8192")
    batch.add_argument(
        "--microbatches",
        type=_positive,
        metavar="N",
        help="parts of the batch whose gradients are accumulated; by default, of a sequence or 8192 tokens per device",
    )


def _add_expert_imbalance(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--expert-imbalance",
        type=_imbalance,
        default=1.0,
        metavar="RATIO",
        help="tokens of the device with the busiest experts, divided by the mean; by default 1, balanced experts",
    )


def _imbalance(text: str) -> float:
    number = float(text)
    if not 1 <= number < math.inf:
        raise ArgumentTypeError(f"must be at least 1, the balanced experts, not {text}")
    return number


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def add_advise_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise advise`."""
    parser.add_argument("target", metavar="SCRIPT", help="a script, FILE.py, which runs on real JAX")
    parser.add_argument("--hardware", metavar="CHIP", help="the chip to predict times for; by default, the devices")


def add_simulate_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise simulate`."""
    _add_target(parser, hardware_required=True, repeatable="; repeat it to sweep")
    parser.add_argument("--list-chips", action=_ListChips, nargs=0, help="print the known chips, and exit")
    _add_expert_imbalance(parser)
    parser.add_argument(
        "--failures",
        metavar="NAME=VALUE,…",
        help="also predict the goodput of a long job with failures: fields of `shardwise.Failures`, such as days=54",
    )
    parser.add_argument("--no-overlap", action="store_true", help="collectives do not run beside compute")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot of a sweep: .png, .svg or .pdf")


@final
class _ListChips(Action):
    """An option that prints the chips instead of running the command, as `--help` prints the help."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:
        chip_list.print_chips()
        parser.exit()


def split_script_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a command at `--`; the arguments after it are for a script."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def add_calibrate_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise calibrate`."""
    parser.description, parser.formatter_class = _CALIBRATE, RawDescriptionHelpFormatter
    parser.add_argument("--name", default="", help="the name of the chip; by default, such as h100-measured")
    parser.add_argument(
        "--from-trace",
        type=Path,
        metavar="TRACE",
        help="fit the chip to a profile instead: a file *.xplane.pb, or the folder of `profiler.trace`",
    )
    parser.add_argument("--base", metavar="CHIP", help="the chip whose specs stay that the profile does not determine")
    parser.add_argument("--program", default="", help="the jitted function in the profile; by default, the longest")
    parser.add_argument(
        "--hlo", type=Path, metavar="FILE", help="the optimized HLO of the function as text, if the profile has none"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the table to write to; by default, that of the setting chip_table"
    )


def _add_target(parser: ArgumentParser, *, hardware_required: bool, repeatable: str) -> None:
    parser.description, parser.formatter_class = f"{_CONTRACT}{_PRESETS}", RawDescriptionHelpFormatter
    parser.add_argument(
        "target", metavar="TARGET", help="FILE.py:FUNCTION, module:FUNCTION, a script FILE.py, or a model"
    )
    parser.add_argument(
        "--hardware",
        action="append",
        required=hardware_required,
        metavar="CHIP",
        help=f"a chip, such as h100, or the path of a table of chips{repeatable}",
    )
    parser.add_argument("--mesh", action="append", metavar="AXES", help=f"a mesh, such as data=8,model=4{repeatable}")
    _add_batch(parser)
    _add_arguments_function(parser, repeatable)


def _add_arguments_function(parser: ArgumentParser, repeatable: str) -> None:
    """Add the options of the function that returns the arguments, and of the files to write."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a parameter of the function `arguments`, such as batch=256{repeatable}",
    )
    parser.add_argument("--arguments", default=ARGUMENTS, metavar="NAME", help="another name of that function")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the plan as an HTML page")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline as a trace for Perfetto")

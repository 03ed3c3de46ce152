"""`shardwise explain --inside-jax` and `shardwise advise`: scripts that run on real JAX."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.explain.text import human_bytes, human_seconds
from shardwise.inside_jax.jit import unplanned
from shardwise.inside_jax.watch import CompiledCall, watch_compiles
from shardwise.launch.load_target import CommandError, check_file, is_script
from shardwise.launch.script import run_as_main, summary_after_script

CHANGES = 5  # the number of changes that `advise` prints


class _Change(NamedTuple):
    """A change of a script: the predicted seconds and the bytes that it saves per call, and what to do."""

    seconds: float
    sent: float
    text: str


def explain_script(parsed: Namespace, script_arguments: Sequence[str], hardware: Chip | None) -> None:
    """Run a script on real JAX, and print the plan of every function that JAX compiles for several devices.

    The script has the results of JAX's partitioner for all functions, those of `inside_jax.jit` too. A function that
    cannot be planned does not end it.

    Raises:
        CommandError: after the script, if a function cannot be planned.
    """
    names: list[str] = []
    rejected: list[str] = []

    def show(compiled: CompiledCall) -> None:
        names.append(compiled.call.name)
        try:
            text = str(compiled.explain(hardware, not parsed.no_advice))
        except Exception as error:  # no error of the planner, internal ones included, may end the user's script
            rejected.append(compiled.call.name)
            text = (
                f"{compiled.call.name} cannot be planned; `inside_jax.jit` raises\n"
                f"  {type(error).__name__}: {error}\n"
                "  In `shardwise explain`, the script goes on with JAX's own program."
            )
        print(text)
        print(f"\n  JAX's own program sends {human_bytes(compiled.wire.sent)} per device\n")

    def print_summary() -> None:
        if not names:
            print(_nothing_compiled(parsed.target))

    try:
        with unplanned():
            _run(parsed.target, script_arguments, show, print_summary)
    except SystemExit as end:
        if end.code or not rejected:
            raise
    if rejected:
        raise CommandError(
            f"{len(rejected)} of {len(names)} functions cannot be planned: {', '.join(rejected)}. The output has the "
            "errors."
        )


def advise_script(parsed: Namespace, script_arguments: Sequence[str]) -> None:
    """Run a script on real JAX, and print the changes of it that save most."""
    hardware = None if parsed.hardware is None else chip(parsed.hardware)
    compiled: list[CompiledCall] = []
    _run(parsed.target, script_arguments, compiled.append, lambda: _print_changes(parsed.target, compiled, hardware))


def _print_changes(script: str, compiled: Sequence[CompiledCall], hardware: Chip | None) -> None:
    """Print the changes of a script that save most, for the functions that JAX compiled in it."""
    if not compiled:
        print(_nothing_compiled(script))
        return
    sent = sum(each.wire.sent for each in compiled)
    print(
        f"{script}: JAX compiled {len(compiled)} function{'' if len(compiled) == 1 else 's'} for several "
        f"devices, which send {human_bytes(sent)} per device if each is called once"
    )
    changes: list[_Change] = []
    for each in compiled:
        try:
            changes += _changes(each, hardware)
        except Exception as error:  # the other functions have advice
            text = f"{type(error).__name__}: {error}"
            print(f"shardwise advise: `{each.call.name}` is left out: {text}", file=sys.stderr)
    best = sorted((change for change in changes if change.sent > 0), reverse=True)[:CHANGES]
    for number, change in enumerate(best, 1):
        saved = f"saves {human_bytes(change.sent)} sent per device and about {human_seconds(change.seconds)} per call"
        print(f"  {number}. {change.text} {saved}")
    if not best:
        print("  no change was found that sends less")


def _changes(compiled: CompiledCall, hardware: Chip | None) -> list[_Change]:
    """Return the changes that save bytes in one function."""
    call = compiled.call
    explanation = compiled.explain(hardware)
    plan = explanation.plan
    ours, theirs = plan.communication_seconds, compiled.seconds(plan.chip)
    changes = [
        _Change(
            theirs - ours,
            compiled.wire.sent - plan.wire_bytes,
            f"`{call.name}`: inside_jax.jit instead of jax.jit",
        )
    ]
    for advice in (explanation.advice, explanation.argument_advice):
        if advice.layout is not None:
            what = f"pinning {advice.what} to" if advice.old_layout is None else f"passing {advice.what} in"
            text = f"`{call.name}`, with inside_jax.jit: {what} {advice.layout}"
            changes.append(_Change(advice.before_seconds - advice.seconds, advice.before_sent - advice.sent, text))
    return changes


def _nothing_compiled(script: str) -> str:
    return f"{script} has run, and JAX compiled no function for several devices."


def _run(
    script: str,
    arguments: Sequence[str],
    on_compile: Callable[[CompiledCall], None],
    print_summary: Callable[[], None],
) -> None:
    """Run a script as `__main__`, with its own `jax`, and print a summary after it."""
    if not is_script(script):
        raise CommandError(f"{script!r} must be a script, FILE.py, which runs on real JAX")
    check_file(Path(script))
    with summary_after_script(print_summary), watch_compiles(on_compile):
        run_as_main(script, arguments)

"""The files that `shardwise explain` and `simulate` write: pages, traces and plots."""

from argparse import Namespace

from shardwise.explain.simulate import Simulation
from shardwise.explain.sweep import Sweep
from shardwise.launch.load_target import CommandError


def write_reports(run: Simulation, parsed: Namespace) -> None:
    """Write the page and the trace that the command line names."""
    if parsed.page:
        run.write_html(parsed.page)
    if parsed.trace:
        run.write_trace(parsed.trace)


def print_sweep(runs: Sweep, parsed: Namespace) -> None:
    """Print a sweep, and write the plot that the command line names.

    Raises:
        CommandError: if the plot has an unknown format, or if there is nothing to plot.
    """
    print(runs)
    if parsed.plot:
        try:
            runs.plot(parsed.plot)
        except ValueError as error:
            raise CommandError(f"--plot {parsed.plot}: {error}") from None

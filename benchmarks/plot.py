"""Plot the wire bytes of every workload, relative to JAX and to JAX with constraints by experts."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.row import Row

WIRE = ": wire bytes"


def wire_ratios(rows: list[Row], file: Path) -> None:
    """Write a bar chart with a logarithmic axis; below 1 we send less than JAX. The suffix of `file` is the format."""
    plotted = [row for row in rows if row.name.endswith(WIRE) and row.ratio]
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(plotted)), layout="constrained")
    axes = figure.add_subplot()
    for position, row in enumerate(plotted):
        for ratio, offset, colour in ((row.ratio, -0.19, "tab:blue"), (row.expert_ratio, 0.19, "tab:orange")):
            if ratio is not None:
                axes.barh(position + offset, ratio, 0.36, color=colour)
                axes.annotate(f" {ratio:.3g}", (ratio, position + offset), va="center", fontsize="x-small")
    axes.set_yticks(range(len(plotted)), [row.name.removesuffix(WIRE) for row in plotted], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel(
        "bytes sent per device and step, relative to JAX (blue) and to JAX with constraints by experts (orange)"
    )
    figure.savefig(file)

"""A picture of what is sent: for every workload, our wire bytes as a part of JAX's and of its experts'."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.row import Row

WIRE = ": wire bytes"


def wire_ratios(rows: list[Row], file: Path) -> None:
    """Bars on a logarithmic axis, left of the line at 1 where we are ahead. The file's suffix says what is written."""
    shown = [row for row in rows if row.name.endswith(WIRE) and row.ratio]
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(shown):
        for ratio, offset, colour in ((row.ratio, -0.19, "tab:blue"), (row.expert_ratio, 0.19, "tab:orange")):
            if ratio is not None:
                axes.barh(place + offset, ratio, 0.36, color=colour)
                axes.annotate(f" {ratio:.3g}", (ratio, place + offset), va="center", fontsize="x-small")
    axes.set_yticks(range(len(shown)), [row.name.removesuffix(WIRE) for row in shown], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel(
        "bytes that one device sends in a step: ours to JAX's (blue), to JAX's with experts' constraints (orange)"
    )
    figure.savefig(file)

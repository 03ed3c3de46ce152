"""sweep: simulate a function on several meshes, chips and sizes, as a table and a plot."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from shardwise.base.lazy import lazy_module
from shardwise.base.progress import Task
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.errors import ShardingError, StrategyError
from shardwise.explain import text
from shardwise.explain.simulate import Simulation, check_expert_imbalance, simulate
from shardwise.sharding import AbstractMesh, Mesh

if TYPE_CHECKING:
    from matplotlib import figure as plotting
else:  # an optional dependency whose import takes 600 ms
    plotting = lazy_module("matplotlib.figure")

HARDWARE, MESH = "hardware", "mesh"


@final
@dataclass(frozen=True, eq=False)
class SweepRow:
    """One configuration of a sweep.

    Attributes:
        variables: the value of each variable.
        run: the simulation; None if the function cannot be partitioned in this configuration.
        error: the reason in that case.
    """

    variables: Mapping[str, Any]
    run: Simulation | None
    error: str = ""

    @property
    def fits(self) -> bool:
        """Whether the program needs no more memory than a device has."""
        return self.run is not None and self.run.fits

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.run.plan.mesh.device_count if self.run is not None else 0

    def label(self, name: str) -> str:
        """Format the value of a variable."""
        return value_text(self.variables[name])


@final
@dataclass(frozen=True, repr=False)
class Sweep:
    """The simulations of a sweep. It prints as a table.

    Attributes:
        name: the name of the function.
        variables: the names of the variables.
        rows: one per configuration, the last variable varying fastest.
    """

    name: str
    variables: tuple[str, ...]
    rows: tuple[SweepRow, ...] = field(default=())

    @property
    def best(self) -> SweepRow | None:
        """The fastest configuration that fits the memory; None if none does."""
        return min((row for row in self.rows if row.fits), key=_seconds, default=None)

    @property
    def ties(self) -> tuple[SweepRow, ...]:
        """The other configurations that fit, and are slower than the best one by less than the error of predictions.

        The error is the larger one of the two chips (`Chip.prediction_error`).
        """
        best = self.best
        return tuple(row for row in self.rows if best is not None and row is not best and row.fits and _ties(best, row))

    def __str__(self) -> str:
        """Return the table: a line per configuration, with time, utilization, memory, bytes sent and the bound."""
        heads = [*self.variables, "time", "of peak", "memory", "sent", "bound by"]
        cells = [[*(row.label(name) for name in self.variables), *_figures(row)] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(heads, *(row[: len(heads)] for row in cells), strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [heads, *cells]
        ]
        best = self.best
        fastest = "none fits the memory" if best is None else ", ".join(map(best.label, self.variables))
        ends = [f"fastest that fits: {fastest}"]
        if ties := self.ties:
            error = max(row.run.plan.chip.prediction_error for row in (best, *ties) if row is not None and row.run)
            tied = "; ".join(", ".join(map(row.label, self.variables)) for row in ties)
            ends.append(f"ties with it, within the error of {100 * error:.0f}% of predictions: {tied}")
        return "\n".join([f"{self.name}: {len(self.rows)} configurations", *lines, *ends])

    __repr__ = __str__

    def plot(self, path: str | Path, x: str = "") -> Path:
        """Write a plot of time, utilization and memory. It needs matplotlib: `pip install shardwise[demo]`.

        Args:
            path: the file, whose suffix is the format: .png, .svg or .pdf.
            x: the variable on the horizontal axis, or "devices" for the number of devices, which is the default if that
                number varies. Each combination of the other variables is a line.

        Returns:
            The path.

        Raises:
            ValueError: if there is no such variable, nothing to plot, or no such format.
            ModuleNotFoundError: if matplotlib is not installed.

        Example:
            >>> x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
            >>> runs = jax.sweep(lambda x: x @ x, (x,), hardware=["a100", "h100"])
            >>> runs.plot("/tmp/products.svg").name
            'products.svg'
        """
        rows = [row for row in self.rows if row.run is not None]
        if not rows:
            raise ValueError(f"sweep: none of the {len(self.rows)} configurations can be simulated: nothing to plot")
        x = x or self._default_x(rows)
        if x not in ("devices", *self.variables):
            raise ValueError(f"sweep: there is no variable {x!r}. Variables: 'devices', {', '.join(self.variables)}.")
        others = [name for name in self.variables if name != x and not (x == "devices" and name == MESH)]
        lines: dict[str, list[SweepRow]] = {}
        for row in rows:
            lines.setdefault(", ".join(map(row.label, others)), []).append(row)
        _draw(self.name, x, lines, Path(path))
        return Path(path)

    def _default_x(self, rows: Sequence[SweepRow]) -> str:
        if len({row.devices for row in rows}) > 1:
            return "devices"
        varying = [name for name in self.variables if len({row.label(name) for row in rows}) > 1]
        return varying[-1] if varying else self.variables[0]


def sweep(
    function: Callable[..., Any],
    arguments: Callable[..., Any] | tuple[Any, ...],
    *,
    hardware: str | Chip | Sequence[str | Chip],
    mesh: AbstractMesh | Mesh | Sequence[AbstractMesh | Mesh] | None = None,
    overlap: bool | None = None,
    expert_imbalance: float = 1.0,
    **variables: Sequence[Any],
) -> Sweep:
    """Simulate a function in all combinations of hardware, meshes and other variables.

    Args:
        function: the function, jitted or not.
        arguments: its arguments, as a tuple; or a function that returns them, which is called with the variables that
            it has as parameters, such as `mesh` and `batch`.
        hardware: the chips, as in `simulate`.
        mesh: the meshes. If `arguments` does not depend on the mesh, their specs are moved to it, as in `simulate`.
        overlap: whether collectives overlap with compute; by default, as on the hardware.
        expert_imbalance: how many times the mean number of tokens the device with the busiest experts has, as in
            `simulate`.
        **variables: the values of further parameters of `arguments`.

    Returns:
        A Sweep, which prints as a table. Its `plot` draws it; its `rows` have a Simulation each. A configuration in
        which the function cannot be partitioned, such as with a dim that does not divide, is a row with an error.

    Raises:
        HardwareError: if hardware is unknown.
        TypeError: if a variable is not a parameter of `arguments`.
        ValueError: if a variable has no values, or if `expert_imbalance` is less than 1.

    Example:
        >>> def arguments(mesh, batch):
        ...     data = jax.NamedSharding(mesh, P("data"))
        ...     return jax.ShapeDtypeStruct((batch, 4096), jnp.bfloat16, sharding=data), jnp.ones((4096, 4096))
        >>> meshes = [jax.sharding.AbstractMesh((count,), ("data",)) for count in (8, 64)]
        >>> runs = jax.sweep(jnp.matmul, arguments, hardware="h100", mesh=meshes, batch=[4096, 8192])
        >>> len(runs.rows), runs.best.label("mesh")
        (4, 'data=64')
    """
    check_expert_imbalance("sweep", expert_imbalance)
    simulate_experts = partial(simulate, expert_imbalance=expert_imbalance)
    return run_sweep(simulate_experts, function, arguments, hardware, mesh, overlap, variables)


def run_sweep(
    simulate: Callable[..., Callable[..., Simulation]],
    function: Callable[..., Any],
    arguments: Callable[..., Any] | tuple[Any, ...],
    hardware: str | Chip | Sequence[str | Chip],
    mesh: Any,
    overlap: bool | None,
    variables: Mapping[str, Sequence[Any]],
) -> Sweep:
    """Return the sweep of a function by `simulate`, for functions, meshes and arguments of any library."""
    chips = [chip(item) for item in _as_list(hardware)]
    meshes = _as_list(mesh)
    parameters = parameters_of(arguments)
    if unknown := [name for name in variables if name not in parameters]:
        known = ", ".join(sorted(parameters)) or "none"
        raise TypeError(
            f"sweep: {unknown[0]!r} is not a parameter of the function `arguments`. Its parameters: {known}."
        )
    axes: dict[str, list[Any]] = {HARDWARE: list(chips), **({MESH: meshes} if mesh is not None else {})}
    axes.update({name: list(values) for name, values in variables.items()})
    if empty := [name for name, values in axes.items() if not values]:
        raise ValueError(f"sweep: there are no values of {empty[0]!r}, so there is nothing to simulate")
    rows = []
    choices = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    with Task(f"sweep of `{getattr(function, '__name__', 'function')}`") as task:
        for index, choice in enumerate(choices, 1):
            task.stage = f"configuration {index} of {len(choices)}"
            rows.append(_row(simulate, function, arguments, choice, overlap))
    name = next((row.run.plan.name for row in rows if row.run is not None), getattr(function, "__name__", "function"))
    return Sweep(name, tuple(axes), tuple(rows))


def parameters_of(arguments: Callable[..., Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names of the variables that the arguments of a function depend on."""
    return tuple(inspect.signature(arguments).parameters) if callable(arguments) else ()


def call_arguments(arguments: Callable[..., Any] | tuple[Any, ...], choice: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of one configuration, as a tuple."""
    if not callable(arguments):
        return arguments
    parameters = parameters_of(arguments)
    result = arguments(**{name: value for name, value in choice.items() if name in parameters})
    return result if isinstance(result, tuple) else (result,)


def value_text(value: Any) -> str:
    """Format the value of a variable: `data=8,model=4` for a mesh."""
    if isinstance(value, Chip):
        return value.name
    if hasattr(value, "axis_names"):  # a mesh, of JAX too
        return ",".join(f"{axis}={size}" for axis, size in value.shape.items())
    return str(value)


def _row(
    simulate: Callable[..., Callable[..., Simulation]],
    function: Callable[..., Any],
    arguments: Callable[..., Any] | tuple[Any, ...],
    choice: dict[str, Any],
    overlap: bool | None,
) -> SweepRow:
    mesh = None if MESH in parameters_of(arguments) else choice.get(MESH)
    try:
        args = call_arguments(arguments, choice)
        return SweepRow(choice, simulate(function, hardware=choice[HARDWARE], mesh=mesh, overlap=overlap)(*args))
    except (ShardingError, StrategyError) as error:
        return SweepRow(choice, None, str(error).splitlines()[0])


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _seconds(row: SweepRow) -> float:
    assert row.run is not None
    return row.run.seconds


def _ties(best: SweepRow, other: SweepRow) -> bool:
    assert best.run is not None and other.run is not None
    error = max(run.plan.chip.prediction_error for run in (best.run, other.run))
    return other.run.seconds <= (1 + error) * best.run.seconds


def _figures(row: SweepRow) -> list[str]:
    if row.run is None:
        return [row.error, "", "", "", ""]
    run = row.run
    bound = max(run.bounds, key=lambda name: run.bounds[name])
    memory = text.human_bytes(run.peak_bytes) + ("" if row.fits else " (does not fit)")
    sent = text.human_bytes(run.plan.wire_bytes)
    return [text.human_seconds(run.seconds), f"{100 * run.utilization:.1f}%", memory, sent, bound]


def _draw(name: str, x: str, lines: Mapping[str, Sequence[SweepRow]], path: Path) -> None:
    """Draw a panel for each metric, with a line for each combination of variables."""
    panels: tuple[tuple[str, str, Callable[[Simulation], float]], ...] = (
        ("seconds per call", "log", lambda run: run.seconds),
        ("% of peak flops", "linear", lambda run: 100 * run.utilization),
        ("GB per device", "log", lambda run: run.peak_bytes / 1e9),
    )
    places = {row: row.devices if x == "devices" else row.variables[x] for rows in lines.values() for row in rows}
    is_number = all(isinstance(place, (int, float)) and place > 0 for place in places.values())
    figure = plotting.Figure(figsize=(6.5, 7.5), layout="constrained")
    if path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"sweep: a plot cannot be written as {path.name!r}: use a suffix such as .png, .svg or .pdf")
    axes = figure.subplots(len(panels), 1, sharex=True)
    for panel, (title, scale, value) in zip(axes, panels, strict=True):
        for label, rows in lines.items():
            xs = [places[row] if is_number else value_text(places[row]) for row in rows]
            panel.plot(xs, [value(row.run) for row in rows if row.run], marker="o", label=label or None)
        if is_number and len({*places.values()}) > 1:
            ticks = sorted({*places.values()})
            panel.set_xscale("log", base=2)
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        panel.set_yscale(scale)
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
    limits: dict[int, list[str]] = {}
    for target in {row.run.plan.chip: None for row in places if row.run}:
        limits.setdefault(target.memory, []).append(target.name)
    for memory, names in limits.items():
        level = memory / 1e9
        axes[-1].axhline(level, color="black", linestyle="--", linewidth=0.8)
        label = f"memory of {', '.join(names)}"
        axes[-1].annotate(label, (0.01, level), xycoords=("axes fraction", "data"), va="top", fontsize="small")
    axes[0].set_title(name)
    axes[-1].set_xlabel(x)
    if any(lines):
        axes[0].legend(fontsize="small")
    figure.savefig(path)

"""calibrate_trace: fit the specs of a chip to one profiled step of the user's own program.

The profile has the time of every kernel, and the HLO in it says what each kernel computes. A spec is fitted to the
kernels that it bounds, such that the cost model predicts the sum of their times:

    kernel_gap           small kernels: the median of their times without the time of their bytes
    memory_fraction      kernels without products
    product_fraction     products of operands of 16 bits and less; f32_flops, those of wider ones
    attention_fraction   cuDNN's attention, and `attention_grad_ratio` its gradient
    link_fraction, links collectives of all sizes (`fit_links.py`)

A spec that no kernel determines stays that of the base chip, and its source says so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from statistics import median
from typing import Any, final

from shardwise.compiler.plan.chip import ASSUMED, Chip
from shardwise.compiler.plan.chip_table import FIGURES
from shardwise.compiler.plan.hardware import built_in_chip_of
from shardwise.compiler.plan.hardware import chip as chip_of
from shardwise.errors import HardwareError, ProfileError
from shardwise.explain.device_trace import ProgramTrace, read_trace
from shardwise.explain.fit_links import TimedCollective, fit_links, has_data_sheet
from shardwise.explain.traced_kernels import TracedKernel, traced_kernels
from shardwise.runtime.hlo_types import dtype_of

_SMALL = 2e-6  # seconds of work at full rate: a kernel with less is mostly overhead
_ROUNDS = 5  # the rate of a product depends on that of memory, which its partial sums use


@final
@dataclass(frozen=True)
class Fit:
    """One fitted spec.

    Attributes:
        spec: the name of the field of `Chip`.
        kernels: the number of kernels that determine it.
        seconds: their measured time.
        error: the median of the relative errors of the model for them, after the fit.
    """

    spec: str
    kernels: int
    seconds: float
    error: float

    def __str__(self) -> str:
        return f"{self.spec}: {self.kernels} kernels, {self.seconds * 1e3:.4g} ms, median error {self.error:.1%}"


@final
@dataclass(frozen=True)
class TraceCalibration:
    """The result of `calibrate_trace`.

    Attributes:
        chip: the chip with the fitted specs.
        device_kind: the kind of the devices in the profile.
        program: the name of the program in the profile.
        seconds: the measured time of the run.
        predicted_seconds: the time of all kernels of this run by the cost model of the chip.
        fits: the fitted specs.
    """

    chip: Chip
    device_kind: str
    program: str
    seconds: float
    predicted_seconds: float
    fits: tuple[Fit, ...] = field(repr=False)

    @property
    def comment(self) -> str:
        """The comment above its entry in a table of chips."""
        return f"Fitted by `shardwise calibrate` to a trace of {self.program} on {self.device_kind}."


def calibrate_trace(
    path: str | PathLike[str],
    name: str = "",
    base: str | Chip | None = None,
    program: str = "",
    hlo: str | PathLike[str] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> TraceCalibration:
    """Fit the specs of a chip to the kernels of one program in a profile.

    The run of the first device with the median time is used. Of a collective, the shortest time of all runs and
    devices is used: in the others, a device has waited for another one.

    Args:
        path: a file `*.xplane.pb`, or the folder that `profiler.trace` wrote to.
        name: the name of the chip; by default, that of the base chip with "-traced".
        base: the chip whose other specs are kept; by default, the built-in chip of the devices in the profile.
        program: the name of the jitted function; by default, the program with the most device time.
        hlo: a file with the optimized HLO of the program as text, if the profile has none.
        report: called with a line for each fitted spec.

    Returns:
        The chip, and how each spec was fitted.

    Raises:
        ProfileError: if the profile cannot be read, or has no run of the program.
        HardwareError: if the base chip is unknown.
    """
    traced = read_trace(path, hlo).program(program)
    start = _base(traced.device_kind, base)
    kernels = traced_kernels(traced, traced.typical, start)
    collectives = _timed_collectives(traced, start)
    fitter = _Fitter(start, traced.name)
    fitter.fit_gap([each for each in kernels if not each.is_collective])
    fitter.fit_rates([each for each in kernels if not each.is_collective])
    fitter.fit_links(collectives)
    for fit in fitter.fits:
        report(str(fit))
    if not fitter.fits:
        raise ProfileError(
            f"the profile {str(path)!r}: no kernel of {traced.name!r} determines a spec of a chip; they are all small. "
            "Profile a step of the size that you want to predict."
        )
    chip = replace(fitter.chip, name=(name or f"{start.name}-traced").lower(), sources=fitter.sources())
    predicted = sum(each.predicted_seconds(chip) for each in kernels)
    return TraceCalibration(
        chip, traced.device_kind, traced.name, traced.typical.seconds, predicted, tuple(fitter.fits)
    )


def _base(device_kind: str, base: str | Chip | None) -> Chip:
    if base is not None:
        return chip_of(base)
    known = built_in_chip_of(device_kind)
    if known is None:
        raise HardwareError(
            f"the devices of the profile are of the kind {device_kind!r}, which is not in the built-in table. "
            "Name the chip whose other specs are kept, such as --base h100"
        )
    return known


def _timed_collectives(program: ProgramTrace, chip: Chip) -> dict[str, TimedCollective]:
    """Return the collectives of a program by name, with the shortest time of all runs and devices."""
    timed: dict[str, TimedCollective] = {}
    for run in program.runs:
        for kernel in traced_kernels(program, run, chip):
            if kernel.collective is not None:
                before = timed.get(kernel.name)
                seconds = kernel.busy if before is None else min(before.seconds, kernel.busy)
                timed[kernel.name] = TimedCollective(kernel.collective.devices, kernel.collective.traffic, seconds)
    return timed


@final
class _Fitter:
    """A chip whose specs are fitted one after the other."""

    def __init__(self, base: Chip, program: str):
        self.base, self.program = base, program
        self.chip = base
        self.fits: list[Fit] = []

    def fit_gap(self, kernels: Sequence[TracedKernel]) -> None:
        """Fit the overhead of small kernels."""
        ideal = replace(self.base, product_fraction=1.0, memory_fraction=1.0, attention_fraction=1.0, kernel_gap=0.0)
        small = [each for each in kernels if each.work.accessed and each.work.seconds(ideal) < _SMALL]
        if small:
            gap = median(each.seconds - each.work.seconds(ideal) for each in small)
            self.chip = replace(self.chip, kernel_gap=max(0.0, gap))
            self._add("kernel_gap", small)

    def fit_rates(self, kernels: Sequence[TracedKernel]) -> None:
        """Fit the rates of memory, products and attention."""
        large = [each for each in kernels if each.work.accessed and each.seconds > 2 * self.chip.kernel_gap]
        streams = [each for each in large if each.work.product is None and each.work.attention is None]
        self._fit_rate("memory_fraction", "memory_bandwidth", streams)
        products = [each for each in large if each.work.product is not None and not self._is_stream(each)]
        self._fit_rate("product_fraction", "bf16_flops", [each for each in products if _width(each) <= 2])
        self._fit_rate("f32_flops", "f32_flops", [each for each in products if _width(each) > 2])
        attention = [(each, each.work.attention) for each in large]
        for spec, is_gradient in (("attention_fraction", False), ("attention_grad_ratio", True)):
            timed = [each for each, work in attention if work is not None and work.is_gradient == is_gradient]
            self._fit_rate(spec, None, timed)

    def fit_links(self, collectives: dict[str, TimedCollective]) -> None:
        """Fit the links."""
        if not collectives:
            return
        timed = list(collectives.values())
        self.chip = fit_links(self.chip, timed)
        errors = [abs(self.chip.ring_of(each.devices).time(each.traffic) / each.seconds - 1) for each in timed]
        self.fits.append(Fit("link_fraction", len(timed), sum(each.seconds for each in timed), median(errors)))

    def sources(self) -> tuple[tuple[str, str], ...]:
        """Return the source of each spec that has one."""
        measured = {fit.spec for fit in self.fits}
        kept = f"{ASSUMED}: that of {self.base.name}, which the trace does not determine"
        sources = {figure: kept for figure in FIGURES}
        sources.update({figure: f"measured: a trace of {self.program}" for figure in FIGURES if figure in measured})
        if "f32_flops" in measured and "product_fraction" not in measured:
            sources["product_fraction"] = (
                f"fitted: f32_flops, to a trace of {self.program}; other dtypes do not occur in it"
            )
        return tuple(sources.items())

    def _fit_rate(self, spec: str, peak: str | None, kernels: Sequence[TracedKernel]) -> None:
        """Scale a rate until the model predicts the sum of the times of kernels.

        Args:
            spec: the fraction, or the peak rate itself.
            peak: the peak rate, which is scaled if it is not of a data sheet, or if more than it is reached.
            kernels: the kernels that the rate bounds.
        """
        if not kernels:
            return
        measured = sum(each.seconds for each in kernels)
        for _ in range(_ROUNDS):
            gaps = len(kernels) * self.chip.kernel_gap
            predicted = sum(each.work.seconds(self.chip) for each in kernels)
            self._scale(spec, peak, (predicted - gaps) / max(measured - gaps, measured / 10))
        self._add(spec, kernels)

    def _scale(self, spec: str, peak: str | None, factor: float) -> None:
        values: dict[str, Any] = {spec: getattr(self.chip, spec) * factor}
        if spec != peak and (values[spec] > 1 or (peak is not None and not has_data_sheet(self.base))):
            if peak is not None:
                values[peak] = getattr(self.chip, peak) * values[spec]
            values[spec] = 1.0
        self.chip = replace(self.chip, **values)

    def _is_stream(self, kernel: TracedKernel) -> bool:
        product = kernel.work.product
        assert product is not None
        dtype = dtype_of(product.dtype)
        return self.chip.is_bound_by_memory(product.batch, product.m, product.n, product.k, kernel.work.accessed, dtype)

    def _add(self, spec: str, kernels: Iterable[TracedKernel]) -> None:
        rows = [(each.seconds, each.work.seconds(self.chip)) for each in kernels]
        error = median(abs(predicted / seconds - 1) for seconds, predicted in rows)
        self.fits.append(Fit(spec, len(rows), sum(seconds for seconds, _ in rows), error))


def _width(kernel: TracedKernel) -> int:
    """Return the bytes of an element of a product's operands."""
    assert kernel.work.product is not None
    return dtype_of(kernel.work.product.dtype).itemsize

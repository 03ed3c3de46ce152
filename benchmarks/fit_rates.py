"""Fit rates of a chip to published runs, by least squares of the relative errors of their throughputs.

    python -m benchmarks.fit_rates h100:eager product_fraction attention_fraction interference --jobs 2

Only the runs of the chip that `published_runs` has as fitted are used. The steps are those of Gauss and Newton in the
logarithms of the rates. The figures are to be written into chips.toml by hand.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from benchmarks.decoder_run import FITTED, DecoderRun, predict
from benchmarks.published_runs import ROWS
from shardwise.compiler.plan.hardware import chip

_STEPS = 3
_CHANGE = 0.02  # of a rate, relative, for the derivative of the errors


def error(run: DecoderRun) -> float:
    """Return the relative error of the predicted throughput of a run."""
    return predict(run).error(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chip", help="a chip with its profile, such as h100:eager")
    parser.add_argument("rates", nargs="+", help="figures of the chip, such as product_fraction")
    parser.add_argument("--jobs", type=int, default=1, help="processes that predict")
    parsed = parser.parse_args()
    runs = [run for run in ROWS if run.chip == parsed.chip and run.split == FITTED]
    values = np.array([getattr(chip(parsed.chip), rate) for rate in parsed.rates])
    with ProcessPoolExecutor(parsed.jobs, get_context("spawn")) as pool:
        for step in range(_STEPS + 1):
            points = [
                values,
                *(values * np.where(np.arange(len(values)) == n, 1 + _CHANGE, 1) for n in range(len(values))),
            ]
            changed = [_with_rates(run, parsed.rates, point) for point in points for run in runs]
            base, *others = np.array(list(pool.map(error, changed))).reshape(len(points), len(runs))
            figures = ", ".join(f"{rate} = {value:.4f}" for rate, value in zip(parsed.rates, values, strict=True))
            rms = np.sqrt(np.mean(base**2))
            print(
                f"{figures}: {len(runs)} runs, root mean square {100 * rms:.2f}%, mean {100 * base.mean():+.2f}%",
                flush=True,
            )
            if step < _STEPS:
                slopes = (np.array(others) - base).T / np.log1p(_CHANGE)
                values = values * np.exp(np.linalg.lstsq(slopes, -base, rcond=None)[0])


def _with_rates(run: DecoderRun, rates: Sequence[str], values: np.ndarray) -> DecoderRun:
    """Return a run on a chip with other rates."""
    return replace(run, specs=(*run.specs, *zip(rates, map(float, values), strict=True)))


if __name__ == "__main__":
    main()

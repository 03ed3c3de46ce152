"""Published training runs, and the throughputs that `simulate` predicts for them.

    python -m benchmarks.published_runs
    python -m benchmarks.published_runs h100 v5e

prints a table per chip, in tokens per second per device, and the errors by chip and split: runs to which figures of
chips.toml were fitted, runs on which the cost model was developed, and runs that were held out. The pipelined runs of
Megatron-LM on A100s follow (`megatron_runs.py`). All chips take about ten minutes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from benchmarks import gpu_rows, megatron_runs, tpu_rows
from benchmarks.decoder_run import FITTED, DecoderRun, Prediction, predict

ROWS = (*gpu_rows.ROWS, *tpu_rows.ROWS)


def chip_name(run: DecoderRun) -> str:
    """Return the name of a run's chip without its profile."""
    return run.chip.partition(":")[0]


def describe_errors(predictions: Mapping[DecoderRun, Prediction]) -> str:
    """Return the number of runs, their median and worst errors, and how many intervals contain the published value."""
    errors = {run: 100 * prediction.error(run) for run, prediction in predictions.items()}
    worst = max(errors, key=lambda run: abs(errors[run]))
    inside = sum(prediction.least <= run.published <= prediction.most for run, prediction in predictions.items())
    middle, mean_error = median(map(abs, errors.values())), fmean(errors.values())
    return (
        f"{len(errors):3} runs: median {middle:4.1f}%, mean {mean_error:+5.1f}%, "
        f"worst {errors[worst]:+5.1f}% ({worst.name}, {worst.devices:,} devices); {inside} within their intervals"
    )


def main(arguments: Sequence[str]) -> None:
    chips = [chip for chip in dict.fromkeys(map(chip_name, ROWS)) if chip in arguments or not arguments]
    predictions: dict[DecoderRun, Prediction] = {}
    for chip in chips:
        columns = f"{'split':12} {'published':>9} {'predicted':>9} {'interval':>15} {'error':>7}"
        print(f"\n{'chip':10} {'run':48} {'devices':>7} {columns}")
        for run in ROWS:
            if chip_name(run) == chip:
                predictions[run] = prediction = predict(run)
                _print_row(run, prediction)
    print()
    _print_errors(predictions, lambda run: f"{chip_name(run):5} {run.split}")
    print()
    fitted_sources = {(chip_name(run), run.source) for run in ROWS if run.split == FITTED}
    others = {run: predictions[run] for run in predictions if (chip_name(run), run.source) not in fitted_sources}
    _print_errors(others, lambda run: f"{chip_name(run):5} {run.split}, from sources of no fitted run")
    print()
    _print_errors(predictions, lambda run: f"{run.chip:10} {run.source}")
    print("\nnot predicted yet:")
    for chip, name, devices, tokens, reason, source in gpu_rows.UNPREDICTED:
        if chip.partition(":")[0] in chips:
            print(f"{chip:10} {name:48} {devices:7,} {tokens:9,.0f} ({reason}; {source})")
    if "a100" in chips:
        print()
        megatron_runs.main()


def _print_row(run: DecoderRun, prediction: Prediction) -> None:
    interval = f"{prediction.least:,.0f} – {prediction.most:,.0f}"
    rates = f"{run.published:9,.0f} {prediction.tokens:9,.0f} {interval:>15} {100 * prediction.error(run):+6.1f}%"
    print(f"{run.chip:10} {run.name:48} {run.devices:7,} {run.split:12} {rates}", flush=True)


def _print_errors(predictions: Mapping[DecoderRun, Prediction], key: Callable[[DecoderRun], str]) -> None:
    for group in dict.fromkeys(map(key, predictions)):
        members = {run: prediction for run, prediction in predictions.items() if key(run) == group}
        print(f"{group:78} {describe_errors(members)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Fit the links of a chip to measured times of collectives, by least squares of relative errors.

The time of a collective is linear in the inverse bandwidth and the latency of its links. Collectives within a node
determine the fast link; those between nodes then determine the slow link. The algorithm of a collective depends on the
fit, so the fit is repeated with the algorithms of the previous one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from shardwise.compiler.plan.chip import Chip, Link
from shardwise.compiler.plan.hardware import CPU, built_in_chips
from shardwise.compiler.traffic import Traffic

_FITS = 4
_LEAST_SPREAD = 2.0  # of the bytes per message: below, bandwidth and latency cannot be told apart


@final
@dataclass(frozen=True)
class TimedCollective:
    """A measured collective: the positions of its devices, its traffic, and its seconds."""

    devices: tuple[int, ...]
    traffic: Traffic
    seconds: float


def has_data_sheet(chip: Chip) -> bool:
    """Return whether the peak rates of a chip are those of a data sheet."""
    return chip.name in built_in_chips() and chip.name != CPU.name


def fit_links(chip: Chip, collectives: Sequence[TimedCollective]) -> Chip:
    """Return the chip with links that predict the times of collectives.

    A link that no collective uses stays. If all collectives send about the same bytes per message, the latency stays.
    """
    within = [each for each in collectives if is_within_node(chip, each.devices)]
    between = [each for each in collectives if not is_within_node(chip, each.devices)]
    if within:
        unit, rest = replace(chip, fast_link=Link(1.0, 1.0)), replace(chip, fast_link=Link(1.0, 0.0))
        chip = _with_fast_link(chip, *_fit(unit, rest, within, chip.fast_link.latency))
    if between:
        unit = replace(chip, fast_link=Link(math.inf, 0.0), slow_link=Link(1.0, 1.0))
        rest = replace(chip, slow_link=Link(1.0, 0.0))  # the hops within nodes
        bandwidth, latency = _fit(unit, rest, between, chip.slow_link.latency)
        chip = replace(chip, slow_link=Link(bandwidth / chip.link_fraction, latency))
    return chip


def is_within_node(chip: Chip, devices: Sequence[int]) -> bool:
    """Return whether fast links connect all devices at these positions."""
    return len({device // chip.fast_domain_size for device in devices}) <= 1


def _with_fast_link(chip: Chip, bandwidth: float, latency: float) -> Chip:
    """Return the chip with a fast link that reaches this bandwidth."""
    if has_data_sheet(chip) and bandwidth <= chip.fast_link.bandwidth:
        link = Link(chip.fast_link.bandwidth, latency)
        return replace(chip, fast_link=link, link_fraction=bandwidth / link.bandwidth)
    slow = Link(min(chip.slow_link.bandwidth, bandwidth), max(chip.slow_link.latency, latency))
    return replace(chip, fast_link=Link(bandwidth, latency), slow_link=slow, link_fraction=1.0)


def _fit(unit: Chip, rest: Chip, collectives: Sequence[TimedCollective], latency: float) -> tuple[float, float]:
    """Return the bandwidth that collectives reach on one kind of link, and its latency.

    Args:
        unit: the chip whose links have bandwidth 1 and latency 1, and others take no time.
        rest: the chip whose links have no latency.
        collectives: the collectives.
        latency: the latency, if the collectives do not determine it.
    """
    unit, seconds = replace(unit, link_fraction=1.0), np.array([each.seconds for each in collectives])
    options = [_terms(unit, rest, each) for each in collectives]
    chosen = [terms[0] for terms in options]
    for _ in range(_FITS):
        inverse, fitted = _solve(np.array(chosen), seconds, latency)
        chosen = [min(terms, key=partial(np.dot, (inverse, fitted, 1.0))) for terms in options]
    return 1 / inverse, fitted


def _terms(unit: Chip, rest: Chip, collective: TimedCollective) -> list[tuple[float, float, float]]:
    """Return the bytes, the messages and the known seconds of each algorithm that runs on the links."""
    ring, known = unit.ring_of(collective.devices), rest.ring_of(collective.devices)
    return [
        (algorithm.bytes_sent / ring.bandwidth, messages, known.waiting(algorithm))
        for algorithm in collective.traffic
        if (messages := ring.waiting(algorithm)) < math.inf
    ]


def _solve(terms: Any, seconds: Any, latency: float) -> tuple[float, float]:
    """Return the inverse bandwidth and the latency that fit rows of bytes, messages and known seconds."""
    remaining, sizes = seconds - terms[:, 2], terms[:, 0] / terms[:, 1]
    if sizes.max() >= _LEAST_SPREAD * sizes.min():
        inverse, fitted = np.linalg.lstsq(terms[:, :2] / seconds[:, None], remaining / seconds, rcond=None)[0]
        if inverse > 0:
            return float(inverse), max(0.0, float(fitted))
    # One size, or noise: the largest collective determines the bandwidth. At least half of its time is sending.
    largest = int(np.argmax(terms[:, 0]))
    sending = max(remaining[largest] - terms[largest, 1] * latency, seconds[largest] / 2)
    return float(sending / terms[largest, 0]), latency
